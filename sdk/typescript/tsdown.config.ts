import { defineConfig } from "tsdown";

export default defineConfig({
  entry: { index: "src/index.ts", chat: "src/chat.ts", react: "src/react.ts" },
  format: "esm",
  platform: "neutral",
  target: "es2022",
  minify: true,
  dts: true,
  clean: true,
});

import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

export default defineConfig({
  resolve: { alias: { bowline: fileURLToPath(new URL("../sdk/typescript/src/index.ts", import.meta.url)) } },
  build: {
    target: "es2022",
    // Nothing is inlined: the page's policy allows only files of its own origin.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/ws": { target: "ws://127.0.0.1:8080", ws: true }, "/api": "http://127.0.0.1:8080", "/openapi.json": "http://127.0.0.1:8080" } },
});

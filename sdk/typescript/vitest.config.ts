import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts", "test/**/*.test.tsx"],
    // Nothing takes this long unless it hangs.
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // Servers, browsers and proxies are processes; one file at a time keeps a small machine honest.
    fileParallelism: false,
  },
});

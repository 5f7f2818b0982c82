// Makes the pictures, with what the tests use.

import { defineConfig, mergeConfig } from "vitest/config";
import tests from "./vitest.config.ts";

const { include: _, ...settings } = tests.test ?? {};

export default mergeConfig({ ...tests, test: settings }, defineConfig({ test: { include: ["test/pictures.ts"], testTimeout: 300_000 } }));

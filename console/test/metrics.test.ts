// How what Prometheus is told becomes rates and quantiles.

import { expect, test } from "vitest";
import { byLabel, quantile, rate, readMetrics, total } from "../src/console/metrics.ts";

const TEXT = (events: number, fast: number, slow: number) => `# HELP bowline_events_appended Events stored.
# TYPE bowline_events_appended counter
bowline_events_appended_total ${events}
bowline_reconnects_total{verdict="replay"} 3
bowline_reconnects_total{verdict="caught_up"} 4
bowline_store_commit_seconds_sum 1.5
bowline_store_commit_seconds_bucket{le="0.001"} ${fast}
bowline_store_commit_seconds_bucket{le="0.002"} ${fast + slow}
bowline_store_commit_seconds_bucket{le="+Inf"} ${fast + slow}
# EOF
`;

test("metrics are read with their labels", () => {
  const metrics = readMetrics(TEXT(5, 0, 0));
  expect(total(metrics, "bowline_events_appended_total")).toBe(5);
  expect(total(metrics, "bowline_reconnects_total")).toBe(7);
  expect(byLabel(metrics, "bowline_reconnects_total", "verdict")).toEqual([["replay", 3], ["caught_up", 4]]);
  expect(total(metrics, "bowline_unknown")).toBe(0);
});

test("a rate is what was added, and a server that began anew has added nothing", () => {
  expect(rate(readMetrics(TEXT(10, 0, 0)), readMetrics(TEXT(30, 0, 0)), "bowline_events_appended_total", 2)).toBe(10);
  expect(rate(readMetrics(TEXT(30, 0, 0)), readMetrics(TEXT(2, 0, 0)), "bowline_events_appended_total", 2)).toBe(0);
});

test("a quantile is of what came between the two moments, and nothing if nothing came", () => {
  const before = readMetrics(TEXT(0, 100, 0));
  expect(quantile(before, before, "bowline_store_commit_seconds", 0.5)).toBeNull();
  expect(quantile(before, readMetrics(TEXT(0, 100, 10)), "bowline_store_commit_seconds", 0.5)).toBeCloseTo(0.0015);
  expect(quantile(before, readMetrics(TEXT(0, 200, 0)), "bowline_store_commit_seconds", 0.5)).toBeCloseTo(0.0005);
});

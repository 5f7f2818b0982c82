// Two curves over time.

import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import UPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Sample {
  readonly atMs: number;
  readonly perSecond: number;
  readonly connections: number;
}

const HEIGHT = 180;

export function Chart({ samples }: { samples: readonly Sample[] }): VNode {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot | null>(null);
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const ink = getComputedStyle(element).color;
    const axis = { stroke: ink, grid: { stroke: ink, width: 0.15 }, ticks: { show: false } };
    const lines = [
      { label: "events/s", stroke: ink, width: 2 },
      { label: "connections", stroke: ink, width: 1, dash: [4, 4] },
    ];
    plot.current = new UPlot({ width: element.clientWidth, height: HEIGHT, series: [{}, ...lines], axes: [axis, axis] }, [[], [], []], element);
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    sized.observe(element);
    return () => {
      sized.disconnect();
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => {
    plot.current?.setData([
      samples.map(({ atMs }) => atMs / 1000),
      samples.map(({ perSecond }) => perSecond),
      samples.map(({ connections }) => connections),
    ]);
  }, [samples]);
  const last = samples.at(-1);
  const now = last === undefined ? "No samples yet." : `Now: ${last.perSecond.toFixed(1)} events per second, ${last.connections} connections.`;
  return <div ref={box} class="chart" role="img" aria-label={now} />;
}

// A small chart: a few curves over the last minutes.

import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import UPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Curve {
  readonly label: string;
  /** One value for each moment; `null` where there was nothing to measure. */
  readonly values: readonly (number | null)[];
}

interface ChartProps {
  readonly title: string;
  readonly unit: string;
  readonly atSeconds: readonly number[];
  readonly curves: readonly Curve[];
}

const HEIGHT = 150;
/** What a chart shows at least, in seconds: two samples alone would look like a trend. */
const SPAN_MIN = 60;
const COLOURS = ["--curve-1", "--curve-2"] as const;

/** A figure for an axis: three digits at most. */
function written(value: number): string {
  if (value >= 10_000) return `${Math.round(value / 1000)}k`;
  return value >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(2)));
}

function timeOfDay(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** From the first sample to the last, and no shorter than it should be. */
function span({ data: [atSeconds] }: UPlot): [number, number] {
  const last = atSeconds.at(-1) ?? Date.now() / 1000;
  return [Math.min(atSeconds[0] ?? last, last - SPAN_MIN), last];
}

function build(element: HTMLElement, labels: readonly string[], unit: string): UPlot {
  const style = getComputedStyle(element);
  // The style sheet declares these as colours, so that what they mean in light or dark is worked out before a canvas gets them.
  const colour = (name: string) => style.getPropertyValue(name);
  const axis = { stroke: style.color, grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const curves = labels.map((label, n) => ({
    label,
    stroke: colour(COLOURS[n % COLOURS.length] ?? COLOURS[0]),
    width: 2,
    // The second one may lie on the first.
    ...(n === 0 ? {} : { dash: [6, 4] }),
    points: { show: false },
    spanGaps: true,
    value: (_: UPlot, value: number | null) => (value === null ? "–" : `${written(value)} ${unit}`),
  }));
  return new UPlot(
    {
      width: element.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { range: span }, y: { range: (_, __, max) => [0, Math.max(1, max * 1.15)] } },
      series: [{}, ...curves],
      axes: [
        { ...axis, space: 90, size: 26, values: (_, split) => split.map(timeOfDay) },
        { ...axis, space: 34, size: 44, values: (_, split) => split.map(written) },
      ],
    },
    [[], ...labels.map(() => [])],
    element,
  );
}

export function Chart({ title, unit, atSeconds, curves }: ChartProps): VNode {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot | null>(null);
  const labels = curves.map(({ label }) => label);
  const draw = () => plot.current?.setData([[...atSeconds], ...curves.map(({ values }) => [...values])]);
  const latest = useRef(draw);
  latest.current = draw;
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const renew = () => {
      plot.current?.destroy();
      plot.current = build(element, labels, unit);
      latest.current();
    };
    renew();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", renew);
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    sized.observe(element);
    return () => {
      dark.removeEventListener("change", renew);
      sized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [labels.join(), unit]);
  useEffect(draw, [atSeconds, curves]);
  const figures = curves.map(({ label, values }) => ({ label, value: values.at(-1) ?? null }));
  const told = figures.map(({ label, value }) => `${label} ${value === null ? "nothing" : `${written(value)} ${unit}`.trim()}`).join(", ");
  return (
    <figure class="card chart">
      <figcaption>
        <strong>{title}</strong>
        <span class="legend">{figures.map(({ label, value }, n) => <span key={label} class={`curve-${n + 1}`}>{label} <b>{value === null ? "–" : written(value)}</b></span>)} {unit}</span>
      </figcaption>
      <div ref={box} class="plot" role="img" aria-label={`${title}: ${told}`} />
    </figure>
  );
}

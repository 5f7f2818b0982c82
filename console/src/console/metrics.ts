// Metrics as the server writes them for Prometheus, read and compared. Pure.

export interface Sample {
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

/** Every metric of one moment, by its name. */
export type Metrics = ReadonlyMap<string, readonly Sample[]>;

const LINE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="([^"]*)"/g;

export function readMetrics(text: string): Metrics {
  const found = new Map<string, Sample[]>();
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (match === null) continue;
    const [, name = "", inside = "", value = ""] = match;
    const labels = Object.fromEntries([...inside.matchAll(LABEL)].map(([, key, label]) => [key, label]));
    const samples = found.get(name) ?? [];
    samples.push({ labels, value: value === "+Inf" ? Infinity : Number(value) });
    found.set(name, samples);
  }
  return found;
}

/** A metric without labels, or the sum of one with them. */
export function total(metrics: Metrics, name: string): number {
  return (metrics.get(name) ?? []).reduce((sum, { value }) => sum + value, 0);
}

/** A counter by the values of one label. */
export function byLabel(metrics: Metrics, name: string, label: string): readonly (readonly [string, number])[] {
  return (metrics.get(name) ?? []).map(({ labels, value }) => [labels[label] ?? "", value] as const);
}

/** How much a counter has grown per second. A server that was restarted counts from 0 again. */
export function rate(before: Metrics, now: Metrics, name: string, seconds: number): number {
  const grown = total(now, name) - total(before, name);
  return seconds > 0 && grown > 0 ? grown / seconds : 0;
}

/** A quantile of what a histogram took in between two moments; `null` if that was nothing. */
export function quantile(before: Metrics, now: Metrics, name: string, part: number): number | null {
  const earlier = new Map((before.get(`${name}_bucket`) ?? []).map(({ labels, value }) => [labels["le"], value]));
  const buckets = (now.get(`${name}_bucket`) ?? [])
    .map(({ labels, value }) => ({ upTo: labels["le"] === "+Inf" ? Infinity : Number(labels["le"]), count: value - (earlier.get(labels["le"]) ?? 0) }))
    .sort((one, other) => one.upTo - other.upTo);
  const all = buckets.at(-1)?.count ?? 0;
  if (all <= 0) return null;
  const wanted = all * part;
  let [from, below] = [0, 0];
  for (const { upTo, count } of buckets) {
    if (count >= wanted) return upTo === Infinity ? from : from + ((upTo - from) * (wanted - below)) / Math.max(1, count - below);
    [from, below] = [upTo, count];
  }
  return from;
}

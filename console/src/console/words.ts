// How figures and times are written.

export function duration(seconds: number): string {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7_200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3_600)} h` : `${Math.floor(seconds / 86_400)} d`;
}

export function ago(iso: string | undefined | null, nowMs: number): string {
  return iso ? `${duration(Math.max(0, (nowMs - Date.parse(iso)) / 1000))} ago` : "";
}

export function figure(value: number): string {
  return value.toLocaleString("en").replaceAll(",", "\u202f");
}

export function bytes(value: number): string {
  if (value < 1e6) return `${(value / 1e3).toFixed(1)} kB`;
  return value < 1e9 ? `${(value / 1e6).toFixed(1)} MB` : `${(value / 1e9).toFixed(1)} GB`;
}

/** The beginning of a name that is long and says nothing. */
export function short(id: string): string {
  return id.length > 16 ? `${id.slice(0, 13)}…` : id;
}

export function counted(count: number, one: string): string {
  return `${figure(count)} ${one}${count === 1 ? "" : "s"}`;
}

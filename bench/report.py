"""What `bench/run` makes of its lines: tables, pictures, and which aims hold."""
import json, os, statistics
from collections import defaultdict

ORDER = ["raw-tcp", "raw-durable", "bowline-ws", "bowline-sse", "bowline-ws-interval", "bowline-ws-mux", "bowline-sse-fold", "bowline-redis-ws",
         "axum-ws", "nchan-ws", "nats-jetstream", "socketio-csr", "redis-node-sse", "resumable-stream", "durable-streams"]


def number(x):
    return f"{x:,.0f}".replace(",", " ") if abs(x) >= 100 else f"{x:.1f}" if abs(x) >= 10 else f"{x:.2f}"


def brief(line):
    keys = ("deliveries_per_s", "p50_us", "p99_us", "missing", "gaps", "dups_or_reorders", "server_cpu_s", "ttlb_s", "completed", "pss_kb_per_conn", "error")
    return {key: line[key] for key in keys if key in line}


class Results:
    """Lines of one or several runs, by peer and workload."""

    def __init__(self):
        self.lines, self.errors, self.disk, self.machine = defaultdict(list), [], defaultdict(list), {}

    @staticmethod
    def read(path):
        results = Results()
        for text in open(path):
            line = json.loads(text)
            if line["peer"] == "machine":
                results.machine = line
            elif line["peer"] == "disk":
                results.disk[line["case"], line["batch"] if "group" not in line["case"] else 0].append(line)
            elif "error" in line:
                results.errors.append(line)
            else:
                results.lines[line["peer"]].append(line)
        return results

    def find(self, peer, workload, **want):
        return [line for line in self.lines[peer] if line["workload"] == workload and all(line.get(key) == value for key, value in want.items())]

    def median(self, peer, of, workload, **want):
        found = self.find(peer, workload, **want)
        return statistics.median(of(line) for line in found) if found else None


def per_cpu(line):
    """Deliveries per second of the server's processor time."""
    return line["delivered"] / max(line["server_cpu_s"], 1e-9)


def cpu_us(line):
    return 1e6 / per_cpu(line)


def wrong(line):
    return sum(line.get(key, 0) for key in ("missing", "gaps", "dups_or_reorders"))


LIVE = [("Fan-out to 1 reader, flat out", "fanout", dict(subs=1, rate=0.0)),
        ("Fan-out to 100 readers, flat out", "fanout", dict(subs=100, rate=0.0)),
        ("Fan-out to 1 000 readers, flat out", "fanout", dict(subs=1000, rate=0.0)),
        ("One stream at 1 000 messages/s", "fanout", dict(subs=1, rate=1000.0)),
        ("100 readers at 100 messages/s", "fanout", dict(subs=100, rate=100.0)),
        ("1 000 streams, flat out", "many", dict(streams=1000, rate=0.0)),
        ("1 000 streams at 10 messages/s each", "many", dict(streams=1000, rate=10.0))]
STORMS = [(1000, 500), (5000, 100)]


def table(title, head, rows):
    if rows:
        print(f"**{title}**\n\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
        print("\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n")


def tables(results):
    if results.machine:
        about = results.machine
        print(f"{about['date']}, {about['processor']}, {about['cores']} cores, Linux {about['kernel']}, {about['version']}.\n")
    for title, workload, want in LIVE:
        rows = []
        for peer in ORDER:
            found = results.find(peer, workload, **want)
            if found:
                middle = lambda of: statistics.median(of(line) for line in found)
                rows.append([peer, number(middle(per_cpu)), number(middle(cpu_us)), number(middle(lambda l: l["p50_us"]) / 1000),
                             number(middle(lambda l: l["p99_us"]) / 1000), str(sum(map(wrong, found))), str(len(found))])
        table(title, ["peer", "deliveries per CPU-second", "CPU µs per delivery", "p50 ms", "p99 ms", "lost, repeated, reordered", "runs"], rows)
    for clients, buffered in STORMS:
        rows = []
        for peer in ORDER:
            found = results.find(peer, "resume", clients=clients, buffered=buffered)
            if found:
                middle = lambda of: statistics.median(of(line) for line in found)
                rows.append([peer, number(middle(lambda l: l["ttlb_s"])), number(middle(lambda l: l["replayed"] / max(l["server_cpu_s"], 1e-9))),
                             f"{int(middle(lambda l: l['completed']))} of {clients}", str(sum(map(wrong, found))), str(len(found))])
        table(f"{clients} clients return at once, each owed {buffered} messages",
              ["peer", "s to the last byte", "messages per CPU-second", "completed", "lost, repeated, reordered", "runs"], rows)
    rows = []
    for peer in ORDER:
        found = results.find(peer, "idle")
        if found:
            rows.append([peer, number(statistics.median(line["pss_kb_per_conn"] for line in found)), str(found[0]["conns"]), str(len(found))])
    table("Idle subscribers, each on a stream of its own", ["peer", "KB each", "of", "runs"], rows)
    rows = [[case, number(statistics.median(l["batch"] for l in found)), number(statistics.median(l["appends_per_s"] for l in found)),
             number(statistics.median(l["p50_us"] for l in found) / 1000)] for (case, _), found in results.disk.items()]
    table("The disk: records of 200 bytes", ["case", "records per sync", "records/s", "p50 ms"], rows)
    for line in results.errors:
        print(f"Failed: {line['peer']} `{line['args']}`: {line['error'].splitlines()[0][:160] if line['error'] else 'no message'}")


SHORT = {"raw-tcp": "bare TCP loop", "bowline-ws": "**Bowline**, WebSocket", "bowline-sse": "**Bowline**, SSE", "axum-ws": "axum, in memory", "nchan-ws": "nchan",
         "nats-jetstream": "NATS JetStream", "socketio-csr": "Socket.IO", "redis-node-sse": "Node.js on Redis"}


def summary(results):
    """The README's table: one line for each workload, one column for each peer."""
    found = [peer for peer in SHORT if results.lines[peer]]
    rows = []
    for title, workload, want in LIVE[2:]:
        rows.append([f"{title}: CPU µs per delivery"] + [results.median(peer, cpu_us, workload, **want) for peer in found])
    for clients, buffered in STORMS:
        rows.append([f"{number(clients)} clients return, each owed {buffered} messages: seconds until the last has all"]
                    + [results.median(peer, lambda l: l["ttlb_s"], "resume", clients=clients, buffered=buffered) for peer in found])
    rows.append(["10 000 idle subscribers: KB each"] + [results.median(peer, lambda l: l["pss_kb_per_conn"], "idle", conns=10000) for peer in found])
    rows = [[row[0]] + ["–" if value is None else number(value) for value in row[1:]] for row in rows if any(row[1:])]
    print("| workload | " + " | ".join(SHORT[peer] for peer in found) + " |\n|" + "---|" * (len(found) + 1))
    print("\n".join("| " + " | ".join(row) + " |" for row in rows))


def aims(results):
    """Name, what was measured, the most that is allowed; a ratio within this run."""
    raw = lambda of, *args, **want: results.median("raw-tcp", of, *args, **want)
    best = lambda of, *args, **want: min(
        (m for m in (results.median(peer, of, *args, **want) for peer in ("bowline-ws", "bowline-sse")) if m is not None), default=None)
    most = lambda of, *args, **want: max(
        (m for m in (results.median(peer, of, *args, **want) for peer in ("bowline-ws", "bowline-sse")) if m is not None), default=None)
    ratio = lambda a, b: a / b if a is not None and b else None
    p50, p99, storm = (lambda l: l["p50_us"]), (lambda l: l["p99_us"]), (lambda l: l["ttlb_s"])
    fan, hundred = dict(subs=1000, rate=0.0), dict(subs=100, rate=100.0)
    one, flat, paced = dict(subs=1, rate=1000.0), dict(streams=1000, rate=0.0), dict(streams=1000, rate=10.0)
    peer = lambda name, of, *args, **want: results.median(name, of, *args, **want)
    sync = next((statistics.median(l["p50_us"] for l in found) for (case, batch), found in results.disk.items() if "preallocated" in case and batch == 1), None)
    raw_p50 = raw(p50, "fanout", **one)
    yield "fan-out 1 000: below raw", ratio(raw(per_cpu, "fanout", **fan), most(per_cpu, "fanout", **fan)), 6
    yield "fan-out 1 000: NATS below us", ratio(peer("nats-jetstream", per_cpu, "fanout", **fan), most(per_cpu, "fanout", **fan)), 1 / 3
    yield "100 readers at 100/s: CPU, to raw", ratio(best(cpu_us, "fanout", **hundred), raw(cpu_us, "fanout", **hundred)), 1.5
    yield "100 readers at 100/s: CPU, to nchan", ratio(best(cpu_us, "fanout", **hundred), peer("nchan-ws", cpu_us, "fanout", **hundred)), 1
    yield "one stream, always: p50, to raw + 1.5 fdatasync", ratio(best(p50, "fanout", **one), raw_p50 + 1.5 * sync if raw_p50 and sync else None), 1
    yield "one stream, always: CPU, to raw", ratio(best(cpu_us, "fanout", **one), raw(cpu_us, "fanout", **one)), 2.5
    yield "one stream, interval: p99, to axum", ratio(peer("bowline-ws-interval", p99, "fanout", **one), peer("axum-ws", p99, "fanout", **one)), 1.5
    yield "1 000 streams: below raw", ratio(raw(per_cpu, "many", **flat), most(per_cpu, "many", **flat)), 6
    yield "1 000 streams: axum below us", ratio(peer("axum-ws", per_cpu, "many", **flat), most(per_cpu, "many", **flat)), 1 / 2
    yield "1 000 × 10/s: p99, to axum", ratio(best(p99, "many", **paced), peer("axum-ws", p99, "many", **paced)), 1
    yield "1 000 × 10/s: CPU, to axum", ratio(best(cpu_us, "many", **paced), peer("axum-ws", cpu_us, "many", **paced)), 1
    for (clients, buffered), limit in zip(STORMS, (5, 3)):
        want = dict(clients=clients, buffered=buffered)
        yield f"storm {clients} × {buffered}: to raw", ratio(best(storm, "resume", **want), raw(storm, "resume", **want)), limit
    yield "idle at 10 000: KB each", best(lambda l: l["pss_kb_per_conn"], "idle", conns=10000), 6
    yield "on Redis, 1 000 streams: Node below us", ratio(peer("redis-node-sse", per_cpu, "many", **flat), peer("bowline-redis-ws", per_cpu, "many", **flat)), 1 / 2
    yield "one /produce for 1 000 tasks: p99, to one each", ratio(peer("bowline-ws-mux", p99, "many", **paced), peer("bowline-ws", p99, "many", **paced)), 1


def check(results):
    rows = []
    for name, measured, limit in aims(results):
        verdict = "not measured" if measured is None else "holds" if measured <= limit else "missed"
        rows.append([name, "–" if measured is None else number(measured), number(limit), verdict])
    table("Aims", ["aim", "measured", "at most", ""], rows)
    bad = sum(wrong(line) for peer, lines in results.lines.items() if peer.startswith("bowline") for line in lines)
    print(f"Lost, repeated or reordered by Bowline in this run: {bad}.")


def plot(results, folder):
    """One picture of bars per workload: processor time per delivery, for who would rather look."""
    for name, (title, workload, want) in {"fanout": LIVE[2], "many": LIVE[5]}.items():
        bars = [(peer, results.median(peer, cpu_us, workload, **want)) for peer in ORDER]
        bars = sorted((bar for bar in bars if bar[1] is not None), key=lambda bar: bar[1])
        if bars:
            path = os.path.join(folder, f"performance-{name}.svg")
            open(path, "w").write(picture(f"{title}: server CPU per delivery, µs (shorter is better)", bars))
            print("drew", path)


def picture(title, bars):
    width, left, step = 760, 170, 26
    height, longest = 50 + step * len(bars), max(value for _, value in bars)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="{title}">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>', f'<text x="12" y="24" font-weight="600" fill="#1a1a1a">{title}</text>']
    for at, (peer, value) in enumerate(bars):
        y, length = 40 + at * step, max(2, (width - left - 90) * value / longest)
        colour = "#2563eb" if peer.startswith("bowline") else "#9ca3af"
        out += [f'<text x="{left - 8}" y="{y + 15}" text-anchor="end" fill="#1a1a1a">{peer}</text>',
                f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="17" fill="{colour}"/>',
                f'<text x="{left + length + 6:.1f}" y="{y + 15}" fill="#1a1a1a">{number(value)}</text>']
    return "\n".join(out + ["</svg>", ""])

#!/usr/bin/env python3
"""A proxy that breaks what passes: cutting_proxy.py PORT TO_PORT [--cut PERCENT] [--silence PERCENT] [--delay PERCENT]

Each connection gets its fate when it is made: it is reset after a random number of bytes, in the middle of a frame as likely as not; or it falls
silent there, in both directions and without a word, and is reset three seconds later; or its pieces come late; or nothing happens to it. How often
each has happened stands on one line of JSON when the proxy is ended by SIGTERM.
"""
import argparse, asyncio, collections, json, random, signal, socket, struct

BYTES_MAX = 40_000
SILENCE_S = 3
counts = collections.Counter()


def reset(writer):
    """Closes with a reset: what is on its way is lost."""
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Connection:
    def __init__(self, options):
        fates, weights = ("cut", "silence", "delay", "none"), (options.cut, options.silence, options.delay)
        self.fate = random.choices(fates, (*weights, 100 - sum(weights)))[0]
        self.left = random.randrange(BYTES_MAX) if self.fate in ("cut", "silence") else None
        self.struck = asyncio.Event()

    async def carry(self, reader, writer):
        while piece := await reader.read(65536):
            if self.fate == "delay":
                counts["delayed pieces"] += 1
                await asyncio.sleep(random.uniform(0, 0.2))
            if self.left is not None:
                passed, self.left = piece[:max(self.left, 0)], self.left - len(piece)
                writer.write(passed)
                if self.left <= 0:
                    self.struck.set()
                    return await asyncio.Event().wait()
            else:
                writer.write(piece)
            await writer.drain()
        writer.write_eof()


async def serve(options, reader, writer):
    connection = Connection(options)
    counts["connections"] += 1
    try:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", options.to)
    except OSError:
        return reset(writer)
    both = asyncio.gather(connection.carry(reader, to_writer), connection.carry(to_reader, writer))
    struck = asyncio.ensure_future(connection.struck.wait())
    await asyncio.wait([both, struck], return_when=asyncio.FIRST_COMPLETED)
    if connection.struck.is_set():
        counts["cuts" if connection.fate == "cut" else "silences"] += 1
        if connection.fate == "silence":
            await asyncio.sleep(SILENCE_S)
    for pending in (both, struck):
        pending.cancel()
    await asyncio.gather(both, struck, return_exceptions=True)
    reset(writer)
    reset(to_writer)


async def main(options):
    server = await asyncio.start_server(lambda *ends: serve(options, *ends), "127.0.0.1", options.port)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with server:
        await ended.wait()
    print(json.dumps(counts), flush=True)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("port", type=int)
parser.add_argument("to", type=int)
for option, value in (("cut", 50), ("silence", 15), ("delay", 15)):
    parser.add_argument(f"--{option}", type=int, default=value)
asyncio.run(main(parser.parse_args()))

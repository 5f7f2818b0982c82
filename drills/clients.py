#!/usr/bin/env python3
"""Clients that come back, and check what they see: clients.py ws://HOST:PORT/ws [--clients N] [--messages N] [--words N] [--pause MS]

Each client has a session of its own, sends one message after the other under a name of its own, cuts its own wire now and then, and comes back with its cursor,
whatever happens to the server. It must see every number once and in order within an epoch, a new epoch or a gap only if it was told first, each message once, and
one end for each. At the end it reads everything again from the beginning, which must be what it saw. Needs nothing but Python; shares no code with the server.
The exit code is 1 if a client saw anything else, or does not come to the end within --patience seconds without progress.
"""
import argparse, asyncio, base64, collections, json, os, random, struct, sys, urllib.parse

ENDS = {"agent.final_answer", "agent.error", "agent.cancelled"}
counts = collections.Counter()


def message_id(frame):
    return (frame.get("metadata") or {}).get("message_id")


class Violation(Exception):
    pass


class Broken(Exception):
    """The wire broke, or the server wants us to come again."""


class Wire:
    """A WebSocket, as far as a client of text frames needs one."""

    @classmethod
    async def open(cls, url):
        self, parts = cls(), urllib.parse.urlsplit(url)
        self.reader, self.writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, parts.port, limit=1 << 24), 5)
        key = base64.b64encode(os.urandom(16)).decode()
        self.writer.write((f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                           f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n").encode())
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)
        if b" 101 " not in head.split(b"\r\n")[0]:
            self.cut()
            raise Broken(head.split(b"\r\n")[0].decode())
        return self

    def frame(self, opcode, payload):
        mask, length = os.urandom(4), len(payload)
        if length < 126:
            size = struct.pack("!B", 0x80 | length)
        elif length < 65536:
            size = struct.pack("!BH", 0x80 | 126, length)
        else:
            size = struct.pack("!BQ", 0x80 | 127, length)
        self.writer.write(bytes([0x80 | opcode]) + size + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)))

    def send(self, **frame):
        self.frame(1, json.dumps(frame).encode())

    async def receive(self):
        while True:
            first, second = await self.reader.readexactly(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
            payload = await self.reader.readexactly(length)
            if first & 0x0F == 8:
                raise Broken("closed by the server")
            if first & 0x0F == 9:
                self.frame(10, payload)
            elif first & 0x0F == 1:
                return json.loads(payload)

    def cut(self):
        self.writer.transport.abort()


class Client:
    def __init__(self, options, number):
        self.options, self.name = options, f"drill-{number}-{os.urandom(4).hex()}"
        self.session = self.cursor = None
        self.epoch, self.next = None, 1
        self.seen = collections.defaultdict(dict)   # epoch -> number -> (name, content)
        self.told = False                           # of a gap or another epoch
        self.sent, self.wanted = 0, None            # messages begun, and the one that is not over
        self.over = 0
        self.is_open = False                        # whether the log shows a run that is not over

    async def run(self):
        while self.over < self.options.messages:
            try:
                await self.converse()
            except (Broken, OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                counts["reconnects"] += 1
                await asyncio.sleep(random.uniform(0.05, 0.5))
        await self.audit()

    async def greeted(self, cursor):
        wire = await Wire.open(self.options.url)
        if (await asyncio.wait_for(wire.receive(), 10))["event"] != "system.connected":
            raise Violation("the first frame is not system.connected")
        if self.session is None:
            wire.send(event="user.create_session", content={"client_id": self.name})
        else:
            wire.send(event="user.reconnect", session_id=self.session, content={"client_id": self.name, "take_over": True, **cursor})
        return wire

    async def converse(self):
        wire = await self.greeted({"last_event_id": self.cursor} if self.cursor else {"last_seq": 0})
        left = random.randint(20, 400) if random.random() < 0.5 else None   # events until it cuts its own wire
        try:
            while self.over < self.options.messages:
                frame = await asyncio.wait_for(wire.receive(), 15)
                if frame.get("seq"):
                    self.take(frame)
                    left = None if left is None else left - 1
                    if left == 0:
                        counts["cuts"] += 1
                        raise Broken("cut")
                elif frame["event"] == "agent.session_created":
                    self.session = frame["session_id"]
                    verdict = frame["metadata"].get("resume", {}).get("verdict")
                    counts[f"verdict {verdict}"] += 1
                    self.told = verdict in ("gap", "other_epoch", "ahead_of_log")
                    self.say(wire)
                elif frame["metadata"].get("error_code"):
                    counts[frame["metadata"]["error_code"]] += 1
                    raise Broken("refused for now")
                elif frame["metadata"].get("gap") or frame["metadata"].get("action") in ("gap", "replay_gap"):
                    self.told = True
                if self.wanted is None:
                    self.say(wire)
        finally:
            wire.cut()

    def say(self, wire):
        """The next message, or the last one once more if it was not seen: it must run once."""
        if self.session is None or self.over >= self.options.messages:
            return
        if self.wanted is None:
            self.sent += 1
            self.wanted = f"{self.name}-{self.sent}"
        wire.send(event="user.message", session_id=self.session, message_id=self.wanted,
                  content=f"/long {self.options.words} {self.options.pause}")

    def take(self, frame):
        epoch, _, number = frame["event_id"].rpartition("-")
        number = int(number)
        if number != frame["seq"]:
            raise Violation(f"{frame['event_id']} says that it is {frame['seq']}")
        if epoch != self.epoch:
            if self.epoch is not None and not self.told:
                raise Violation(f"epoch {epoch} after {self.epoch}, without a word")
            self.epoch, self.next = epoch, number
        if number != self.next:
            if number < self.next or not self.told:
                raise Violation(f"{number} came where {self.next} should have")
            counts["gaps"] += 1
        self.told = False
        self.next, self.cursor = number + 1, frame["event_id"]
        self.seen[epoch][number] = (frame["event"], json.dumps(frame.get("content")), message_id(frame))
        counts["events"] += 1
        if frame["event"] == "user.message":
            if self.is_open:
                raise Violation(f"{frame['event_id']}: a message while a run is not over")
            self.is_open = True
        elif frame["event"] in ENDS:
            if not self.is_open:
                raise Violation(f"{frame['event_id']}: a second end")
            self.is_open, self.wanted, self.over = False, None, self.over + 1
            counts[frame["event"]] += 1

    async def audit(self):
        """Everything once more from the beginning; what was seen must be there, once."""
        while True:
            try:
                wire = await self.greeted({"last_seq": 0})
                found = {}
                while True:
                    frame = await asyncio.wait_for(wire.receive(), 15)
                    if frame.get("seq"):
                        found[frame["event_id"]] = (frame["event"], json.dumps(frame.get("content")), message_id(frame))
                    elif frame["metadata"].get("action") == "replay":
                        break
                    elif frame["metadata"].get("error_code"):
                        raise Broken("refused for now")
                wire.cut()
                break
            except (Broken, OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                await asyncio.sleep(random.uniform(0.05, 0.5))
        for number, event in self.seen[self.epoch].items():
            if found.get(f"{self.epoch}-{number}") != event:
                raise Violation(f"{self.epoch}-{number} was {event} and is {found.get(f'{self.epoch}-{number}')}")
        names = [name for event, _, name in found.values() if event == "user.message"]
        if len(names) != len(set(names)) or not all(names):
            raise Violation(f"a message is in the log twice: {sorted(map(str, names))}")
        counts["sessions audited"] += 1


async def watch(options):
    """Fails if nothing comes any more."""
    while True:
        before = counts["events"] + counts["sessions audited"]
        await asyncio.sleep(options.patience)
        if counts["events"] + counts["sessions audited"] == before:
            raise Violation(f"no client came any further for {options.patience} s")


async def main(options):
    clients = asyncio.gather(*(Client(options, number).run() for number in range(options.clients)))
    watching = asyncio.ensure_future(watch(options))
    await asyncio.wait([clients, watching], return_when=asyncio.FIRST_COMPLETED)
    (clients if clients.done() else watching).result()


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("url")
for option, value in (("clients", 20), ("messages", 8), ("words", 40), ("pause", 10), ("patience", 90)):
    parser.add_argument(f"--{option}", type=int, default=value)
try:
    asyncio.run(main(parser.parse_args()))
except Violation as violation:
    print(f"VIOLATION: {violation}", json.dumps(counts))
    sys.exit(1)
print(json.dumps(counts))

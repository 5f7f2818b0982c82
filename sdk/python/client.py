"""A session that survives its wires, in plain Python: pip install websockets

    python client.py ws://127.0.0.1:8080/ws "/long 200 10" [cut the wire after this many events, again and again]
"""
import asyncio
import json
import random
import sys
import uuid

import websockets

BACKOFF_SECONDS = [0.2, 1, 2, 4, 8, 16, 30, 60]


class Session:
    def __init__(self, url):
        self.url, self.id, self.epoch, self.seq, self.token = url, None, None, 0, None
        self.client_id = uuid.uuid4().hex

    def hello(self):
        """The first frame on a new wire: who we are, and how far we got."""
        if self.id is None:
            return {"event": "user.create_session", "content": {"client_id": self.client_id}}
        back = {"last_event_id": f"{self.epoch}-{self.seq}", "client_id": self.client_id, "resume_token": self.token}
        return {"event": "user.reconnect", "session_id": self.id, "content": back}

    async def events(self, text, cut_after=None):
        """Asks once, whatever breaks, and yields each logged event once, in order, up to the run's last one."""
        message = {"event": "user.message", "message_id": uuid.uuid4().hex, "content": text}
        failures, accepted = 0, False
        while True:
            try:
                async with websockets.connect(self.url, subprotocols=["bowline.v1"]) as wire:
                    silence = 2 * json.loads(await wire.recv())["metadata"]["heartbeat_interval_ms"] / 1000
                    await wire.send(json.dumps(self.hello()))
                    came = 0
                    while True:
                        frame = json.loads(await asyncio.wait_for(wire.recv(), silence))
                        facts = frame.get("metadata", {})
                        if frame["event"] == "agent.session_created":
                            failures = 0
                            self.id, self.token = frame["session_id"], facts.get("resume_token")
                            if facts.get("resume", {}).get("verdict") in ("gap", "other_epoch", "ahead_of_log"):
                                raise SystemExit(f"events were lost: {facts['resume']}")
                            self.epoch = facts["epoch"]
                        fresh = frame["event"] == "agent.session_created" and "resume" not in facts
                        if (fresh or facts.get("action") == "replay") and not accepted:
                            # Nothing that came is an echo of it, so it may be lost. Under the same id it runs once.
                            await wire.send(json.dumps({**message, "session_id": self.id}))
                        elif frame["event"] == "system.heartbeat" and self.id is not None:
                            await wire.send(json.dumps({"event": "user.ack", "session_id": self.id, "seq": self.seq}))
                        elif frame.get("seq") is None and frame["event"] in ("agent.error", "system.error"):
                            raise SystemExit(f"refused: {facts['error_code']}: {frame['content']}")
                        elif frame.get("seq", 0) > self.seq + 1:
                            raise OSError("an event is missing: ask for it")
                        elif frame.get("seq") == self.seq + 1:
                            self.seq, came = frame["seq"], came + 1
                            accepted = accepted or facts.get("message_id") == message["message_id"]
                            yield frame
                            if frame["event"] in ("agent.final_answer", "agent.error", "agent.cancelled"):
                                return
                            if came == cut_after:
                                wire.transport.abort()
            except (OSError, asyncio.TimeoutError, websockets.WebSocketException):
                # The first attempt is all but immediate: the jitter spreads a crowd of clients.
                await asyncio.sleep(BACKOFF_SECONDS[min(failures, 7)] * random.uniform(0.8, 1.2))
                failures += 1


async def main(url, text, cut_after="0"):
    async for event in Session(url).events(text, int(cut_after) or None):
        if event["event"] == "agent.partial_answer":
            print(event["content"], end="", flush=True)
    print()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

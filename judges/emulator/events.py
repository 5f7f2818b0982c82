"""An agent in Python: answers a POST with events, one JSON object per line. Prints its URL, then serves."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def events(request):
    words, answer, state = request["message"], request.get("answer"), request.get("agent_state", {})
    if answer:
        yield {"event": "agent.thinking", "content": f"You said {answer['confirmed']} to {answer['step_id']}."}
        done = "deployed" if answer["confirmed"] else f"not deployed ({answer.get('reason')})"
        yield {"event": "agent.final_answer", "content": f"{answer['state']['target']} is {done}."}
    elif words.startswith("deploy "):
        yield {"event": "agent.partial_answer", "content": "One question first. "}
        yield {"event": "agent.user_confirm", "content": f"Deploy {words[7:]}?", "step_id": "q1",
               "metadata": {"scope": "tool", "tool_name": "deploy"}, "state": {"target": words[7:]}}
    elif words == "recall":
        yield {"event": "agent.final_answer", "content": json.dumps(request["messages"])}
    elif words == "config":
        yield {"event": "agent.final_answer", "content": json.dumps(request["config"])}
    elif words.startswith("remember "):
        yield {"event": "agent.state", "content": {"remembered": words[9:], "runs": state.get("runs", 0) + 1}}
        yield {"event": "agent.final_answer", "content": "I will."}
    elif words == "state":
        yield {"event": "agent.final_answer", "content": json.dumps(state)}
    elif words == "speak for the user":
        yield {"event": "user.message", "content": "I want cake."}
    elif words == "break off":
        yield {"event": "agent.partial_answer", "content": "Half an answer"}
    elif words == "fail":
        yield {"event": "agent.error", "content": "It went wrong.", "metadata": {"stage": "cooking"}}
    else:
        yield {"event": "agent.thinking", "content": "Let me see.", "metadata": {"stage": "looking"}}
        yield {"event": "agent.tool_call", "content": "Looking", "step_id": "s1", "metadata": {"tool": "look", "args": {}}}
        yield {"event": "agent.tool_result", "content": "Seen", "step_id": "s1", "metadata": {"tool": "look"}}
        yield {"event": "agent.mood", "content": {"b": 1.50, "a": "good"}}
        yield {"event": "weather.report", "content": {"sky": "clear"}, "metadata": {"z": 1}}
        for word in ["It ", "is ", "here."]:
            yield {"event": "agent.partial_answer", "content": word, "metadata": {"sure": True}}
        yield {"event": "agent.final_answer", "content": "It is here.", "metadata": {"model": "py", "mood": "good"}}


class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson")
        self.end_headers()
        for event in events(request):
            self.wfile.write(json.dumps(event).encode() + b"\n")
            self.wfile.flush()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Agent)
print(f"serving at http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()

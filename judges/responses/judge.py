"""The official Python client before a server: judge.py BASE_URL. Every claim that does not hold ends it."""

import asyncio
import sys

from openai import AsyncOpenAI, NotFoundError, OpenAI

base_url = sys.argv[1]
client = OpenAI(base_url=base_url, api_key="none", max_retries=0)
claims = 0


def holds(claim, why=""):
    global claims
    assert claim, why
    claims += 1


def plain(response):
    fields = response.to_dict()
    for item in fields["output"]:
        for part in item.get("content") or []:
            part.pop("parsed", None)
        item.pop("parsed_arguments", None)
    return fields


def same(one, other):
    holds(plain(one) == plain(other), f"{plain(one)}\n{plain(other)}")


whole = client.responses.create(model="demo", input="/long 6 0", metadata={"a": "b"})
holds(whole.status == "completed" and whole.output_text == "tok1 tok2 tok3 tok4 tok5 tok6")
same(client.responses.retrieve(whole.id), whole)

events = list(client.responses.retrieve(whole.id, stream=True))
holds([event.sequence_number for event in events] == list(range(len(events))))
same(events[-1].response, whole)
for at in range(len(events)):
    rest = list(client.responses.retrieve(whole.id, stream=True, starting_after=at))
    holds([event.to_dict() for event in rest] == [event.to_dict() for event in events[at + 1 :]])
for at in range(len(events) - 1):
    with client.responses.stream(response_id=whole.id, starting_after=at) as stream:
        numbers = [event.sequence_number for event in stream]
        holds(numbers == list(range(at + 1, len(events))), numbers)
        same(stream.get_final_response(), whole)

with client.responses.stream(model="demo", input="hello") as stream:
    text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    final = stream.get_final_response()
holds(final.output_text == text)
same(client.responses.retrieve(final.id), final)

background = client.responses.create(model="demo", input="/long 100000 5", background=True)
holds(background.status == "in_progress")
cancelled = client.responses.cancel(background.id)
holds(cancelled.status == "cancelled")
last = list(client.responses.retrieve(background.id, stream=True))[-1]
holds(last.type == "response.incomplete")
same(last.response, cancelled)

asked = client.responses.create(model="demo", input="/confirm launch")
request = asked.output[0]
holds(request.type == "mcp_approval_request")
answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
answered = client.responses.create(model="demo", previous_response_id=asked.id, input=[answer])
holds(answered.output_text == "confirmed: launch")

tools = [{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}]
called = client.responses.create(model="demo", input='/call weather {"city": "Rome"} weather {"city": "Oslo"}', tools=tools)
calls = [item for item in called.output if item.type == "function_call"]
holds([(call.name, call.status) for call in calls] == [("weather", "completed")] * 2)
same(client.responses.retrieve(called.id), called)
results = [{"type": "function_call_output", "call_id": call.call_id, "output": call.arguments} for call in calls]
with client.responses.stream(model="demo", previous_response_id=called.id, input=results, tools=tools) as stream:
    numbers = [event.sequence_number for event in stream]
    returned = stream.get_final_response()
holds(numbers == list(range(len(numbers))), numbers)
holds(returned.output_text == 'weather: {"city": "Rome"}\nweather: {"city": "Oslo"}', returned.output_text)
same(client.responses.retrieve(returned.id), returned)
with client.responses.stream(response_id=called.id) as stream:
    same(stream.get_final_response(), called)
items = client.responses.input_items.list(returned.id, order="asc").data
holds([item.call_id for item in items] == [call.call_id for call in calls])

with client.responses.connect() as connection:
    for text in ("/long 6 1", "/echo and on"):
        connection.response.create(model="demo", input=text)
        messages = []
        for event in connection:
            messages.append(event)
            if event.type == "response.completed":
                break
        holds([event.sequence_number for event in messages] == list(range(len(messages))))
        same(client.responses.retrieve(messages[0].response.id), messages[-1].response)

try:
    client.responses.retrieve("resp_1_sess_nobody")
    holds(False)
except NotFoundError as error:
    holds(error.code == "TASK_NOT_FOUND")


async def together():
    client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    begun = await client.responses.create(model="demo", input="/long 30 5", background=True)

    async def read():
        return [event.to_dict() async for event in await client.responses.retrieve(begun.id, stream=True)]

    one, two = await asyncio.gather(read(), read())
    holds(one == two and one[-1]["type"] == "response.completed")


asyncio.run(together())
print(f"judged {claims} claims")

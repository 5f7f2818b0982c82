"""The official Python client before the hub, in both eras and over both transports, and servers of both eras behind it."""

import asyncio
import sys

import mcp_types as types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

binary, address, servers = sys.argv[1:]


async def elicit(_context, params):
    assert params.message == "Who?", params
    return types.ElicitResult(action="accept", content={"username": "ann", "email": "ann@example.org"})


async def sample(_context, params):
    asked = params.messages[0].content
    return types.CreateMessageResult(
        role="assistant", model="judge", content=types.TextContent(type="text", text=f"to {asked.text}")
    )


def said(result) -> str:
    return "\n".join(getattr(part, "text", "") for part in result.content)


def client(target, mode: str) -> Client:
    return Client(target, mode=mode, elicitation_callback=elicit, sampling_callback=sample, read_timeout_seconds=60)


async def one_server(target, mode: str) -> None:
    """A server as it is: lists, results, progress, errors, and its questions."""
    progress = []

    async def heard(value, total, _message):
        progress.append((value, total))

    async with client(target, mode) as hub:
        names = [tool.name for tool in (await hub.list_tools()).tools]
        assert "test_simple_text" in names, names
        assert "simple text" in said(await hub.call_tool("test_simple_text"))
        result = await hub.call_tool("test_error_handling")
        assert result.is_error and "intentionally" in said(result), result
        await hub.call_tool("test_tool_with_progress", progress_callback=heard)
        assert progress == [(0, 100), (50, 100), (100, 100)], progress
        assert "ann@example.org" in said(await hub.call_tool("test_elicitation", {"message": "Who?"}))
        assert "to you" in said(await hub.call_tool("test_sampling", {"prompt": "you"}))
        contents = (await hub.read_resource("test://template/7/data")).contents
        assert "Data for ID: 7" in contents[0].text, contents
        prompt = await hub.get_prompt("test_prompt_with_arguments", {"arg1": "a", "arg2": "b"})
        assert "arg2='b'" in prompt.messages[0].content.text, prompt


async def connected(hub: Client) -> None:
    """Programs take a while to start on a busy machine."""
    for _ in range(600):
        servers = (await hub.call_tool("list_servers")).structured_content["servers"]
        if all(server["connected"] for server in servers):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("some server never connected")


async def all_servers(target, mode: str) -> list[str]:
    """Everything under its prefixes, and the hub's own tools."""
    async with client(target, mode) as hub:
        await connected(hub)
        assert "Echo: hello" in said(await hub.call_tool("everything__echo", {"message": "hello"}))
        return [tool.name for tool in (await hub.list_tools()).tools]


async def main() -> None:
    stdio = StdioServerParameters(command=binary, args=["mcp", "--servers", servers])
    for mode in ("legacy", "auto", "2026-07-28"):
        for server in ("fixture", "older"):
            await one_server(f"{address}/mcp/{server}", mode)
        names = await all_servers(f"{address}/mcp", mode)
        assert await all_servers(stdio, mode) == names, mode
        print(f"the Python client is content, mode {mode}")


asyncio.run(main())

"""A small MCP server for tests, out of Python's standard library: tools that do well, badly, or not at all.

usage: mcp_server.py [ends|mute|endless|TOOL]        TOOL: that one only
"""

import json
import os
import sys
import time

MODE = sys.argv[1] if len(sys.argv) > 1 else ""

NUMBER = {"type": "number"}
TOOLS = {
    "add": ("Adds two numbers", {"a": NUMBER, "b": NUMBER}),
    "weather": ("The weather in a city now", {"city": {"type": "string"}}),
    "variable": ("A variable of the environment", {"name": {"type": "string"}}),
    "fail": ("Fails", {}),
    "refuse": ("Is refused", {}),
    "long": ("Says much", {"bytes": NUMBER}),
    "sleep": ("Never answers", {}),
    "die": ("Ends the server", {}),
    "picture": ("Shows a picture", {}),
    "structured": ("Answers with an object", {}),
}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def described(name):
    description, properties = TOOLS[name]
    return {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties, "required": list(properties)},
    }


def text(text, **fields):
    return {"content": [{"type": "text", "text": text}], **fields}


def call(name, arguments):
    if name == "add":
        return text(str(arguments["a"] + arguments["b"]))
    if name == "weather":
        return text(f"{arguments['city']}: 31 °C, thunderstorm")
    if name == "variable":
        return text(os.environ.get(arguments["name"], "none"))
    if name == "fail":
        return text("the disk is full", isError=True)
    if name == "long":
        return text("ü" * (int(arguments["bytes"]) // 2))
    if name == "sleep":
        time.sleep(600)
    if name == "die":
        print("out of ideas", file=sys.stderr, flush=True)
        sys.exit(3)
    if name == "picture":
        return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}, {"type": "text", "text": "a cat"}]}
    if name == "structured":
        return {"content": [], "structuredContent": {"degrees": 31}}
    raise LookupError(name)


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "test", "version": "1"},
        }
    if method == "tools/list":
        if MODE == "endless":
            return {"tools": [described("add")], "nextCursor": "more"}
        # Two pages.
        names = [name for name in TOOLS if MODE in ("", name)]
        if not params.get("cursor"):
            return {"tools": [described(name) for name in names[:3]], "nextCursor": "3"}
        return {"tools": [described(name) for name in names[3:]]}
    if method == "tools/call":
        return call(params["name"], params.get("arguments", {}))
    raise LookupError(method)


if MODE == "ends":
    print("no licence\n", file=sys.stderr, flush=True)
    sys.exit(1)
print("this is no JSON", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if MODE == "mute" or "id" not in request or "method" not in request:
        continue
    try:
        send({"id": request["id"], "result": answer(request["method"], request.get("params") or {})})
    except LookupError as e:
        send({"id": request["id"], "error": {"code": -32601, "message": f"no such thing: {e.args[0]}"}})

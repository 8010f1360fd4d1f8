"""OpenAI's Python client against `farpast serve`; called by scripts/openai_client.sh with the path of farpast.

Every answer is asked for as a client's program would, and checked for what the client made of it.
"""

import concurrent.futures
import json
import signal
import subprocess
import sys
import time

import openai

MODEL = "smol"
KEY = "secret"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def serve(farpast, model):
    """The process and the address it serves."""
    arguments = ["serve", "-m", model, "--port", "0", "--alias", MODEL, "--api-key", KEY, "-c", "1024", "--no-tune"]
    process = subprocess.Popen([farpast, *arguments], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("serving "):
            return process, line.split()[1]
    raise SystemExit("the server has ended")


def user(text):
    return [{"role": "user", "content": text}]


def refused(error, param, ask):
    try:
        ask()
    except error as e:
        assert e.param == param, e
        assert str(e)
    else:
        raise AssertionError(f"{param}: nothing was refused")


def check(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "farpast"

    def ask(text, **fields):
        settings = {"model": MODEL, "messages": user(text), "max_tokens": 16, "temperature": 0}
        return client.chat.completions.create(**(settings | fields))

    # Whole, and as a stream of the same words.
    question = "What is the capital of France?"
    whole = ask(question)
    text = whole.choices[0].message.content
    assert "Paris" in text, text
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    streamed, usage = "", None
    for chunk in ask(question, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        if chunk.choices:
            streamed += chunk.choices[0].delta.content or ""
    assert streamed == text, (streamed, text)
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16

    # A conversation, parts of text, several answers, a seed, a stop string.
    more = [*user(question), {"role": "assistant", "content": text}, *user([{"type": "text", "text": "And of Italy?"}])]
    assert ask("", messages=more).choices[0].finish_reason in ("stop", "length")
    drawn = {"temperature": 1.0, "seed": 3, "max_tokens": 8}
    several = [choice.message.content for choice in ask("Name a colour.", n=3, **drawn).choices]
    assert several == [ask("Name a colour.", **(drawn | {"seed": 3 + i})).choices[0].message.content for i in range(3)]
    stopped = ask(question, stop=["Paris"]).choices[0]
    assert stopped.finish_reason == "stop" and stopped.message.content == text[: text.index("Paris")]

    completion = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=6, temperature=0)
    assert "four" in completion.choices[0].text, completion
    pieces = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=6, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == completion.choices[0].text

    # Logprobs: greedy takes the likeliest, in a stream as well. Penalties forbid repetitions.
    scored = ask(question, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(token.token for token in scored) == text
    assert all(token.logprob == token.top_logprobs[0].logprob and len(token.top_logprobs) == 2 for token in scored)
    streamed = []
    for chunk in ask(question, stream=True, logprobs=True, top_logprobs=2):
        streamed += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    assert streamed == scored
    five = client.completions.create(model=MODEL, prompt="One, two,", max_tokens=4, temperature=0, logprobs=5).choices[0]
    assert "".join(five.logprobs.tokens) == five.text and all(len(top) == 5 for top in five.logprobs.top_logprobs)
    again = {"prompt": "no, no, no, no, no, no, no,", "max_tokens": 12, "temperature": 0, "model": MODEL}
    plain = client.completions.create(**again).choices[0].text
    penalized = client.completions.create(**again, frequency_penalty=2, presence_penalty=2).choices[0].text
    assert penalized.count("no") < plain.count("no"), (penalized, plain)
    refused(openai.BadRequestError, "logit_bias", lambda: ask("x", logit_bias={"999999": 1}))

    # An answer that a schema describes, whole, in a stream, and as the client's own parser reads it.
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "country": {"enum": ["France", "Italy", "Spain"]},
            "population": {"type": "integer", "minimum": 1, "maximum": 99999999},
        },
        "required": ["city", "country", "population"],
        "additionalProperties": False,
    }
    described = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": schema}}
    place = ask(question, response_format=described, max_tokens=100).choices[0]
    assert place.finish_reason == "stop", place
    place = json.loads(place.message.content)
    assert place["country"] == "France" and set(place) == set(schema["required"]), place
    pieces = ask(question, response_format=described, max_tokens=100, stream=True)
    assert json.loads("".join(piece.choices[0].delta.content or "" for piece in pieces)) == place
    anything = ask("Describe a cat in JSON.", response_format={"type": "json_object"}, max_tokens=200).choices[0]
    assert anything.finish_reason == "length" or isinstance(json.loads(anything.message.content), dict), anything

    # Texts of one meaning are nearer than others; the client decodes base64.
    texts = ["The cat sleeps.", "A cat is asleep.", "Interest rates rose by two percent."]
    [a, b, c] = [item.embedding for item in client.embeddings.create(model=MODEL, input=texts).data]
    product = lambda x, y: sum(i * j for i, j in zip(x, y))
    assert abs(product(a, a) - 1) < 1e-4 and product(a, b) > product(a, c), (product(a, b), product(a, c))

    # Several at once are answered as one by one.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: ask(question).choices[0].message.content, range(4)))
    assert answers == [text] * 4, answers

    refused(openai.BadRequestError, "temperature", lambda: ask("x", temperature=5))
    refused(openai.BadRequestError, "messages", lambda: ask("x", messages=[]))
    refused(openai.BadRequestError, "messages", lambda: ask("word " * 2000))
    # What nobody could follow is refused before anything is computed.
    unsupported = {"name": "x", "schema": {"type": "array", "uniqueItems": True}}
    bad = {"type": "json_schema", "json_schema": unsupported}
    refused(openai.BadRequestError, "response_format", lambda: ask("x", response_format=bad))
    # The model's template says nothing of tools.
    refused(openai.BadRequestError, "tools", lambda: ask("What is the weather in Rome?", tools=[WEATHER]))
    refused(openai.NotFoundError, "model", lambda: ask("x", model="other"))
    refused(openai.AuthenticationError, None, lambda: client.with_options(api_key="wrong").models.list())


def check_tools(client):
    """Of a model whose template knows tools: calls that must be made, of any tool and of one."""
    other = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}

    def ask(**fields):
        asked = {"model": MODEL, "messages": user("How warm is it in Rome?"), "max_tokens": 60, "temperature": 0}
        return client.chat.completions.create(**(asked | {"tools": [WEATHER, other]} | fields))

    answer = ask(tool_choice="required").choices[0]
    assert answer.finish_reason == "tool_calls", answer
    [call] = answer.message.tool_calls
    assert call.function.name == "weather" and "Rome" in json.loads(call.function.arguments)["city"], call
    name, arguments = "", ""
    for chunk in ask(tool_choice={"type": "function", "function": {"name": "weather"}}, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or []:
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
    assert (name, json.loads(arguments)) == ("weather", json.loads(call.function.arguments)), (name, arguments)
    unknown = {"type": "function", "function": {"name": "unknown"}}
    refused(openai.BadRequestError, "tool_choice", lambda: ask(tool_choice=unknown))


def main():
    for model, check_all in [("smollm2", check), ("qwen2.5-coder-0.5b", check_tools)]:
        process, address = serve(sys.argv[1], model)
        try:
            began = time.monotonic()
            check_all(openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0, timeout=240))
            print(f"OpenAI's client {openai.__version__}, {model}: ok, {time.monotonic() - began:.1f} s")
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0, "the server ends cleanly"
        finally:
            process.kill()


main()

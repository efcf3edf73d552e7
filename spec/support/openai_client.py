"""The calls of the official openai client against the server at argv[1]. Prints one line of JSON; a wrong answer is an exception."""
import asyncio
import json
import sys
from typing import List, Literal

import openai
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="sesame", max_retries=0)
model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model
hello = [{"role": "user", "content": "Hello"}]

whole = client.chat.completions.create(model=model, messages=hello, max_tokens=12, temperature=0)
text = whole.choices[0].message.content
assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12

parts, usage = [], None
for chunk in client.chat.completions.create(model=model, messages=hello, max_completion_tokens=12, temperature=0, stream=True,
                                            stream_options={"include_usage": True}):
    if chunk.choices:
        parts.append(chunk.choices[0].delta.content or "")
    usage = chunk.usage or usage
assert "".join(parts) == text and usage.completion_tokens == 12

several = client.chat.completions.create(model=model, messages=hello, max_tokens=5, seed=3, n=2, logprobs=True, top_logprobs=2, stop=["zzz"])
assert len(several.choices) == 2 and len(several.choices[0].logprobs.content[0].top_logprobs) == 2

schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
formed = client.chat.completions.create(model=model, messages=hello, max_tokens=60, temperature=0, response_format={
    "type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}})
assert isinstance(json.loads(formed.choices[0].message.content)["ok"], bool)

old = client.completions.create(model=model, prompt=["Once", "Twice"], max_tokens=4, temperature=0, echo=True, logprobs=None)
assert [c.text[:4] for c in old.choices] == ["Once", "Twic"]

response = client.responses.create(model=model, input="Hello", max_output_tokens=12, temperature=0)
assert response.output_text == text
deltas = [e.delta for e in client.responses.create(model=model, input="Hello", max_output_tokens=12, temperature=0, stream=True)
          if e.type == "response.output_text.delta"]
assert "".join(deltas) == text

with client.responses.stream(model=model, input="Hello", temperature=0, extra_body={"text": {"format": {
        "type": "json_schema", "name": "answer", "schema": schema}}}) as stream:
    assert isinstance(json.loads(stream.get_final_response().output_text)["ok"], bool)
with client.chat.completions.stream(model=model, messages=hello, max_tokens=12, temperature=0) as stream:
    for _ in stream:
        pass

tool = {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"], "additionalProperties": False}}
called = client.chat.completions.create(model=model, messages=hello, max_tokens=90, temperature=0, tool_choice="required",
                                        tools=[{"type": "function", "function": tool}], parallel_tool_calls=False)
call = called.choices[0].message.tool_calls[0]
assert call.function.name == "add" and json.loads(call.function.arguments)["a"] <= 9
asked = {"model": model, "input": "Hello", "temperature": 0, "max_output_tokens": 90, "tool_choice": "required",
         "parallel_tool_calls": False, "tools": [{"type": "function", "strict": True, **tool}]}
first = client.responses.create(**asked)
assert first.output[0].type == "function_call" and json.loads(first.output[0].arguments)["a"] <= 9
with client.responses.stream(**asked) as stream:
    assert stream.get_final_response().output[0].arguments == first.output[0].arguments
then = client.responses.create(model=model, max_output_tokens=5, input=[
    {"role": "user", "content": "Hello"}, *[item.to_dict() for item in first.output],
    {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "3"}])
assert then.output[0].type == "message"



class Answer(BaseModel):
    kind: Literal["big", "small"]
    sizes: List[Literal[1, 2]] = Field(max_length=2)


class Add(BaseModel):
    """Adds."""
    a: Literal[1, 2]


parsed = client.chat.completions.parse(model=model, messages=hello, temperature=0, max_tokens=100, response_format=Answer)
assert parsed.choices[0].message.parsed.kind in ("big", "small")
with client.chat.completions.stream(model=model, messages=hello, temperature=0, max_tokens=100, response_format=Answer) as stream:
    assert stream.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed
assert client.responses.parse(model=model, input="Hello", temperature=0, max_output_tokens=100, text_format=Answer).output_parsed.kind
adds = {"model": model, "messages": hello, "temperature": 0, "max_tokens": 90, "tools": [openai.pydantic_function_tool(Add)],
        "tool_choice": {"type": "function", "function": {"name": "Add"}}}
assert client.chat.completions.parse(**adds).choices[0].message.tool_calls[0].function.parsed_arguments.a in (1, 2)
ids, arguments, reason = [], "", None
for chunk in client.chat.completions.create(**adds, stream=True):
    for delta in chunk.choices[0].delta.tool_calls or []:
        ids += [delta.id] if delta.id else []
        arguments += delta.function.arguments or ""
    reason = chunk.choices[0].finish_reason or reason
assert len(ids) == 1 and json.loads(arguments)["a"] in (1, 2) and reason == "tool_calls"

drawn = {"model": model, "messages": hello, "max_tokens": 6, "seed": 1, "n": 3}
texts = ["", "", ""]
for chunk in client.chat.completions.create(**drawn, stream=True, logprobs=True):
    for choice in chunk.choices:
        texts[choice.index] += choice.delta.content or ""
assert texts == [c.message.content for c in client.chat.completions.create(**drawn).choices] and len(set(texts)) > 1
same = client.completions.create(model=model, prompt=[[5, 6], [7]], max_tokens=3, temperature=0, logit_bias={"9": 100}, logprobs=2, n=2)
assert len(same.choices) == 4 and all(len(set(c.logprobs.tokens)) == 1 for c in same.choices)
cut = client.chat.completions.create(model=model, messages=hello, max_tokens=50, temperature=0, stop=list("aeiou"), metadata={"a": "b"})
assert not set("aeiou") & set(cut.choices[0].message.content)


async def together():
    """Twelve requests at once, and a stream that is left."""
    many = openai.AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="sesame", max_retries=0)
    asked = [many.chat.completions.create(model=model, messages=hello, max_tokens=12, temperature=0) for _ in range(12)]
    assert {answer.choices[0].message.content for answer in await asyncio.gather(*asked)} == {text}
    left = await many.chat.completions.create(model=model, messages=hello, max_tokens=400, stream=True)
    async for _ in left:
        break
    await left.close()


asyncio.run(together())
for wrong, kind in [({"model": "other"}, openai.NotFoundError), ({"frequency_penalty": 1}, openai.BadRequestError),
                    ({"temperature": "warm"}, openai.BadRequestError), ({"messages": []}, openai.BadRequestError)]:
    try:
        client.chat.completions.create(**{"model": model, "messages": hello, **wrong})
        raise SystemExit("no error for %r" % wrong)
    except kind as e:
        assert e.param in wrong
try:
    openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="wrong", max_retries=0).models.list()
    raise SystemExit("no error for a wrong key")
except openai.AuthenticationError:
    pass
print(json.dumps({"ok": True, "text": text, "version": openai.__version__}))

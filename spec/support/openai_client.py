"""The calls of the official openai client against the server at argv[1]. Prints one line of JSON; a wrong answer is an exception."""
import json
import sys

import openai

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

for wrong, kind in [({"model": "other"}, openai.NotFoundError), ({"frequency_penalty": 1}, openai.BadRequestError)]:
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

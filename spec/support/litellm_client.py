"""The calls of litellm against the server at argv[1]. Prints one line of JSON; a wrong answer is an exception."""
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it asks the network else

import litellm  # noqa: E402

where = {"api_base": sys.argv[1] + "/v1", "api_key": "sesame", "model": "openai/llama-q8_0", "num_retries": 0}
hello = [{"role": "user", "content": "Hello"}]
whole = litellm.completion(messages=hello, max_tokens=12, temperature=0, **where)
text = whole.choices[0].message.content
parts = [c.choices[0].delta.content or "" for c in litellm.completion(messages=hello, max_tokens=12, temperature=0, stream=True, **where)]
assert "".join(parts) == text
schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
formed = litellm.completion(messages=hello, max_tokens=60, temperature=0, response_format={
    "type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}, **where)
assert isinstance(json.loads(formed.choices[0].message.content)["ok"], bool)
print(json.dumps({"ok": True, "text": text}))

"""Calls for embeddings of the official openai client against the server at argv[1]. Prints one line of JSON; a wrong answer is an exception."""
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="sesame", max_retries=0)
model = client.models.list().data[0].id
texts = ["a cat", "a dog and a cat"]
coded = client.embeddings.create(model=model, input=texts)  # the client asks for base64 by itself
plain = client.embeddings.create(model=model, input=texts, encoding_format="float")
for a, b in zip(coded.data, plain.data):
    assert len(a.embedding) == len(b.embedding) > 0 and max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-6
assert [d.index for d in coded.data] == [0, 1] and coded.usage.total_tokens == plain.usage.total_tokens > 0
one = client.embeddings.create(model=model, input=texts[0], user="somebody")
assert max(abs(x - y) for x, y in zip(one.data[0].embedding, coded.data[0].embedding)) < 1e-5
for wrong in [{"input": []}, {"dimensions": 1 << 20}, {"encoding_format": "octal"}]:
    try:
        client.embeddings.create(**{"model": model, "input": "a", **wrong})
        raise SystemExit("no error for %r" % wrong)
    except openai.BadRequestError as e:
        assert e.param in wrong, (e.param, wrong)
try:
    client.chat.completions.create(model=model, messages=[{"role": "user", "content": "a"}])
    raise SystemExit("no error for a chat with a model of embeddings")
except openai.BadRequestError:
    pass
print(json.dumps({"ok": True}))

"""Random schemas and values: what `ane grammar` accepts beside the jsonschema package (draft 2020-12).

usage: scripts/grammar/random_schemas.py ANE COUNT [SEED]
Each schema has some keywords at random, nested, with $defs and references. Of the values some are random and some are made for the
schema. An invalid value that is accepted is printed and ends the script with code 1. Numbers are written without exponents.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

import jsonschema

VALUES = 24
NAMES = ["a", "b", "ab", "x-1", "name", "0"]
TEXTS = ["", "a", "b", "ab", "ba", "aab", "x-1", "name", "0", "12", "\u00e9", "a b", 'q"', "abcabc"]
PATTERNS = ["^a", "b$", "^[a-b]*$", "^x-", "[0-9]+", "^(ab|ba)+$", "^.{2}$", "a|b"]
TYPES = ["string", "number", "integer", "boolean", "null", "array", "object"]


def value(r, depth=0):
    kind = r.randrange(6 if depth > 2 else 8)
    if kind == 0:
        return r.choice([None, True, False])
    if kind == 1:
        return r.choice([0, 1, 2, 3, 7, -1, 10, 15])
    if kind == 2:
        return r.choice([0.5, 1.5, -0.25, 2.75, 1.0, 10.1])
    if kind < 6:
        return r.choice(TEXTS)
    if kind == 6:
        return [value(r, depth + 1) for _ in range(r.randrange(4))]
    return {name: value(r, depth + 1) for name in r.sample(NAMES, r.randrange(4))}


def schema(r, depth=0):
    if depth > 3 or r.random() < 0.1:
        return r.choice([True, True, False, {"type": r.choice(TYPES)}, {"$ref": "#/$defs/" + r.choice("xyz")}])

    def sub():
        return schema(r, depth + 1)

    def small():
        return r.randrange(4)

    keywords = {
        "type": lambda: r.choice([r.choice(TYPES), r.sample(TYPES, r.randrange(1, 4))]),
        "enum": lambda: [value(r) for _ in range(r.randrange(1, 5))],
        "const": lambda: value(r),
        "pattern": lambda: r.choice(PATTERNS),
        "minLength": small,
        "maxLength": lambda: r.randrange(5),
        "minimum": lambda: r.choice([-1, 0, 1, 0.5, 2]),
        "maximum": lambda: r.choice([0, 2, 3.5, 10]),
        "exclusiveMinimum": lambda: r.choice([-1, 0, 1]),
        "exclusiveMaximum": lambda: r.choice([2, 7, 10.5]),
        "multipleOf": lambda: r.choice([1, 2, 0.5, 0.25, 3]),
        "minItems": small,
        "maxItems": small,
        "prefixItems": lambda: [sub() for _ in range(r.randrange(1, 3))],
        "items": sub,
        "contains": sub,
        "minContains": small,
        "maxContains": small,
        "uniqueItems": lambda: r.random() < 0.8,
        "properties": lambda: {name: sub() for name in r.sample(NAMES, r.randrange(1, 4))},
        "patternProperties": lambda: {p: sub() for p in r.sample(PATTERNS, r.randrange(1, 3))},
        "additionalProperties": sub,
        "required": lambda: r.sample(NAMES, r.randrange(1, 3)),
        "propertyNames": sub,
        "dependentRequired": lambda: {r.choice(NAMES): r.sample(NAMES, 2)},
        "dependentSchemas": lambda: {r.choice(NAMES): sub()},
        "minProperties": small,
        "maxProperties": small,
        "unevaluatedProperties": sub,
        "unevaluatedItems": sub,
        "allOf": lambda: [sub() for _ in range(r.randrange(1, 3))],
        "anyOf": lambda: [sub() for _ in range(r.randrange(1, 4))],
        "oneOf": lambda: [sub() for _ in range(r.randrange(1, 4))],
        "not": sub,
        "if": sub,
        "then": sub,
        "else": sub,
        "$ref": lambda: "#/$defs/" + r.choice("xyz"),
    }
    out = {name: keywords[name]() for name in r.sample(sorted(keywords), r.randrange(1, 5))}
    if "type" not in out and r.random() < 0.3:
        out["type"] = r.choice(TYPES)
    return out


def fit(r, s, root, depth=0):
    """A value that follows some of the schema's keywords, so that it is often valid."""
    if not isinstance(s, dict) or depth > 6:
        return value(r, depth)
    if "$ref" in s and r.random() < 0.7:
        return fit(r, root["$defs"][s["$ref"][-1]], root, depth + 1)
    if "const" in s:
        return s["const"]
    if "enum" in s:
        return r.choice(s["enum"])
    for name in ("anyOf", "oneOf", "allOf"):
        if name in s and r.random() < 0.7:
            return fit(r, r.choice(s[name]), root, depth + 1)
    if "properties" in s or "required" in s or "patternProperties" in s or s.get("type") == "object":
        out = {}
        for name in NAMES:
            if name in s.get("required", []) or (name in s.get("properties", {}) and r.random() < 0.8) or r.random() < 0.15:
                out[name] = fit(r, s.get("properties", {}).get(name, s.get("additionalProperties", True)), root, depth + 1)
        return out
    if "items" in s or "prefixItems" in s or "contains" in s or s.get("type") == "array":
        items = [fit(r, p, root, depth + 1) for p in s.get("prefixItems", [])]
        rest = s.get("items", True) if r.random() < 0.5 else s.get("contains", True)
        return items + [fit(r, rest, root, depth + 1) for _ in range(r.randrange(3))]
    return value(r, depth)


def main():
    ane, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1
    r = random.Random(seed)
    refused = values = valid = rejected = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("schema.json", "instances.jsonl")]
        for _ in range(count):
            root = schema(r)
            root = root if isinstance(root, dict) else {"allOf": [root]}
            root["$defs"] = {name: schema(r, 2) for name in "xyz"}
            judge = jsonschema.Draft202012Validator(root)
            texts, wanted = [], []
            for i in range(VALUES):
                v = value(r) if i % 3 == 0 else fit(r, root, root)
                try:
                    wanted.append(judge.is_valid(v))
                except BaseException as e:  # a reference that leads to itself; its cache panics there with a class of its own
                    if isinstance(e, KeyboardInterrupt):
                        raise
                    continue
                texts.append(json.dumps(v, ensure_ascii=r.random() < 0.5))
            with open(paths[0], "w") as out:
                json.dump(root, out)
            with open(paths[1], "w") as out:
                out.writelines(json.dumps(t) + "\n" for t in texts)
            command = [ane, "grammar", "--json-schema", paths[0], "--instances", paths[1], "--json"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                refused += 1
                continue
            for text, want, got in zip(texts, wanted, json.loads(done.stdout)["accepted"]):
                values, valid = values + 1, valid + want
                rejected += want and not got
                wrong += got and not want
                if want != got:
                    print("INVALID, ACCEPTED:" if got else "valid, rejected:", json.dumps(root), text)
    print(f"seed {seed}: {count} schemas, {refused} refused; {values} values, {valid} valid; invalid accepted {wrong}, valid rejected {rejected}")
    sys.exit(1 if wrong else 0)


main()

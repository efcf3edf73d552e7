"""JSON-Schema-Test-Suite, draft 2020-12, by `ane grammar`: which schemas are refused, which values are judged wrongly.

usage: scripts/grammar/suite.py ANE FOLDER [--list]
FOLDER is a copy of https://github.com/json-schema-org/JSON-Schema-Test-Suite. Numbers keep their spelling. A schema that cannot be
enforced is refused, which is no error; an invalid value that is accepted is one, and ends the script with code 1. --list names
what is refused, and which valid values are rejected: among these are formats, which are enforced here.
"""
import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile


class Number(str):
    """A number as it is written."""


def write(value):
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(json.dumps(name) + ": " + write(item) for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write, value)) + "]"
    return json.dumps(value)


def judge(ane, group):
    """What `ane grammar` says: a list of booleans, or the text of its error."""
    with tempfile.TemporaryDirectory() as folder:
        schema, instances = os.path.join(folder, "schema.json"), os.path.join(folder, "instances.jsonl")
        with open(schema, "w") as out:
            out.write(write(group["schema"]))
        with open(instances, "w") as out:
            out.writelines(json.dumps(write(test["data"])) + "\n" for test in group["tests"])
        done = subprocess.run([ane, "grammar", "--json-schema", schema, "--instances", instances, "--json"], capture_output=True,
                              text=True, timeout=120)
    return done.stderr.strip() if done.returncode else json.loads(done.stdout)["accepted"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ane")
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--list", action="store_true")
    a = p.parse_args()
    root = a.folder / "tests" / "draft2020-12"
    files = sorted(root.rglob("*.json"))
    if not files:
        sys.exit("no tests in %s" % root)
    counts, wrong = {part: collections.Counter() for part in ("required", "optional")}, False
    for file in files:
        name = file.relative_to(root)
        count = counts["optional" if name.parts[0] == "optional" else "required"]
        for group in json.loads(file.read_text(), parse_int=Number, parse_float=Number):
            said = judge(a.ane, group)
            if isinstance(said, str):
                count["schemas refused"] += 1
                count["tests of them"] += len(group["tests"])
                if a.list:
                    print("refused: %s: %s: %s" % (name, group["description"], said))
                continue
            count["schemas"] += 1
            for test, accepted in zip(group["tests"], said):
                if accepted == test["valid"]:
                    count["right"] += 1
                elif accepted:
                    count["invalid accepted"] += 1
                    print("INVALID ACCEPTED: %s: %s: %s: %s" % (name, group["description"], test["description"], write(test["data"])))
                    wrong = True
                else:
                    count["valid rejected"] += 1
                    if a.list:
                        print("rejected: %s: %s: %s: %s" % (name, group["description"], test["description"], write(test["data"])))
    for part, count in counts.items():
        print(part + ": " + ", ".join("%d %s" % (n, what) for what, n in sorted(count.items())))
    sys.exit(wrong)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Masks of ane beside those of llguidance, in turns, over schemas with a valid instance each.

usage, from the top folder: python3 bench/masks.py MODEL TOKENIZER.json SCHEMAS.jsonl[.gz] [--count 150] [--seed 1] [--turns 5] [--all]

TOKENIZER.json is the model's tokenizer for llguidance; from a GGUF file: AutoTokenizer.from_pretrained(FOLDER, gguf_file=FILE) of
transformers, and backend_tokenizer.to_str(). With a tokenizer that is a Python function, llguidance's masks take twice as long.

A line of SCHEMAS has "schema" and "tests", a list of {"valid", "text"} (as MaskBench). Of the schemas that both compile, `count` are
chosen at random (--all: every one), and of each the first valid instance that both accept. Both programs get the token ids that ane's
tokenizer gives. The times include the call from Lua or Python. Each turn runs one program over all schemas, then the other. llguidance's masks are those of fill_next_token_bitmask, ane's those of matcher:count. First mask: from the schema's text on.
"""
import argparse, gc, gzip, json, random, statistics, subprocess, time

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("tokenizer")
parser.add_argument("schemas")
parser.add_argument("--count", type=int, default=150)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--turns", type=int, default=5)
parser.add_argument("--all", action="store_true")
args = parser.parse_args()

import llguidance
import llguidance.numpy


class Ane:
    """bench/masks.lua, which answers a line of JSON for each line."""

    def __init__(self):
        self.process = subprocess.Popen(["lua5.4", "bench/masks.lua", args.model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


ane = Ane()
tokenizer = llguidance.LLTokenizer(args.tokenizer, n_vocab=ane.ask(what="size")["size"])
mask = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)


def peer(schema, ids):
    """Microseconds of the first mask and of each mask; None: refused, or the ids are not accepted."""
    started = time.perf_counter()
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(schema))
    if matcher.get_error():
        return None
    llguidance.numpy.fill_next_token_bitmask(matcher, mask, 0)
    first, times = (time.perf_counter() - started) * 1e6, []
    matcher.reset()
    for token in ids:
        started = time.perf_counter()
        llguidance.numpy.fill_next_token_bitmask(matcher, mask, 0)
        times.append((time.perf_counter() - started) * 1e6)
        if not matcher.consume_token(token):
            return None
    return None if matcher.get_error() else (first, times)


def mine(schema, ids):
    answer = ane.ask(what="time", schema=schema, ids=ids)
    return (answer["first"], answer["times"]) if "first" in answer else None


def choose():
    with (gzip.open if args.schemas.endswith(".gz") else open)(args.schemas, "rt") as file:
        rows = [json.loads(line) for line in file]
    if not args.all:
        random.Random(args.seed).shuffle(rows)
    chosen = []
    for row in rows:
        schema = row["schema"] if isinstance(row["schema"], str) else json.dumps(row["schema"])
        for test in row["tests"]:
            if not test["valid"]:
                continue
            ids = ane.ask(what="encode", text=test["text"])["ids"]
            if len(ids) <= 2000 and mine(schema, ids) and peer(schema, ids):
                chosen.append((schema, ids))
                break
        if not args.all and len(chosen) == args.count:
            break
    return chosen


def figures(times):
    times = sorted(times)
    at = lambda share: times[min(len(times) - 1, int(share * len(times)))]
    return statistics.mean(times), at(0.5), at(0.99), times[-1]


cases = choose()
print(len(cases), "schemas,", sum(len(ids) for _, ids in cases), "masks")
gc.disable()
ratios = {}
for turn in range(args.turns):
    all_times = {"ane": [], "llguidance": []}
    firsts = {"ane": [], "llguidance": []}
    pair = [("ane", mine), ("llguidance", peer)]
    for name, run in pair if turn % 2 == 0 else pair[::-1]:
        for schema, ids in cases:
            first, times = run(schema, ids)
            all_times[name] += times
            firsts[name].append(first)
    rows = {name: (*figures(all_times[name]), *[figures(firsts[name])[k] for k in (0, 2)]) for name in all_times}
    for k, column in enumerate(["mean", "median", "p99", "worst", "first mean", "first p99"]):
        ratios.setdefault(column, []).append((rows["ane"][k], rows["llguidance"][k], rows["ane"][k] / rows["llguidance"][k]))
for column, turns in ratios.items():
    middle = [statistics.median(t[k] for t in turns) for k in range(3)]
    print(f"{column:11} ane {middle[0]:8.1f} us, llguidance {middle[1]:8.1f} us, ratio {middle[2]:.2f}")

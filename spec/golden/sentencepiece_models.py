#!/usr/bin/env python3
"""Writes spec/fixtures/tokenizer/sentencepiece.json: small SentencePiece models, and what `sentencepiece` makes of texts.

usage: sentencepiece_models.py [OUT.json] [--random N SEED] [--real-rules]   (sentencepiece 0.2)

`models` maps names to files in base64, `texts` is shared, `results[name]` has for each text [ids, decoded, offsets in bytes].
--real-rules adds models with the nmt_nfkc rules, which are too large to commit.
"""
import base64
import importlib.util
import io
import json
import os
import sys

import sentencepiece as spm

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("pipelines", os.path.join(HERE, "tokenizer_pipelines.py"))
pipelines = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pipelines)


def train(**options):
    rules = os.path.join("/tmp", f"rules{os.getpid()}.tsv")
    with open(rules, "w") as f: f.write("FB01\t66 69\nA\t20\n9\t20\nA0\t20\nFF21\t41\n65 301\tE9\n200B\t\n")
    out = io.BytesIO()
    base = dict(vocab_size=300, hard_vocab_limit=False, normalization_rule_tsv=rules, minloglevel=2, character_coverage=0.98)
    if "normalization_rule_name" in options: del base["normalization_rule_tsv"]
    spm.SentencePieceTrainer.train(sentence_iterator=iter(s for s in pipelines.CORPUS if s), model_writer=out, **{**base, **options})
    os.remove(rules)
    return out.getvalue()


def models(real):
    out = {}
    for kind, size in (("unigram", 420), ("bpe", 420)):
        k = dict(model_type=kind, vocab_size=size)
        out[kind] = train(**k)
        out[kind + "_bytes"] = train(**{**k, "vocab_size": 680}, byte_fallback=True, normalization_rule_name="identity")
        out[kind + "_keep"] = train(**k, remove_extra_whitespaces=False, normalization_rule_name="identity")
        out[kind + "_bare"] = train(**k, add_dummy_prefix=False, remove_extra_whitespaces=False, split_digits=True)
        out[kind + "_suffix"] = train(**k, treat_whitespace_as_suffix=True)
        out[kind + "_symbols"] = train(**k, user_defined_symbols=["<mask>", "word", "the", "\u2581of"], control_symbols=["<sep>", "[CLS]"], pad_id=3, unk_surface=" ?? ")
        if real: out[kind + "_nfkc"] = train(**k, normalization_rule_name="nmt_nfkc")
        if real: out[kind + "_cf"] = train(**k, normalization_rule_name="nmt_nfkc_cf", byte_fallback=True)
    return out


def main():
    args = sys.argv[1:]
    n = seed = 0
    if "--random" in args:
        i = args.index("--random")
        n, seed = int(args[i + 1]), int(args[i + 2])
        del args[i:i + 3]
    real = "--real-rules" in args
    args = [a for a in args if a != "--real-rules"]
    path = args[0] if args else os.path.join(pipelines.FOLDER, "sentencepiece.json")
    texts = [t for t in pipelines.TEXTS + list(pipelines.random_texts(n, seed)) if "\0" not in t]
    files, results = models(real), {}
    for name, blob in files.items():
        sp = spm.SentencePieceProcessor(model_proto=blob)
        rows = []
        for text in texts:
            p = sp.encode(text, return_type="proto")
            ids = [x.id for x in p.pieces]
            rows.append([ids, sp.decode(ids), [y for x in p.pieces for y in (x.begin, x.end)] if len(text) < 40 or n else 0])
        results[name] = rows
    with open(path, "w") as f:
        doc = {"models": {k: base64.b64encode(v).decode() for k, v in files.items()}, "texts": texts, "results": results}
        f.write(json.dumps(doc, ensure_ascii=False, separators=(",", ":")).replace('"],"', '"],\n"').replace("]]],", "]]],\n") + "\n")
    print(len(files), "models,", os.path.getsize(path), "bytes")


if __name__ == "__main__": main()

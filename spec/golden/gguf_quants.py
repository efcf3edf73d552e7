#!/usr/bin/env python3
"""Checks and extends spec/fixtures/gguf/gguf_quants.{json,bin}: stored blocks of every quant type and what they mean.

Run from the top folder, with gguf 0.19 and numpy, whose decoders are ggml's (gguf-py/gguf/quants.py):
  python3 spec/golden/gguf_quants.py                  computes all cases again and says which differ
  python3 spec/golden/gguf_quants.py add IQ4_XS       appends a case of a type that gguf knows
  python3 spec/golden/gguf_quants.py add my_type.py   appends a case of a type of one's own: a file with TYPE, ID (the GGUF id),
                                                      BLOCK (elements), BYTES (of a block), and decode(raw), which gives float32
                                                      [blocks, BLOCK] for uint8 [blocks, BYTES]
"dequantize" cases hold blocks and their values, "quantize" cases values and the blocks that ggml makes of them. Both parts of a case
begin at multiples of 32 bytes.
"""
import json
import runpy
import sys

import gguf
import numpy as np

FOLDER = "spec/fixtures/gguf/"
BLOCKS = 6


class Known:
    """A type that gguf knows."""

    def __init__(self, number):
        self.type = gguf.GGMLQuantizationType(number)
        self.block, self.bytes = gguf.GGML_QUANT_SIZES[self.type]

    def decode(self, raw):
        return gguf.quants.dequantize(raw, self.type)

    def encode(self, values):
        return gguf.quants.quantize(values, self.type).view(np.uint8)


def part(data, case, name, count, dtype):
    """One part of a case as an array of its own."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer(data[case[name]:case[name] + size], dtype)


def check(facts, data):
    wrong = 0
    for kind in ("dequantize", "quantize"):
        for case in facts[kind]:
            raw = part(data, case, "raw_offset", case["raw_bytes"], np.uint8).reshape(1, -1)
            values = part(data, case, "values_offset", case["n_values"], np.float32).reshape(1, -1)
            try:
                known = Known(case["ggml_id"])
                same = np.array_equal(known.decode(raw), values) if kind == "dequantize" else np.array_equal(known.encode(values), raw)
            except (NotImplementedError, ValueError):
                print(f"{kind} {case['type']}: unknown to gguf")
                continue
            wrong += not same
            print(f"{kind} {case['type']}: {'same' if same else 'DIFFERS'}")
    return wrong


def random_blocks(block_bytes, decode):
    """Blocks of random bytes whose values are finite."""
    rng = np.random.default_rng(7)
    kept = []
    while len(kept) < BLOCKS:
        raw = rng.integers(0, 256, (1, block_bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            if np.isfinite(decode(raw)).all():
                kept.append(raw)
    return np.concatenate(kept)


def append(data, piece):
    data.extend(b"\0" * (-len(data) % 32))
    start = len(data)
    data.extend(piece)
    return start


def add(facts, data, what):
    if what.endswith(".py"):
        own = runpy.run_path(what)
        name, number, block, size, decode = own["TYPE"], own["ID"], own["BLOCK"], own["BYTES"], own["decode"]
    else:
        known = Known(gguf.GGMLQuantizationType[what])
        name, number, block, size, decode = what, int(known.type), known.block, known.bytes, known.decode
    raw = random_blocks(size, decode)
    values = np.ascontiguousarray(decode(raw), np.float32)
    facts["dequantize"].append({
        "type": name, "ggml_id": number, "block_size": block, "type_size": size, "n_blocks": BLOCKS,
        "raw_offset": append(data, raw.tobytes()), "raw_bytes": raw.size,
        "values_offset": append(data, values.tobytes()), "n_values": values.size,
    })


def main(args):
    with open(FOLDER + "gguf_quants.json", encoding="utf-8") as file:
        facts = json.load(file)
    with open(FOLDER + facts["file"], "rb") as file:
        data = bytearray(file.read())
    if not args:
        return check(facts, data)
    if args[0] != "add" or len(args) != 2:
        sys.exit(__doc__)
    add(facts, data, args[1])
    with open(FOLDER + facts["file"], "wb") as file:
        file.write(data)
    with open(FOLDER + "gguf_quants.json", "w", encoding="utf-8") as file:
        json.dump(facts, file, indent=1)
        file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

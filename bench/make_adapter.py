#!/usr/bin/env python3
"""Writes a LoRA adapter with random factors for a GGUF file, as GGUF, to time it. Needs: pip install gguf.

    python3 bench/make_adapter.py MODEL.gguf ADAPTER.gguf [--rank 16]

Every quantised matrix of the layers gets one, experts excepted; A [rank, inputs] and B [rows, rank] are in fp16.
"""
import argparse

import gguf
import numpy as np


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("adapter")
    ap.add_argument("--rank", type=int, default=16)
    a = ap.parse_args()
    reader, random = gguf.GGUFReader(a.model), np.random.default_rng(17)
    out = gguf.GGUFWriter(a.adapter, reader.fields["general.architecture"].contents())
    out.add_string("general.type", "adapter")
    out.add_string("adapter.type", "lora")
    out.add_float32("adapter.lora.alpha", float(a.rank))
    for t in reader.tensors:
        if not t.name.startswith("blk.") or len(t.shape) != 2 or int(t.tensor_type) < 2:  # 0 and 1: fp32, fp16
            continue
        inputs, rows = map(int, t.shape)
        for name, shape in ((".lora_a", (a.rank, inputs)), (".lora_b", (rows, a.rank))):
            out.add_tensor(t.name + name, (0.01 * random.standard_normal(shape)).astype(np.float16))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    main()

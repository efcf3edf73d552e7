"""Converts a language model with Apple's coreai-torch, and prints time, peak memory and size of the asset: the peer of
`ane export MODEL OUT --target coreai --weights fp16`.

Usage: python bench/convert_torch.py FOLDER OUT.aimodel TOKENS. FOLDER has a config.json, and safetensors or none (then the weights are zeros
and random, which changes neither size nor time much). The function `main` takes input_ids [1, TOKENS] and gives the logits; it has no cache,
so it is less than the functions of ane's asset. Needs coreai-core, coreai-torch, torch and transformers.
"""
import os
import resource
import sys
import time
from pathlib import Path

import torch
from coreai_torch import TorchConverter, get_decomp_table
from transformers import AutoConfig, AutoModelForCausalLM

folder, out, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
begin = time.monotonic()


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


def load():
    if list(Path(folder).glob("*.safetensors")):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, attn_implementation="eager")
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float16, attn_implementation="eager")


def report(what):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what}: {time.monotonic() - begin:.1f} s, peak {peak:.0f} MB", flush=True)


report("imported")
with torch.no_grad():
    model = Logits(load().eval())
    report("loaded")
    program = torch.export.export(model, (torch.zeros(1, tokens, dtype=torch.int64),)).run_decompositions(get_decomp_table())
    report("exported by torch")
    converter = TorchConverter(mode=TorchConverter.Mode.RELEASE)
    converter.add_exported_program(program, input_names=["input_ids"], output_names=["logits"], entrypoint_name="main")
    program = converter.to_coreai()
    report("converted")
    program.save_asset(Path(out))
report("saved")
print("bytes:", sum(f.stat().st_size for f in Path(out).rglob("*") if f.is_file()))
os._exit(0)  # the library may abort when it is unloaded

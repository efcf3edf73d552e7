#!/usr/bin/env python3
"""Makes spec/fixtures/hf/lora_{gpt_oss,qwen3_moe,privacy_filter,mixtral}: adapters of stacked experts (target_parameters of PEFT), and what
PEFT computes with them, merged in float32 into the folders BASE-odd.

Run from the top folder: python3 spec/golden/expert_adapters.py [NAME ...]  (torch, transformers 5, peft 0.21, safetensors)
"""
import json
import os
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

FOLDER = "spec/fixtures/hf"
BOTH = ["experts.gate_up_proj", "experts.down_proj"]
IDS = [5, 17, 40, 9, 33, 2, 21, 44, 11, 3, 28]
CASES = {
    "gpt_oss": (AutoModelForCausalLM, dict(
        r=3, lora_alpha=5, target_parameters=BOTH, target_modules=["q_proj"], rank_pattern={"experts.gate_up_proj": 2},
        alpha_pattern={"layers.1.mlp.experts.down_proj": 9})),
    "qwen3_moe": (AutoModelForCausalLM, dict(
        r=2, lora_alpha=3, use_rslora=True, target_modules=[],
        target_parameters=["experts.down_proj", "model.layers.2.mlp.experts.gate_up_proj", "gate.weight"])),
    "privacy_filter": (AutoModelForTokenClassification, dict(r=1, lora_alpha=2, target_modules=[], target_parameters=BOTH)),
    "mixtral": (AutoModelForCausalLM, dict(r=2, lora_alpha=3, target_modules=[], target_parameters=["gate.weight", *BOTH])),
}


def logits(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].float()


def make(name, cls, config, seed):
    out = f"{FOLDER}/lora_{name}"
    base = cls.from_pretrained(f"{FOLDER}/{name}-odd", dtype=torch.float32, attn_implementation="eager",
                               experts_implementation="eager").eval()
    plain = logits(base)
    model = peft.get_peft_model(base, peft.LoraConfig(**config)).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key:
                p.copy_(p.normal_(0, 0.7 / p.shape[-1] ** 0.5).bfloat16().float())
    model.save_pretrained(out)
    os.remove(f"{out}/README.md")
    path = f"{out}/adapter_config.json"
    with open(path) as f:
        saved = json.load(f)
    kept = ("peft_type", "target_modules", "target_parameters", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias")
    with open(path, "w") as f:
        json.dump({k: sorted(saved[k]) if k.startswith("target_") and saved[k] else saved[k] for k in kept}, f, indent=1)
    want = logits(model.merge_and_unload())
    print(name, "moves by", float((want - plain).abs().max()))
    with open(f"{out}/golden.json", "w") as f:
        json.dump({"kind": "lora", "base": f"hf/{name}-odd",
                   "computed_with": f"transformers {transformers.__version__}, peft {peft.__version__}, float32, merged",
                   "prompts": [{"name": "all", "input_ids": IDS}]}, f, indent=1)
    save_file({"all.logits": want}, f"{out}/golden.safetensors")


for number, (name, (cls, config)) in enumerate(CASES.items()):
    if not sys.argv[1:] or name in sys.argv[1:]:
        make(name, cls, config, number)

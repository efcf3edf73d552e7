#!/usr/bin/env python3
"""Makes spec/fixtures/check: small models with goldens of every layer and block by examples/make_golden.py: two as GGUF, and
the folder that examples/port_a_model.lua ports.

Run from the top folder: python3 spec/golden/check_models.py  (torch, transformers 5, gguf 0.19, safetensors)
"""
import os
import sys

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM

sys.path += ["examples", "spec/golden"]
import make_golden
import tiny_models

tiny_models.FOLDER = "spec/fixtures/check"
PROMPTS = [[5, 60, 17, 3, 44], [(7 * i * i + 3 * i) % 79 for i in range(24)]]


def finish(name):
    for kind in ("json", "safetensors"):
        os.rename(f"{tiny_models.FOLDER}/golden.{kind}", f"{tiny_models.FOLDER}/{name}.golden.{kind}")


def llama():
    """Three layers, biases everywhere, untied."""
    cfg = LlamaConfig(vocab_size=80, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                      head_dim=8, rms_norm_eps=1e-5, attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
                      max_position_embeddings=512, rope_parameters={"rope_type": "default", "rope_theta": 100.0}, attn_implementation="eager")
    model = tiny_models.spread(LlamaForCausalLM(cfg), 11, 1.5)
    tiny_models.write("llama", "llama", model, cfg, lambda w: (w.add_rope_freq_base(100.0), w.add_rope_dimension_count(8)))
    make_golden.make(model, tiny_models.FOLDER, PROMPTS, 8)
    finish("llama")


def gemma3():
    """Three sliding layers, window 6, capped logits, scaled embedding, q and k normed before rope."""
    rope = {"rope_type": "default", "rope_theta": 100.0}
    cfg = Gemma3TextConfig(vocab_size=80, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
                           head_dim=8, query_pre_attn_scalar=8, rms_norm_eps=1e-6, sliding_window=6, layer_types=["sliding_attention"] * 3,
                           rope_parameters={"sliding_attention": rope, "full_attention": rope}, final_logit_softcapping=9.0,
                           tie_word_embeddings=True, max_position_embeddings=512, attn_implementation="eager")
    model = tiny_models.spread(Gemma3ForCausalLM(cfg), 12, 1.2)

    def extra(w):
        w.add_rope_freq_base(100.0)
        w.add_float32("gemma3.rope.freq_base_swa", 100.0)
        w.add_sliding_window(6)
        w.add_final_logit_softcapping(9.0)

    tiny_models.write("gemma3", "gemma3", model, cfg, extra)
    make_golden.make(model, tiny_models.FOLDER, PROMPTS, 8)
    finish("gemma3")


def gemma():
    """Gemma 1, two layers, as transformers saves it."""
    folder = f"{tiny_models.FOLDER}/gemma"
    cfg = GemmaConfig(vocab_size=80, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
                      head_dim=8, rms_norm_eps=1e-6, max_position_embeddings=128, pad_token_id=0, bos_token_id=2, eos_token_id=1,
                      rope_parameters={"rope_type": "default", "rope_theta": 100.0}, attn_implementation="eager")
    model = tiny_models.spread(GemmaForCausalLM(cfg), 13, 1.4)
    model.save_pretrained(folder)
    make_golden.make(model, folder, PROMPTS, 8)


if __name__ == "__main__":
    os.makedirs(tiny_models.FOLDER, exist_ok=True)
    torch.set_num_threads(1)
    llama()
    gemma3()
    gemma()

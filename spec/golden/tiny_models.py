#!/usr/bin/env python3
"""Makes spec/fixtures/gguf/*-odd.gguf and their goldens: random models of awkward sizes, computed by transformers.

Run from the top folder: python3 spec/golden/tiny_models.py  (torch, transformers 5, gguf 0.19, safetensors)
"""
import json
import os

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM)

FOLDER = "spec/fixtures/gguf"
ROLES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}


def gguf_name(name, gemma):
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    if name == "lm_head.weight":
        return "output.weight"
    _, _, layer, rest = name.split(".", 3)
    role, suffix = rest.rsplit(".", 1)
    norms = {"post_attention_layernorm": "post_attention_norm" if gemma else "ffn_norm",
             "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
    return f"blk.{layer}.{ROLES.get(role) or norms[role]}.{suffix}"


def permute(w, heads):
    """Rows (t, t + d/2) of each head become (2t, 2t + 1), as the converter does for llama."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def write(name, arch, model, cfg, extra, half=True):
    gemma = arch == "gemma3"
    w = gguf.GGUFWriter(f"{FOLDER}/{name}.gguf", arch)
    w.add_name(name)
    w.add_block_count(cfg.num_hidden_layers)
    w.add_embedding_length(cfg.hidden_size)
    w.add_feed_forward_length(cfg.intermediate_size)
    w.add_head_count(cfg.num_attention_heads)
    w.add_head_count_kv(cfg.num_key_value_heads)
    w.add_key_length(model.model.layers[0].self_attn.head_dim)
    w.add_value_length(model.model.layers[0].self_attn.head_dim)
    w.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    w.add_context_length(512)
    w.add_vocab_size(cfg.vocab_size)
    w.add_string("tokenizer.ggml.model", "none")
    extra(w)
    tied = cfg.tie_word_embeddings
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and tied:
            continue
        a = value.float().numpy()
        if gemma and key.endswith("norm.weight"):
            a = a + 1
        if arch == "llama" and ".q_proj." in key:
            a = permute(a, cfg.num_attention_heads)
        if arch == "llama" and ".k_proj." in key:
            a = permute(a, cfg.num_key_value_heads)
        w.add_tensor(gguf_name(key, gemma), np.ascontiguousarray(a, dtype=np.float16 if half and a.ndim == 2 else np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def golden(name, arch, model, cfg, lengths):
    rng = np.random.default_rng(len(name))
    out, logits = {"gguf": name + ".gguf", "arch": arch, "computed_with": "transformers, float32", "prompts": []}, {}
    for prompt, n in lengths.items():
        ids = rng.integers(0, cfg.vocab_size, n).tolist()
        with torch.no_grad():
            x, greedy, margin = list(ids), [], 1e9
            full = model(torch.tensor([ids])).logits[0]
            for _ in range(16):
                last = model(torch.tensor([x])).logits[0, -1]
                top = torch.topk(last, 2).values
                margin = min(margin, float(top[0] - top[1]))
                greedy.append(int(last.argmax()))
                x.append(greedy[-1])
        logits[prompt + ".logits"] = full.numpy().astype(np.float32)
        out["prompts"].append({"name": prompt, "input_ids": ids, "greedy": greedy, "min_margin": margin})
    with open(f"{FOLDER}/{name}.golden.json", "w", encoding="utf-8") as f:
        json.dump(out, f)
        f.write("\n")
    save_file(logits, f"{FOLDER}/{name}.golden.safetensors")
    print(name, [round(p["min_margin"], 4) for p in out["prompts"]], os.path.getsize(f"{FOLDER}/{name}.gguf"))


def spread(model, seed, scale, half=True):
    """Weights far from their initial values: norms near 1 and tiny matrices would hide mistakes."""
    torch.manual_seed(seed)
    for key, p in model.named_parameters():
        with torch.no_grad():
            if key.endswith("norm.weight"):
                p.add_(torch.randn_like(p) * 0.3)
            elif p.dim() == 1:
                p.normal_(0, 0.5)
            else:
                p.normal_(0, scale / p.shape[1] ** 0.5)
                if half:
                    p.copy_(p.half().float())
    return model.eval().float()


def llama():
    """One layer, 40-wide heads 3:1, 48 inner channels, 77 tokens, biases everywhere, untied, llama 3 rope."""
    rope = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}
    cfg = LlamaConfig(vocab_size=77, hidden_size=60, intermediate_size=48, num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=1,
                      head_dim=40, rms_norm_eps=3e-5, attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
                      max_position_embeddings=512, rope_parameters=rope, attn_implementation="eager")
    model = spread(LlamaForCausalLM(cfg), 1, 1.5, half=False)
    plain = 5000.0 ** (-torch.arange(0, 40, 2) / 40.0)

    def extra(w):
        w.add_rope_freq_base(5000.0)
        w.add_rope_dimension_count(40)
        w.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy().astype(np.float32))

    write("llama-odd", "llama", model, cfg, extra, half=False)
    golden("llama-odd", "llama", model, cfg, {"short": 3, "long": 90})


def qwen2():
    """Two layers, 6 heads of 12 on 2, width 72, tied, yarn."""
    rope = {"rope_type": "yarn", "rope_theta": 20000.0, "factor": 3.0, "original_max_position_embeddings": 40}
    cfg = Qwen2Config(vocab_size=101, hidden_size=72, intermediate_size=52, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
                      rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=512, rope_parameters=rope,
                      use_sliding_window=False, attn_implementation="eager")
    model = spread(Qwen2ForCausalLM(cfg), 2, 1.4)

    def extra(w):
        w.add_rope_freq_base(20000.0)
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(3.0)
        w.add_rope_scaling_orig_ctx_len(40)

    write("qwen2-odd", "qwen2", model, cfg, extra)
    golden("qwen2-odd", "qwen2", model, cfg, {"short": 4, "long": 100})


def gemma3():
    """Seven layers, so that one sliding layer stands behind the full one; 5 heads of 14 on 1, window 9, softcapped logits."""
    types = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(7)]
    rope = {"sliding_attention": {"rope_type": "default", "rope_theta": 3000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 70000.0, "factor": 2.5}}
    cfg = Gemma3TextConfig(vocab_size=83, hidden_size=40, intermediate_size=36, num_hidden_layers=7, num_attention_heads=5,
                           num_key_value_heads=1, head_dim=14, query_pre_attn_scalar=14, rms_norm_eps=1e-6, sliding_window=9, layer_types=types,
                           rope_parameters=rope, final_logit_softcapping=12.0, tie_word_embeddings=True, max_position_embeddings=512,
                           attn_implementation="eager")
    model = spread(Gemma3ForCausalLM(cfg), 3, 1.2)

    def extra(w):
        w.add_rope_freq_base(70000.0)
        w.add_float32("gemma3.rope.freq_base_swa", 3000.0)
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(2.5)
        w.add_sliding_window(9)
        w.add_final_logit_softcapping(12.0)

    write("gemma3-odd", "gemma3", model, cfg, extra)
    golden("gemma3-odd", "gemma3", model, cfg, {"short": 5, "long": 75})


if __name__ == "__main__":
    llama()
    qwen2()
    gemma3()

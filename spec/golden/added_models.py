#!/usr/bin/env python3
"""Makes spec/fixtures/hf/{qwen3,olmo2,smollm3}-odd (with their goldens by examples/make_golden.py) and the same models as
spec/fixtures/gguf/*.gguf: random models of awkward sizes.

Run from the top folder: python3 spec/golden/added_models.py [NAME ...]  (torch, transformers 5, gguf 0.19, safetensors); where
llama-cpp-python is there, its logits of the GGUF files are printed beside those of transformers.
"""
import os
import sys

import gguf
import numpy as np
import torch
from transformers import Olmo2Config, Olmo2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM

sys.path.insert(0, "examples")
from make_golden import make  # noqa: E402
from tiny_models import permute, spread  # noqa: E402

ROLES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "post_feedforward_layernorm": "post_ffw_norm",
}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def gguf_name(key, arch):
    if key in TOP:
        return TOP[key]
    _, _, layer, rest = key.split(".", 3)
    role, suffix = rest.rsplit(".", 1)
    after = "post_attention_norm" if arch == "olmo2" else "ffn_norm"
    return f"blk.{layer}.{ROLES.get(role, after)}.{suffix}"


def write_gguf(path, arch, model, cfg):
    hd = model.model.layers[0].self_attn.head_dim
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(cfg.num_hidden_layers)
    w.add_embedding_length(cfg.hidden_size)
    w.add_feed_forward_length(cfg.intermediate_size)
    w.add_head_count(cfg.num_attention_heads)
    w.add_head_count_kv(cfg.num_key_value_heads)
    w.add_key_length(hd)
    w.add_value_length(hd)
    w.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    w.add_context_length(512)
    w.add_vocab_size(cfg.vocab_size)
    w.add_rope_freq_base(cfg.rope_parameters["rope_theta"])
    w.add_rope_dimension_count(hd)
    w.add_string("tokenizer.ggml.model", "none")
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and cfg.tie_word_embeddings:
            continue
        a = value.float().numpy()
        if arch == "smollm3" and (".q_proj." in key or ".k_proj." in key):
            a = permute(a, cfg.num_attention_heads if ".q_proj." in key else cfg.num_key_value_heads)
        w.add_tensor(gguf_name(key, arch), np.ascontiguousarray(a, dtype=np.float16 if a.ndim == 2 else np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def compare(path, model, ids):
    try:
        import llama_cpp
    except ImportError:
        return
    other = llama_cpp.Llama(path, logits_all=True, n_ctx=128, verbose=False)
    other.eval(ids)
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits[0].numpy()
    got = np.array(other.scores[:len(ids)])
    print(path, "llama.cpp is at most", abs(got - want).max(), "off")


def save(arch, cls, cfg, seed, prompts):
    model = spread(cls(cfg), seed, 1.4)
    folder = f"spec/fixtures/hf/{arch}-odd"
    os.makedirs(folder, exist_ok=True)
    model.half().save_pretrained(folder)
    model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()  # half() rounds rope's buffer too
    make(model, folder, prompts, 16)
    for name in os.listdir(folder):
        os.chmod(f"{folder}/{name}", 0o644)
    if os.path.exists(folder + "/generation_config.json"):
        os.remove(folder + "/generation_config.json")
    path = f"spec/fixtures/gguf/{arch}-odd.gguf"
    write_gguf(path, arch, model, cfg)
    compare(path, model, prompts[-1])


def rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


def qwen3():
    """Heads wider than d_model / n_head, six on two, untied."""
    cfg = Qwen3Config(vocab_size=79, hidden_size=48, intermediate_size=44, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, head_dim=14,
                      tie_word_embeddings=False, rope_parameters=rope(7000.0), max_position_embeddings=512, attn_implementation="eager")
    save("qwen3", Qwen3ForCausalLM, cfg, 11, PROMPTS)


def olmo2():
    """Three heads on one, so that q and k differ in width, untied."""
    cfg = Olmo2Config(vocab_size=83, hidden_size=42, intermediate_size=50, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
                      tie_word_embeddings=False, rope_parameters=rope(900.0), max_position_embeddings=512, attn_implementation="eager")
    save("olmo2", Olmo2ForCausalLM, cfg, 12, PROMPTS)


def smollm3():
    """Five layers, the fourth without rope; four heads on two, tied."""
    cfg = SmolLM3Config(vocab_size=73, hidden_size=40, intermediate_size=36, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2,
                        tie_word_embeddings=True, rope_parameters=rope(2000.0), max_position_embeddings=512, pad_token_id=0, bos_token_id=1,
                        eos_token_id=2, attn_implementation="eager")
    save("smollm3", SmolLM3ForCausalLM, cfg, 13, PROMPTS)


PROMPTS = [[3, 1, 41, 5, 9], [int(i) for i in np.random.default_rng(5).integers(0, 70, 33)]]

if __name__ == "__main__":
    for name in sys.argv[1:] or ["qwen3", "olmo2", "smollm3"]:
        globals()[name]()

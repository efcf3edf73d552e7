#!/usr/bin/env python3
"""Makes spec/fixtures/hf/NAME-odd with goldens of transformers, and spec/fixtures/gguf/NAME-odd.gguf where llama.cpp knows the
architecture: random decoders of awkward sizes, in the order of MODELS.

Run from the top folder: python3 spec/golden/decoders.py [NAME ...]  (torch, transformers 5, gguf 0.19, safetensors). The environment
variable LLAMA_PYTHON names an interpreter with llama-cpp-python: its logits of the GGUF files are compared with those of transformers.
"""
import glob
import json
import os
import re
import subprocess
import sys

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from safetensors.torch import load_file, save_file as save_weights

HF, GGUF = "spec/fixtures/hf", "spec/fixtures/gguf"
VOCAB = 71
LLAMA = """
import json, sys, llama_cpp, numpy as np
m = llama_cpp.Llama(sys.argv[1], logits_all=True, n_ctx=256, verbose=False, n_threads=1, flash_attn=False)
ids = json.loads(sys.argv[2]); m.eval(ids)
np.save(sys.argv[3], np.array(m.scores[:len(ids)]))
"""


def rope(theta, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


def common(**more):
    c = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=44, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False,
             rope_parameters=rope(5000.0))
    return {**c, **more}


def spread(model, seed):
    """Weights far from their initial values: norms near 1 and tiny matrices would hide mistakes. All are exact in bfloat16."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, p in list(model.named_parameters()) + [(k, b) for k, b in model.named_buffers() if "bias" in k and b.is_floating_point()]:
            if key.endswith("A_log"):
                p.uniform_(-1.0, 1.5)
            elif key.endswith(("dt_bias", "sinks", "correction_bias")) or p.dim() == 1 and key.endswith("bias"):
                p.normal_(0, 0.3)
            elif p.dim() <= 1 or key.endswith(("q_norm.weight", "k_norm.weight")):
                p.copy_(p + torch.randn_like(p) * 0.2)
            elif "conv" in key and p.dim() == 3:
                p.normal_(0, 0.5)
            else:
                p.normal_(0, (1.5 if p.shape[-1] > 8 else 0.8) / p.shape[-1] ** 0.5)
            p.copy_(p.bfloat16().float())


def prompts():
    rng = np.random.default_rng(7)
    return {"short": rng.integers(3, VOCAB, 5).tolist(), "long": rng.integers(3, VOCAB, 37).tolist(), "one": [9]}


def golden(folder, model):
    tensors, out = {}, {"kind": "causal", "computed_with": "transformers " + transformers.__version__ + ", float32", "prompts": []}
    for name, ids in prompts().items():
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0]
            tensors[name + ".logits"] = logits.numpy().copy()
            x = list(ids)
            for _ in range(10):
                x.append(int(model(torch.tensor([x]), use_cache=False).logits[0, -1].argmax()))
        out["prompts"].append({"name": name, "input_ids": ids, "greedy": x[len(ids):]})
    with open(f"{folder}/golden.json", "w") as f:
        json.dump(out, f)
    save_file(tensors, f"{folder}/golden.safetensors")
    return tensors["long.logits"]


def permute(w, heads):
    """Rows (t, t + d/2) of each head become (2t, 2t + 1), as the converter does for llama."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def stacked(weights):
    """Experts of their own (".experts.3.") as one tensor."""
    out, groups = {}, {}
    for key, a in weights.items():
        m = re.match(r"(.*\.experts)\.(\d+)\.(.*)", key)
        if m:
            groups.setdefault(m[1] + "." + m[3], {})[int(m[2])] = a
        else:
            out[key] = a
    for key, parts in groups.items():
        out[key] = np.stack([parts[i] for i in range(len(parts))])
    return out


def drafting(weights, layers, n):
    """The weights of n layers that draft tokens: copies of the last layer, a projection of two vectors to one, and norms."""
    out = {}
    for i in range(layers, layers + n):
        at = f"model.layers.{i}."
        out.update({key.replace(f"layers.{layers - 1}.", f"layers.{i}."): a for key, a in weights.items() if f"layers.{layers - 1}." in key})
        norm = out[at + "input_layernorm.weight"]
        out[at + "eh_proj.weight"] = np.concatenate([np.diag(norm)] * 2, axis=1)
        out[at + "enorm.weight"] = out[at + "hnorm.weight"] = norm
    return out


def write_gguf(path, m, cfg, weights):
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == m["gguf"])
    names = gguf.get_tensor_name_map(arch, cfg.num_hidden_layers + 1)
    w = gguf.GGUFWriter(path, m["gguf"])
    w.add_block_count(cfg.num_hidden_layers + m.get("drafting", 0))
    w.add_embedding_length(cfg.hidden_size)
    w.add_context_length(getattr(cfg, "max_position_embeddings", 256))
    w.add_vocab_size(cfg.vocab_size)
    w.add_string("tokenizer.ggml.model", "none")
    if "head_count" not in m.get("own", ()):
        w.add_head_count(cfg.num_attention_heads)
        w.add_head_count_kv(cfg.num_key_value_heads)
    if "key_length" not in m.get("own", ()):
        hd = getattr(cfg, "head_dim", None) or cfg.hidden_size // cfg.num_attention_heads
        w.add_key_length(hd)
        w.add_value_length(hd)
        r = cfg.rope_parameters or {}
        r = r.get("full_attention", r)
        w.add_rope_dimension_count(int(hd * r.get("partial_rotary_factor", 1)))
        w.add_rope_freq_base(r.get("rope_theta", 10000.0))
    if "feed_forward" not in m.get("own", ()):
        w.add_feed_forward_length(cfg.intermediate_size)
    eps = getattr(cfg, "rms_norm_eps", None) or getattr(cfg, "layer_norm_epsilon", None)
    if eps:
        w.add_layer_norm_rms_eps(eps)
    m["keys"](w, cfg)
    change = m.get("change", lambda key, a, cfg: [(key, a)])
    for old, tensor in stacked({**weights, **drafting(weights, cfg.num_hidden_layers, m.get("drafting", 0))}).items():
        if old == "lm_head.weight" and cfg.tie_word_embeddings:
            continue
        for key, a in change(old, tensor, cfg):
            if key.endswith("e_score_correction_bias"):
                key, a = key.replace("_bias", ".bias"), a.reshape(-1)
            name = names.get_name(key, try_suffixes=(".weight", ".bias")) or key
            if not re.search(r"\.(weight|bias)$|ssm_(a|d)$|ffn_norm$", name):
                name += ".weight"
            flat = a.ndim < 2 or name.endswith(".bias") or "ssm_" in name and "ssm_in" not in name and "ssm_out" not in name or "ffn_gate_inp" in name
            w.add_tensor(name, np.ascontiguousarray(a, dtype=np.float32 if flat else np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def compare(path, ids, want):
    python = os.environ.get("LLAMA_PYTHON")
    if not python:
        return
    r = subprocess.run([python, "-c", LLAMA, path, json.dumps(ids), "/tmp/llama_logits.npy"], capture_output=True, text=True)
    if r.returncode:
        print(path, "llama.cpp fails:", r.stderr[-400:])
    else:
        print(path, "llama.cpp is at most", abs(np.load("/tmp/llama_logits.npy") - want).max(), "off")


def make(name, m, seed):
    cls = getattr(transformers, m["model"])
    cfg = getattr(transformers, m["config"])(**m["values"])
    cfg._attn_implementation = cfg._experts_implementation = "eager"
    model = cls(cfg)
    spread(model, seed)
    folder = f"{HF}/{name}-odd"
    os.makedirs(folder, exist_ok=True)
    for old in glob.glob(folder + "/*"):
        os.remove(old)
    model.bfloat16().save_pretrained(folder)
    for extra in ("generation_config.json",):
        if os.path.exists(f"{folder}/{extra}"):
            os.remove(f"{folder}/{extra}")
    values = m.get("finish", lambda folder, cfg: None)(folder, cfg)
    if values:  # of weights that transformers does not read from the file by itself
        model = cls(cfg).eval()
        model.load_state_dict(values)
    else:
        model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                    experts_implementation="eager").eval()
    want = golden(folder, model)
    for file in glob.glob(folder + "/*"):
        os.chmod(file, 0o644)
    if m.get("gguf"):
        weights = {k: v.float().numpy() for k, v in load_file(f"{folder}/model.safetensors").items()}
        path = f"{GGUF}/{name}-odd.gguf"
        write_gguf(path, m, cfg, weights)
        compare(path, prompts()["long"], want)


# ---- What files of each architecture hold beside the common keys --------------------------------------------------------------

def turned(key, a, cfg):
    if ".q_proj." in key:
        a = permute(a, cfg.num_attention_heads)
    if ".k_proj." in key:
        a = permute(a, cfg.num_key_value_heads)
    return [(key, a)]


def olmoe_keys(w, cfg):
    w.add_expert_count(cfg.num_experts)
    w.add_expert_used_count(cfg.num_experts_per_tok)


def mixtral_keys(w, cfg):
    w.add_expert_count(cfg.num_local_experts)
    w.add_expert_used_count(cfg.num_experts_per_tok)


def gemma2_keys(w, cfg):
    w.add_attn_logit_softcapping(cfg.attn_logit_softcapping)
    w.add_final_logit_softcapping(cfg.final_logit_softcapping)
    w.add_sliding_window(cfg.sliding_window)


def plus_one(key, a, cfg):
    return [(key, a + 1 if key.endswith("norm.weight") else a)]


def qwen3moe_keys(w, cfg):
    w.add_expert_count(cfg.num_experts)
    w.add_expert_used_count(cfg.num_experts_per_tok)
    w.add_expert_feed_forward_length(cfg.moe_intermediate_size)


def olmo3_keys(w, cfg):
    w.add_sliding_window(cfg.sliding_window)
    w.add_sliding_window_pattern([t == "sliding_attention" for t in cfg.layer_types])


def granite_keys(w, cfg):
    w.add_embedding_scale(cfg.embedding_multiplier)
    w.add_residual_scale(cfg.residual_multiplier)
    w.add_attention_scale(cfg.attention_multiplier)
    w.add_logit_scale(cfg.logits_scaling)


def ministral3_keys(w, cfg):
    r = cfg.rope_parameters
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(r["factor"])
    w.add_rope_scaling_yarn_beta_fast(r["beta_fast"])
    w.add_rope_scaling_yarn_beta_slow(r["beta_slow"])
    w.add_rope_scaling_yarn_log_mul(r["mscale_all_dim"])
    w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])
    w.add_attn_temperature_scale(r["llama_4_scaling_beta"])


def cohere2_keys(w, cfg):
    w.add_logit_scale(cfg.logit_scale)
    w.add_layer_norm_eps(cfg.layer_norm_eps)
    if hasattr(cfg, "sliding_window"):
        w.add_sliding_window(cfg.sliding_window)


def layer_norm_keys(w, cfg):
    w.add_layer_norm_eps(cfg.norm_epsilon)


def gpt_oss_keys(w, cfg):
    w.add_expert_count(cfg.num_local_experts)
    w.add_expert_used_count(cfg.num_experts_per_tok)
    w.add_expert_feed_forward_length(cfg.intermediate_size)
    w.add_sliding_window(cfg.sliding_window)
    r = cfg.rope_parameters
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(r["factor"])
    w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])


def gpt_oss_parts(key, a, cfg):
    if key.endswith("sinks"):
        return [(key + ".weight", a)]
    if "experts" not in key:
        return [(key, a)]
    layer = key.split(".")[2]
    suffix = ".bias" if key.endswith("_bias") else ".weight"
    a = a if suffix == ".bias" else a.swapaxes(1, 2)
    if "down" in key:
        return [(f"blk.{layer}.ffn_down_exps{suffix}", a)]
    return [(f"blk.{layer}.ffn_gate_exps{suffix}", a[:, 0::2]), (f"blk.{layer}.ffn_up_exps{suffix}", a[:, 1::2])]


def pack_mxfp4(folder, cfg):
    """Experts as MXFP4; gives the values that they stand for. Blocks of 32 columns, lower nibble first, exponents of 2^(s - 127)."""
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    out, values = {}, {}
    for key, t in load_file(f"{folder}/model.safetensors").items():
        if not key.endswith(("gate_up_proj", "down_proj")):
            out[key], values[key] = t, t.float()
            continue
        a = t.float().numpy().swapaxes(1, 2)
        a = a.reshape(*a.shape[:2], -1, 32)
        e = np.floor(np.log2(abs(a).max(-1))) - 2
        codes = abs(a[..., None] / 2.0 ** e[..., None, None] - levels).argmin(-1).astype(np.uint8)
        back = (levels[codes] * 2.0 ** e[..., None]).reshape(*codes.shape[:2], -1).swapaxes(1, 2)
        values[key] = torch.from_numpy(np.ascontiguousarray(back, dtype=np.float32))
        out[key + "_blocks"] = torch.from_numpy(np.ascontiguousarray(codes[..., 0::2] | codes[..., 1::2] << 4))
        out[key + "_scales"] = torch.from_numpy(np.ascontiguousarray((e + 127).astype(np.uint8)))
    save_weights(out, f"{folder}/model.safetensors", metadata={"format": "pt"})
    with open(f"{folder}/config.json") as f:
        config = json.load(f)
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f, indent=1)
    return values


def ssm_keys(w, taps, inner, n, heads, groups):
    w.add_ssm_conv_kernel(taps)
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(n)
    w.add_ssm_time_step_rank(heads)
    w.add_ssm_group_count(groups)


def ssm_parts(key, a, groups):
    if key.endswith("A_log"):
        return [(key, -np.exp(a)[:, None])]
    if key.endswith(".D"):
        return [(key, a[:, None])]
    if key.endswith("dt_bias"):
        return [(key.replace("dt_bias", "dt_proj.bias"), a)]
    if key.endswith("conv1d.weight"):
        return [(key, a[:, 0])]
    if key.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        return [(key, a.reshape(groups, -1))]
    return [(key, a)]


def mamba2_keys(w, cfg):
    w.add_head_count(0)
    w.add_feed_forward_length(0)
    ssm_keys(w, cfg.conv_kernel, cfg.num_heads * cfg.head_dim, cfg.state_size, cfg.num_heads, cfg.n_groups)


def granite_hybrid_keys(w, cfg):
    granite_keys(w, cfg)
    kinds = cfg.layer_types
    w.add_head_count_kv([cfg.num_key_value_heads if "full" in k else 0 for k in kinds])
    w.add_expert_shared_feed_forward_length(cfg.shared_intermediate_size)
    if cfg.num_local_experts:
        w.add_expert_count(cfg.num_local_experts)
        w.add_expert_used_count(cfg.num_experts_per_tok)
    w.add_rope_scaling_finetuned(cfg.position_embedding_type == "rope")
    w.add_head_count(cfg.num_attention_heads)
    ssm_keys(w, cfg.mamba_d_conv, cfg.mamba_n_heads * cfg.mamba_d_head, cfg.mamba_d_state, cfg.mamba_n_heads, cfg.mamba_n_groups)


def granite_hybrid_parts(key, a, cfg):
    layer = key.split(".")[2] if ".layers." in key else ""
    half = lambda i: np.split(a, 2, axis=-2)[i]  # noqa: E731
    if cfg.position_embedding_type == "rope":
        key, a = turned(key, a, cfg)[0]
    if "block_sparse_moe.input_linear" in key:
        return [(f"blk.{layer}.ffn_gate_exps.weight", half(0)), (f"blk.{layer}.ffn_up_exps.weight", half(1))]
    if "shared_mlp.input_linear" in key:
        end = "_shexp" if cfg.num_local_experts else ""
        return [(f"blk.{layer}.ffn_gate{end}.weight", half(0)), (f"blk.{layer}.ffn_up{end}.weight", half(1))]
    if "shared_mlp.output_linear" in key:
        return [(f"blk.{layer}.ffn_down{'_shexp' if cfg.num_local_experts else ''}.weight", a)]
    return ssm_parts(key, a, cfg.mamba_n_groups)


def falcon_h1_keys(w, cfg):
    ssm_keys(w, cfg.mamba_d_conv, cfg.mamba_d_ssm, cfg.mamba_d_state, cfg.mamba_n_heads, cfg.mamba_n_groups)


def falcon_h1_parts(key, a, cfg):
    by = {"embed_tokens": cfg.embedding_multiplier, "lm_head": cfg.lm_head_multiplier, "gate_proj": cfg.mlp_multipliers[0],
          "down_proj": cfg.mlp_multipliers[1], "q_proj": cfg.attention_in_multiplier, "v_proj": cfg.attention_in_multiplier,
          "k_proj": cfg.attention_in_multiplier * cfg.key_multiplier, "o_proj": cfg.attention_out_multiplier,
          "out_proj": cfg.ssm_out_multiplier}
    for word, factor in by.items():
        if word in key:
            a = a * factor
    if "mamba.in_proj" in key:
        i, n = cfg.mamba_d_ssm, cfg.mamba_n_groups * cfg.mamba_d_state
        m = cfg.ssm_multipliers
        a = a * np.repeat(m, [i, i, n, n, cfg.mamba_n_heads])[:, None] * cfg.ssm_in_multiplier
    return ssm_parts(key, a, cfg.mamba_n_groups)


def nemotron_h_keys(w, cfg):
    kinds = cfg.layers_block_type
    width = {"mlp": cfg.intermediate_size, "moe": cfg.moe_intermediate_size}
    w.add_head_count(cfg.num_attention_heads)
    w.add_head_count_kv([cfg.num_key_value_heads if "full" in k else 0 for k in kinds])
    w.add_feed_forward_length([width.get(k, 0) for k in kinds])
    ssm_keys(w, cfg.conv_kernel, cfg.mamba_num_heads * cfg.mamba_head_dim, cfg.ssm_state_size, cfg.mamba_num_heads, cfg.n_groups)
    w.add_expert_count(cfg.n_routed_experts)
    w.add_expert_used_count(cfg.num_experts_per_tok)
    w.add_expert_shared_count(cfg.n_shared_experts)
    w.add_expert_feed_forward_length(cfg.moe_intermediate_size)
    w.add_expert_shared_feed_forward_length(cfg.moe_shared_expert_intermediate_size)
    w.add_expert_weights_norm(cfg.norm_topk_prob)
    w.add_expert_weights_scale(cfg.routed_scaling_factor)
    w.add_expert_group_count(cfg.n_group)
    w.add_layer_norm_eps(cfg.layer_norm_epsilon)


def nemotron_h_parts(key, a, cfg):
    m = re.match(r".*layers\.(\d+)\.mixer\.experts\.(up|down)_proj", key)
    return [(f"blk.{m[1]}.ffn_{m[2]}_exps.weight", a)] if m else ssm_parts(key, a, cfg.n_groups)


def qwen35_keys(w, cfg):
    ssm_keys(w, cfg.linear_conv_kernel_dim, cfg.linear_num_value_heads * cfg.linear_value_head_dim, cfg.linear_key_head_dim,
             cfg.linear_num_value_heads, cfg.linear_num_key_heads)
    w.add_uint32("qwen35.full_attention_interval", 4)
    w.add_rope_dimension_sections([1, 1, 0, 0])


def qwen35moe_keys(w, cfg):
    ssm_keys(w, cfg.linear_conv_kernel_dim, cfg.linear_num_value_heads * cfg.linear_value_head_dim, cfg.linear_key_head_dim,
             cfg.linear_num_value_heads, cfg.linear_num_key_heads)
    w.add_uint32("qwen35moe.full_attention_interval", 4)
    w.add_rope_dimension_sections([1, 1, 1, 0])
    w.add_expert_count(cfg.num_experts)
    w.add_expert_used_count(cfg.num_experts_per_tok)
    w.add_expert_feed_forward_length(cfg.moe_intermediate_size)
    w.add_expert_shared_feed_forward_length(cfg.shared_expert_intermediate_size)


def stack_experts(folder, cfg):
    """Writes the experts of each layer as two tensors, gate_up_proj and down_proj."""
    weights = load_file(f"{folder}/model.safetensors")
    for i in range(cfg.num_hidden_layers):
        at = f"model.layers.{i}.mlp.experts."

        def take(part, at=at):
            return torch.stack([weights.pop(f"{at}{e}.{part}_proj.weight") for e in range(cfg.num_experts)])
        weights[at + "gate_up_proj"] = torch.cat([take("gate"), take("up")], 1)
        weights[at + "down_proj"] = take("down")
    save_weights(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})


def qwen35_parts(key, a, cfg):
    """Value heads in turns of key heads, norms plus 1."""
    keys, heads, width = cfg.linear_num_key_heads, cfg.linear_num_value_heads, cfg.linear_value_head_dim
    first = 2 * keys * cfg.linear_key_head_dim

    def turns(x, n):  # rows of heads of n
        return x.reshape(keys, heads // keys, n, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    if key.endswith(("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight")):
        a = a + 1
    if key.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        a = np.concatenate([a[:first], turns(a[first:], width)])
    if key.endswith("in_proj_z.weight"):
        a = turns(a, width)
    if key.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
        a = turns(a, 1)
    if key.endswith("linear_attn.out_proj.weight"):
        a = turns(np.ascontiguousarray(a.T), width).T
    if key.endswith("A_log"):
        return [(key, -np.exp(a))]
    if key.endswith("dt_bias"):
        return [(key.replace("dt_bias", "dt_proj.bias"), a)]
    return [(key, a[:, 0] if key.endswith("conv1d.weight") else a)]


def deepseek2_keys(w, cfg):
    w.add_head_count(cfg.num_attention_heads)
    w.add_head_count_kv(1)
    w.add_key_length(cfg.kv_lora_rank + cfg.qk_rope_head_dim)
    w.add_value_length(cfg.kv_lora_rank)
    w.add_key_length_mla(cfg.qk_nope_head_dim + cfg.qk_rope_head_dim)
    w.add_value_length_mla(cfg.v_head_dim)
    w.add_kv_lora_rank(cfg.kv_lora_rank)
    if cfg.q_lora_rank:
        w.add_q_lora_rank(cfg.q_lora_rank)
    r = cfg.rope_parameters
    w.add_rope_dimension_count(cfg.qk_rope_head_dim)
    w.add_rope_freq_base(r["rope_theta"])
    if r["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(r["factor"])
        w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])
        if r.get("mscale_all_dim"):
            w.add_rope_scaling_yarn_log_mul(0.1 * r["mscale_all_dim"])
    w.add_leading_dense_block_count(cfg.first_k_dense_replace)
    w.add_expert_count(cfg.n_routed_experts)
    w.add_expert_used_count(cfg.num_experts_per_tok)
    w.add_expert_shared_count(cfg.n_shared_experts)
    w.add_expert_feed_forward_length(cfg.moe_intermediate_size)
    w.add_expert_weights_scale(cfg.routed_scaling_factor)
    v3 = cfg.model_type == "deepseek_v3"
    w.add_expert_weights_norm(v3 and cfg.norm_topk_prob)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if v3 else gguf.ExpertGatingFuncType.SOFTMAX)
    if v3:
        w.add_expert_group_count(cfg.n_group)
        w.add_expert_group_used_count(cfg.topk_group)


def glm4moe_keys(w, cfg):
    w.add_leading_dense_block_count(cfg.first_k_dense_replace)
    w.add_expert_count(cfg.n_routed_experts)
    w.add_expert_used_count(cfg.num_experts_per_tok)
    w.add_expert_shared_count(cfg.n_shared_experts)
    w.add_expert_feed_forward_length(cfg.moe_intermediate_size)
    w.add_expert_weights_scale(cfg.routed_scaling_factor)
    w.add_expert_weights_norm(cfg.norm_topk_prob)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_expert_group_count(cfg.n_group)
    w.add_expert_group_used_count(cfg.topk_group)
    w.add_nextn_predict_layers(cfg.num_nextn_predict_layers)


def ernie_moe_keys(w, cfg):
    w.add_leading_dense_block_count(cfg.moe_layer_start_index)
    w.add_interleave_moe_layer_step(cfg.moe_layer_interval)
    w.add_expert_count(cfg.moe_num_experts)
    w.add_expert_used_count(cfg.moe_k)
    w.add_expert_shared_count(cfg.moe_num_shared_experts)
    w.add_expert_feed_forward_length(cfg.moe_intermediate_size)
    w.add_expert_shared_feed_forward_length(cfg.moe_intermediate_size * cfg.moe_num_shared_experts)


def deepseek2_parts(key, a, cfg):
    if "kv_b_proj" in key:
        layer = key.split(".")[2]
        k, v = np.split(a.reshape(cfg.num_attention_heads, -1, a.shape[1]), [cfg.qk_nope_head_dim], axis=1)
        return [(f"blk.{layer}.attn_k_b.weight", k.swapaxes(1, 2)), (f"blk.{layer}.attn_v_b.weight", v)]
    return [(key, a)]


def among_images(folder, cfg):
    """The same model as the text part of one that takes images; gives its weights."""
    weights = load_file(f"{folder}/model.safetensors")
    out = {"language_model." + key: t for key, t in weights.items()}
    out["vision_tower.blocks.0.weight"] = out["multi_modal_projector.linear.weight"] = torch.zeros(3, 4)
    save_weights({k: t.clone() for k, t in out.items()}, f"{folder}/model.safetensors", metadata={"format": "pt"})
    with open(f"{folder}/config.json") as f:
        text = json.load(f)
    whole = {"model_type": "mistral3", "eos_token_id": text.pop("eos_token_id"), "text_config": text, "vision_config": {"hidden_size": 4}}
    whole["tie_word_embeddings"] = text.pop("tie_word_embeddings")
    with open(f"{folder}/config.json", "w") as f:
        json.dump(whole, f, indent=1)
    return {key: t.float() for key, t in weights.items()}


GPT_OSS = common(head_dim=12, hidden_size=64, intermediate_size=32, num_local_experts=5, num_experts_per_tok=3, sliding_window=6,
                 rope_parameters=rope(5000.0, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                      original_max_position_embeddings=16))

MODELS = {
    # Seven experts, all but one layer sparse, weights not normalised: GGUF cannot say so.
    "qwen3_moe": dict(config="Qwen3MoeConfig", model="Qwen3MoeForCausalLM", gguf="qwen3moe", keys=qwen3moe_keys, values=common(
        head_dim=14, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=True)),
    "qwen3_moe_plain": dict(config="Qwen3MoeConfig", model="Qwen3MoeForCausalLM", values=common(
        head_dim=14, num_experts=7, num_experts_per_tok=2, moe_intermediate_size=20, norm_topk_prob=False, decoder_sparse_step=2,
        use_sliding_window=True, sliding_window=6)),
    # Three heads on one; the fourth layer sees all keys, with YaRN.
    "olmo3": dict(config="Olmo3Config", model="Olmo3ForCausalLM", gguf="olmo2", keys=olmo3_keys, values=common(
        hidden_size=42, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=5, sliding_window=7,
        rope_parameters={"sliding_attention": rope(5000.0), "full_attention": rope(5000.0)})),
    "glm4": dict(config="Glm4Config", model="Glm4ForCausalLM", gguf="glm4", keys=lambda w, cfg: None, values=common(
        head_dim=12, attention_bias=True, rope_parameters=rope(5000.0, partial_rotary_factor=0.5))),
    "cohere2": dict(config="Cohere2Config", model="Cohere2ForCausalLM", gguf="cohere2", keys=cohere2_keys, values=common(
        tie_word_embeddings=True, num_hidden_layers=5, sliding_window=6, logit_scale=0.4)),
    "cohere": dict(config="CohereConfig", model="CohereForCausalLM", gguf="command-r", keys=cohere2_keys, values=common(
        tie_word_embeddings=True, logit_scale=0.4, attention_bias=False)),
    "starcoder2": dict(config="Starcoder2Config", model="Starcoder2ForCausalLM", gguf="starcoder2", keys=layer_norm_keys, values=common(
        sliding_window=None, tie_word_embeddings=True)),
    "granite": dict(config="GraniteConfig", model="GraniteForCausalLM", gguf="granite", keys=granite_keys, change=turned, values=common(
        embedding_multiplier=7.0, logits_scaling=3.0, residual_multiplier=0.4, attention_multiplier=0.2)),
    "ministral3": dict(config="Ministral3Config", model="Ministral3ForCausalLM", gguf="mistral3", keys=ministral3_keys, change=turned,
                       values=common(head_dim=14, rope_parameters=rope(
                           5000.0, rope_type="yarn", factor=8.0, original_max_position_embeddings=8, beta_fast=32.0, beta_slow=1.0,
                           mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.2))),
    # Widths of 64 and 32, since blocks have 32 columns.
    "gpt_oss": dict(config="GptOssConfig", model="GptOssForCausalLM", gguf="gpt-oss", keys=gpt_oss_keys, change=gpt_oss_parts, values=GPT_OSS),
    "gpt_oss_mxfp4": dict(config="GptOssConfig", model="GptOssForCausalLM", finish=pack_mxfp4, values=GPT_OSS),
    # A state of 9 by heads of 6, three groups; a finite range of time steps.
    "mamba2": dict(config="Mamba2Config", model="Mamba2ForCausalLM", gguf="mamba2", keys=mamba2_keys,
                   own=("head_count", "key_length", "feed_forward"), change=lambda key, a, cfg: ssm_parts(key, a, cfg.n_groups), values=dict(
                       vocab_size=VOCAB, hidden_size=36, num_hidden_layers=3, num_heads=12, head_dim=6, state_size=9, n_groups=3, expand=2,
                       conv_kernel=3, chunk_size=8, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False)),
    "mamba2_clamp": dict(config="Mamba2Config", model="Mamba2ForCausalLM", values=dict(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_heads=3, head_dim=16, state_size=5, n_groups=1, expand=2, conv_kernel=4,
        chunk_size=4, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=True, use_bias=True, time_step_limit=[0.3, 0.9])),
    "granitemoehybrid": dict(
        config="GraniteMoeHybridConfig", model="GraniteMoeHybridForCausalLM", gguf="granitehybrid", keys=granite_hybrid_keys,
        own=("head_count",), change=granite_hybrid_parts, values=common(
            layer_types=["mamba", "attention", "mamba"], num_local_experts=5, num_experts_per_tok=2, shared_intermediate_size=26,
            intermediate_size=20, mamba_n_heads=6, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=7, mamba_d_conv=4, mamba_expand=2,
            mamba_chunk_size=8, position_embedding_type="nope", embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.4,
            attention_multiplier=0.2)),
    # No experts, two groups, rope.
    "granitemoehybrid_dense": dict(
        config="GraniteMoeHybridConfig", model="GraniteMoeHybridForCausalLM", gguf="granitehybrid", keys=granite_hybrid_keys,
        own=("head_count",), change=granite_hybrid_parts, values=common(
            layer_types=["mamba", "attention", "mamba"], num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=26,
            intermediate_size=26, mamba_n_heads=6, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=7, mamba_d_conv=4, mamba_expand=2,
            mamba_chunk_size=8, position_embedding_type="rope", embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.4,
            attention_multiplier=0.2)),
    "falcon_h1": dict(config="FalconH1Config", model="FalconH1ForCausalLM", gguf="falcon-h1", keys=falcon_h1_keys, change=falcon_h1_parts, values=common(
        head_dim=8, mamba_d_ssm=60, mamba_n_heads=6, mamba_d_head=10, mamba_n_groups=2, mamba_d_state=11, mamba_d_conv=4, mamba_chunk_size=8,
        mamba_rms_norm=True, mamba_norm_before_gate=False, attention_in_multiplier=0.9, attention_out_multiplier=0.8, key_multiplier=0.6,
        embedding_multiplier=2.0, lm_head_multiplier=0.5, mlp_multipliers=[0.9, 0.7], ssm_in_multiplier=1.25, ssm_out_multiplier=0.6,
        ssm_multipliers=[0.8, 0.7, 0.9, 1.1, 0.6])),
    "nemotron_h": dict(config="NemotronHConfig", model="NemotronHForCausalLM", gguf="nemotron_h_moe", keys=nemotron_h_keys, own=("head_count", "feed_forward"),
                       change=nemotron_h_parts, values=common(
        layers_block_type=["mamba", "moe", "attention", "mlp", "mamba"], head_dim=12, ssm_state_size=7, mamba_num_heads=6, mamba_head_dim=10, n_groups=2,
        conv_kernel=4, expand=2, chunk_size=8, n_routed_experts=6, n_shared_experts=1, moe_intermediate_size=20,
        moe_shared_expert_intermediate_size=24, num_experts_per_tok=2, routed_scaling_factor=1.7, n_group=1, topk_group=1,
        norm_topk_prob=True, use_mamba_kernels=False, num_hidden_layers=5)),
    # Three value heads a key head.
    "qwen3_5": dict(config="Qwen3_5TextConfig", model="Qwen3_5ForCausalLM", gguf="qwen35", keys=qwen35_keys, change=qwen35_parts, values=common(
        num_hidden_layers=5, head_dim=16, linear_conv_kernel_dim=4, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
        linear_num_value_heads=6, layer_types=["linear_attention"] * 3 + ["full_attention", "linear_attention"],
        rope_parameters=rope(5000.0, partial_rotary_factor=0.25, mrope_section=[1, 1, 0], mrope_interleaved=True))),
    "qwen3_5_narrow": dict(config="Qwen3_5TextConfig", model="Qwen3_5ForCausalLM", values=common(
        num_hidden_layers=4, head_dim=16, linear_conv_kernel_dim=3, linear_key_head_dim=6, linear_value_head_dim=5, linear_num_key_heads=2,
        linear_num_value_heads=6, layer_types=["linear_attention", "full_attention"] * 2,
        rope_parameters=rope(5000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True))),
    # Two layers of six share keys and values; wider heads in full layers.
    "gemma4": dict(config="Gemma4TextConfig", model="Gemma4ForCausalLM", values=common(
        num_hidden_layers=6, head_dim=10, global_head_dim=16, hidden_size_per_layer_input=6, vocab_size_per_layer_input=VOCAB,
        num_kv_shared_layers=2, use_double_wide_mlp=True, sliding_window=7, final_logit_softcapping=20.0, tie_word_embeddings=True,
        layer_types=["sliding_attention", "full_attention"] * 3, hidden_activation="gelu_pytorch_tanh", rope_parameters={
            "sliding_attention": rope(1000.0), "full_attention": rope(5000.0, rope_type="proportional", partial_rotary_factor=0.25)})),
    "deepseek_v2": dict(
        config="DeepseekV2Config", model="DeepseekV2ForCausalLM", gguf="deepseek2", keys=deepseek2_keys, change=deepseek2_parts,
        own=("head_count", "key_length"), values=common(
            num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=20, q_lora_rank=22, qk_nope_head_dim=10, qk_rope_head_dim=6,
            v_head_dim=14, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=20,
            first_k_dense_replace=1, routed_scaling_factor=1.3, norm_topk_prob=False, topk_method="greedy", n_group=1, topk_group=1,
            rope_parameters=rope(5000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0,
                                 mscale=0.8, mscale_all_dim=0.8))),
    "deepseek_v2_groups": dict(config="DeepseekV2Config", model="DeepseekV2ForCausalLM", values=common(
        num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=20, q_lora_rank=None, qk_nope_head_dim=10, qk_rope_head_dim=6,
        v_head_dim=8, n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=20, first_k_dense_replace=0,
        routed_scaling_factor=2.5, norm_topk_prob=False, topk_method="group_limited_greedy", n_group=3, topk_group=2)),
    "glm4_moe_lite": dict(config="Glm4MoeLiteConfig", model="Glm4MoeLiteForCausalLM", values=common(
        num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=20, q_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6,
        v_head_dim=14, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=20, first_k_dense_replace=1,
        routed_scaling_factor=1.8, norm_topk_prob=True, n_group=2, topk_group=1, mlp_layer_types=["dense", "sparse", "sparse"])),
    # Three streams; two of five layers share keys and values.
    "gemma3n": dict(config="Gemma3nTextConfig", model="Gemma3nForCausalLM", values=common(
        num_hidden_layers=5, head_dim=8, hidden_size_per_layer_input=6, vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=2,
        intermediate_size=[44] * 5, sliding_window=7, final_logit_softcapping=20.0, tie_word_embeddings=True, altup_num_inputs=3,
        laurel_rank=5, activation_sparsity_pattern=[0.9, 0.0, 0.6, 0.0, 0.0], hidden_activation="gelu_pytorch_tanh",
        layer_types=["sliding_attention", "full_attention"] * 2 + ["sliding_attention"], rope_parameters={
            "sliding_attention": rope(1000.0), "full_attention": rope(5000.0)})),
    "ministral3_images": dict(config="Ministral3Config", model="Ministral3ForCausalLM", finish=among_images, values=common(
        num_hidden_layers=2, head_dim=10, sliding_window=9, rope_parameters=rope(
            5000.0, original_max_position_embeddings=10, llama_4_scaling_beta=0.3))),
    # Experts in a narrower space, biases, groups of experts, limits of the time step.
    "nemotron_h_latent": dict(config="NemotronHConfig", model="NemotronHForCausalLM", values=common(
        hidden_size=30, layers_block_type=["linear_attention", "moe", "full_attention", "mlp"], num_attention_heads=3, num_key_value_heads=1,
        head_dim=8, attention_bias=True, ssm_state_size=5, mamba_num_heads=4, mamba_head_dim=6, n_groups=2, conv_kernel=3, chunk_size=8,
        n_routed_experts=6, n_group=3, topk_group=2, num_experts_per_tok=2, moe_intermediate_size=20, moe_latent_size=14,
        moe_shared_expert_intermediate_size=22, routed_scaling_factor=1.7, norm_topk_prob=False, mlp_bias=True, use_bias=True,
        use_conv_bias=False, time_step_min=0.3, layer_norm_epsilon=1e-3, use_mamba_kernels=False, num_hidden_layers=4)),
    # The norm before the gate, limits of the time step, another activation function.
    "falcon_h1_normed": dict(config="FalconH1Config", model="FalconH1ForCausalLM", values=common(
        hidden_size=36, num_hidden_layers=2, num_attention_heads=4, head_dim=6, mamba_d_ssm=60, mamba_n_heads=6, mamba_d_head=10,
        mamba_n_groups=2, mamba_d_state=5, mamba_d_conv=3, mamba_chunk_size=8, mamba_rms_norm=True, mamba_norm_before_gate=True,
        time_step_limit=[0.3, 0.9], hidden_act="gelu_pytorch_tanh", mamba_proj_bias=True, projectors_bias=True)),
    "granitemoehybrid_limits": dict(config="GraniteMoeHybridConfig", model="GraniteMoeHybridForCausalLM", values=common(
        hidden_size=36, num_hidden_layers=2, layer_types=["mamba", "attention"], num_local_experts=3, num_experts_per_tok=2,
        shared_intermediate_size=26, intermediate_size=20, mamba_n_heads=6, mamba_d_head=12, mamba_n_groups=1, mamba_d_state=5, mamba_d_conv=3,
        mamba_expand=2, mamba_chunk_size=8, position_embedding_type="rope", time_step_limit=[0.3, 0.9], hidden_act="gelu")),
    # Ten layers: keys of per_layer_config have two digits. Full layers rotate their whole heads; they have other key and value heads.
    "gemma4_ten": dict(config="Gemma4TextConfig", model="Gemma4ForCausalLM", values=common(
        hidden_size=24, intermediate_size=20, num_hidden_layers=10, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        global_head_dim=10, attention_k_eq_v=True, num_global_key_value_heads=1, hidden_size_per_layer_input=4,
        vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=3, sliding_window=5, tie_word_embeddings=True,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 3 + ["full_attention"],
        hidden_activation="gelu_pytorch_tanh", rope_parameters={"sliding_attention": rope(1000.0), "full_attention": rope(5000.0)})),
    "qwen3_5_gelu": dict(config="Qwen3_5TextConfig", model="Qwen3_5ForCausalLM", values=common(
        hidden_size=36, num_hidden_layers=2, head_dim=10, linear_conv_kernel_dim=2, linear_key_head_dim=5, linear_value_head_dim=6,
        linear_num_key_heads=1, linear_num_value_heads=3, layer_types=["linear_attention", "full_attention"], hidden_act="gelu_pytorch_tanh",
        rope_parameters=rope(5000.0, partial_rotary_factor=0.4))),
    "qwen3_5_moe": dict(config="Qwen3_5MoeTextConfig", model="Qwen3_5MoeForCausalLM", gguf="qwen35moe", keys=qwen35moe_keys, change=qwen35_parts,
                        own=("feed_forward",), values=common(
        hidden_size=36, num_hidden_layers=4, num_attention_heads=4, head_dim=12, linear_conv_kernel_dim=4, linear_key_head_dim=8,
        linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=20, shared_expert_intermediate_size=14, layer_types=["linear_attention"] * 3 + ["full_attention"],
        rope_parameters=rope(5000.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 1], mrope_interleaved=True))),
    # Experts as in published files: stacked, gate above up.
    "qwen3_5_moe_stacked": dict(config="Qwen3_5MoeTextConfig", model="Qwen3_5MoeForCausalLM", finish=stack_experts, values=common(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8, linear_conv_kernel_dim=3,
        linear_key_head_dim=4, linear_value_head_dim=6, linear_num_key_heads=1, linear_num_value_heads=2, num_experts=4, num_experts_per_tok=3,
        moe_intermediate_size=16, shared_expert_intermediate_size=8, layer_types=["linear_attention", "full_attention"],
        rope_parameters=rope(5000.0, partial_rotary_factor=0.5))),
    # YaRN without mscale: cosine and sine are scaled, the scores are not. (llama.cpp scales these too.)
    "deepseek_v3": dict(config="DeepseekV3Config", model="DeepseekV3ForCausalLM", gguf="deepseek2", keys=deepseek2_keys,
                        change=deepseek2_parts, own=("head_count", "key_length"), values=common(
        hidden_size=36, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=14, q_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=6,
        v_head_dim=8, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=16, first_k_dense_replace=1,
        routed_scaling_factor=2.5, norm_topk_prob=True, n_group=4, topk_group=2, rope_parameters=rope(
            5000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0))),
    "cohere_normed": dict(config="CohereConfig", model="CohereForCausalLM", gguf="command-r", keys=cohere2_keys, values=common(
        hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        logit_scale=0.4, attention_bias=False, use_qk_norm=True)),
    # The second of two streams is the active one.
    "gemma3n_second": dict(config="Gemma3nTextConfig", model="Gemma3nForCausalLM", values=common(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=8, hidden_size_per_layer_input=6,
        vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=1, intermediate_size=[20] * 3, sliding_window=7, tie_word_embeddings=True,
        altup_num_inputs=2, altup_active_idx=1, laurel_rank=5, activation_sparsity_pattern=[0.9, 0.0, 0.0],
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_parameters={
            "sliding_attention": rope(1000.0), "full_attention": rope(5000.0)})),
    # Heads of an odd width, which no rope could rotate.
    "mamba2_fifteen": dict(config="Mamba2Config", model="Mamba2ForCausalLM", values=dict(
        vocab_size=VOCAB, hidden_size=30, num_hidden_layers=2, num_heads=4, head_dim=15, state_size=5, n_groups=2, expand=2, conv_kernel=3,
        chunk_size=8, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False, hidden_act="gelu")),
    "gemma4_moe": dict(config="Gemma4TextConfig", model="Gemma4ForCausalLM", values=common(
        hidden_size=36, intermediate_size=28, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
        global_head_dim=12, attention_k_eq_v=True, num_global_key_value_heads=1, hidden_size_per_layer_input=0, num_kv_shared_layers=0,
        sliding_window=6, tie_word_embeddings=True, enable_moe_block=True, num_experts=6, top_k_experts=3, moe_intermediate_size=20,
        layer_types=["sliding_attention", "full_attention", "full_attention"], hidden_activation="gelu_pytorch_tanh",
        rope_parameters={"sliding_attention": rope(1000.0), "full_attention": rope(5000.0)})),
    # No attention layer at all.
    "granitemoehybrid_mamba": dict(
        config="GraniteMoeHybridConfig", model="GraniteMoeHybridForCausalLM", gguf="granitehybrid", keys=granite_hybrid_keys,
        own=("head_count",), change=granite_hybrid_parts, values=common(
            hidden_size=32, layer_types=["mamba", "mamba"], num_hidden_layers=2, num_local_experts=0, num_experts_per_tok=0,
            num_attention_heads=4, num_key_value_heads=2, shared_intermediate_size=20, intermediate_size=20, mamba_n_heads=4,
            mamba_d_head=16, mamba_n_groups=1, mamba_d_state=6, mamba_d_conv=3, mamba_expand=2, mamba_chunk_size=8,
            position_embedding_type="nope", embedding_multiplier=2.0, logits_scaling=2.0, residual_multiplier=0.5,
            attention_multiplier=0.2)),
    # The GGUF file has a layer that drafts tokens.
    "glm4_moe": dict(config="Glm4MoeConfig", model="Glm4MoeForCausalLM", gguf="glm4moe", keys=glm4moe_keys,
                     drafting=1, values=common(
        hidden_size=30, intermediate_size=26, num_hidden_layers=2, head_dim=8, attention_bias=True, n_routed_experts=5, n_shared_experts=1,
        num_experts_per_tok=2, moe_intermediate_size=12, first_k_dense_replace=1, routed_scaling_factor=1.0, norm_topk_prob=True,
        n_group=1, topk_group=1, num_nextn_predict_layers=1, rope_parameters=rope(5000.0, partial_rotary_factor=0.5))),
    # Norms of q and k, three heads on one, no width of heads, groups of experts, weights that are not normalised, a tied head.
    "glm4_moe_normed": dict(
        config="Glm4MoeConfig", model="Glm4MoeForCausalLM", gguf="glm4moe", keys=glm4moe_keys, values=common(
            hidden_size=36, intermediate_size=22, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, use_qk_norm=True,
            n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, moe_intermediate_size=6, first_k_dense_replace=2,
            routed_scaling_factor=2.5, norm_topk_prob=False, n_group=4, topk_group=2, num_nextn_predict_layers=0, tie_word_embeddings=True)),
    # Caps and a window that matter; an odd number of heads.
    "gemma2": dict(config="Gemma2Config", model="Gemma2ForCausalLM", gguf="gemma2", keys=gemma2_keys, change=plus_one, values=common(
        hidden_size=36, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1, head_dim=10, query_pre_attn_scalar=10,
        sliding_window=7, attn_logit_softcapping=3.0, final_logit_softcapping=5.0, tie_word_embeddings=True)),
    # What GGUF cannot say: a head of its own, another scale and other kinds of layers, biases, scores without a cap.
    "gemma2_untied": dict(config="Gemma2Config", model="Gemma2ForCausalLM", values=common(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=6, query_pre_attn_scalar=17, sliding_window=5,
        attn_logit_softcapping=None, final_logit_softcapping=5.0, attention_bias=True,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"], rope_parameters=rope(5000.0, rope_type="linear", factor=2.0))),
    "mixtral": dict(config="MixtralConfig", model="MixtralForCausalLM", gguf="llama", keys=mixtral_keys, change=turned, values=common(
        hidden_size=36, intermediate_size=20, num_attention_heads=3, num_key_value_heads=1, head_dim=10, num_local_experts=5,
        num_experts_per_tok=2)),
    # A window that no GGUF file can say, one expert of three, a tied head, no width of heads.
    "mixtral_window": dict(config="MixtralConfig", model="MixtralForCausalLM", values=common(
        hidden_size=32, intermediate_size=18, num_hidden_layers=2, num_attention_heads=4, num_local_experts=3, num_experts_per_tok=1,
        sliding_window=6, tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-3)),
    "olmoe": dict(config="OlmoeConfig", model="OlmoeForCausalLM", gguf="olmoe", keys=olmoe_keys, values=common(
        hidden_size=42, intermediate_size=14, num_attention_heads=3, num_key_value_heads=3, num_experts=6, num_experts_per_tok=3)),
    # What GGUF cannot say: weights that are normalised, biases; three heads on one, a tied head.
    "olmoe_normed": dict(config="OlmoeConfig", model="OlmoeForCausalLM", values=common(
        hidden_size=30, intermediate_size=12, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, num_experts=5,
        num_experts_per_tok=2, norm_topk_prob=True, attention_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-3)),
    # Three heads on one, a tied head.
    "ernie4_5": dict(config="Ernie4_5Config", model="Ernie4_5ForCausalLM", gguf="ernie4_5", keys=lambda w, cfg: None, values=common(
        hidden_size=36, intermediate_size=26, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=10,
        tie_word_embeddings=True)),
    "ernie4_5_biased": dict(config="Ernie4_5Config", model="Ernie4_5ForCausalLM", values=common(
        hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=14, use_bias=True)),
    "ernie4_5_moe": dict(config="Ernie4_5_MoeConfig", model="Ernie4_5_MoeForCausalLM", gguf="ernie4_5-moe", keys=ernie_moe_keys,
                         values=common(
        hidden_size=30, intermediate_size=26, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, moe_num_experts=6, moe_k=3,
        moe_intermediate_size=10, moe_num_shared_experts=2, moe_layer_start_index=1)),
    # Experts in every second layer but the last ones, no shared expert, biases.
    "ernie4_5_moe_between": dict(config="Ernie4_5_MoeConfig", model="Ernie4_5_MoeForCausalLM", values=common(
        hidden_size=20, intermediate_size=14, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, moe_num_experts=4, moe_k=2,
        moe_intermediate_size=8, moe_num_shared_experts=0, moe_layer_start_index=1, moe_layer_end_index=2, moe_layer_interval=2,
        use_bias=True, tie_word_embeddings=True)),
    "seed_oss": dict(config="SeedOssConfig", model="SeedOssForCausalLM", gguf="seed_oss", keys=lambda w, cfg: None, values=common(
        hidden_size=36, intermediate_size=26, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=10)),
    # A bias of the output projection alone, a tied head.
    "seed_oss_out": dict(config="SeedOssConfig", model="SeedOssForCausalLM", values=common(
        hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        attention_bias=False, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True)),
}

if __name__ == "__main__":
    for number, (name, m) in enumerate(MODELS.items()):
        if not sys.argv[1:] or name in sys.argv[1:]:
            make(name, m, 100 + number)

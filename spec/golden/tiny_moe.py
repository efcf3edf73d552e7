#!/usr/bin/env python3
"""Makes the small folders of spec/fixtures/hf whose names end in -odd: random models of awkward sizes with short
convolutions or experts, as transformers saves them, and what it computes with them in float32.

Run from the top folder: python3 spec/golden/tiny_moe.py  (torch, transformers 5, safetensors)
"""
import json
import os

import numpy as np
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file, save_file as save_weights
from transformers import (Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM, OpenAIPrivacyFilterConfig,
                          OpenAIPrivacyFilterForTokenClassification, Qwen2MoeConfig, Qwen2MoeForCausalLM, ZayaConfig, ZayaForCausalLM)

FOLDER = "spec/fixtures/hf"
CHOICE = ("balancing_biases", "expert_bias")
KEPT = CHOICE + ("sinks",)  # float32 in released files


def spread(model, seed, scale):
    """Weights far from their initial values: norms near 1 and tiny matrices would hide mistakes. All are exact in bfloat16."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, p in list(model.named_parameters()) + [b for b in model.named_buffers() if b[0].endswith(CHOICE)]:
            if "norm" in key and p.dim() == 1 or key.endswith("_scale") or key.endswith("temp"):
                p.copy_(1 + torch.randn_like(p) * 0.2)
            elif key.endswith(CHOICE):
                p.copy_(torch.randn_like(p) * 0.2)
            elif key.endswith("sinks"):
                p.copy_(torch.randn_like(p))
            elif p.dim() == 1 or key.endswith("_proj_bias"):
                p.normal_(0, 0.3)
            elif "conv" in key and p.dim() == 3:
                p.normal_(0, 1 / (p.shape[1] * p.shape[2]) ** 0.5)
            else:
                fan = p.shape[1] if "experts" in key and "privacy" in type(model).__name__.lower() else p.shape[-1]
                p.normal_(0, scale / fan ** 0.5)
            p.copy_(p.bfloat16().float())
    return model.eval().float()


def run(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), output_hidden_states=True)


def clear(make, cfg, seed, scale, lengths, margin):
    """The model of the first seed whose greedy tokens are no near ties, and its goldens."""
    while True:
        model = spread(make(cfg), seed, scale)
        entries, tensors = goldens(model, cfg, lengths)
        if all(e.get("min_margin", 1) > margin for e in entries):
            return model, entries, tensors
        seed += 100


def goldens(model, cfg, lengths):
    rng, entries, tensors = np.random.default_rng(7), [], {}
    for prompt, n in lengths.items():
        ids = rng.integers(0, cfg.vocab_size, n).tolist()
        out = run(model, ids)
        entry = {"name": prompt, "input_ids": ids}
        tensors[f"{prompt}.logits"] = out.logits[0]
        if prompt == "short":
            for i, h in enumerate(out.hidden_states[:-1]):
                tensors[f"short.hidden.{i}"] = h[0]
            tensors["short.hidden.final"] = out.hidden_states[-1][0]
        if not isinstance(model, OpenAIPrivacyFilterForTokenClassification):
            x, margins = list(ids), []
            for _ in range(16):
                last = run(model, x).logits[0, -1]
                top = torch.topk(last, 2).values
                margins.append(float(top[0] - top[1]))
                x.append(int(last.argmax()))
            entry.update(greedy=x[n:], min_margin=min(margins))
        entries.append(entry)
    return entries, tensors


def write(name, model, entries, tensors):
    path = f"{FOLDER}/{name}"
    os.makedirs(path, exist_ok=True)
    model.bfloat16().save_pretrained(path)
    model.float()
    if os.path.exists(f"{path}/generation_config.json"):
        os.remove(f"{path}/generation_config.json")
    weights = load_file(f"{path}/model.safetensors")
    save_weights({k: v.float() if k.endswith(KEPT) else v for k, v in weights.items()}, f"{path}/model.safetensors")
    finish(name, entries, tensors)


def finish(name, entries, tensors):
    path = f"{FOLDER}/{name}"
    tensors = {k: np.ascontiguousarray(v.numpy(), dtype=np.float32) for k, v in tensors.items()}
    with open(f"{path}/golden.json", "w", encoding="utf-8") as f:
        json.dump({"computed_with": "transformers, float32", "prompts": entries}, f)
        f.write("\n")
    save_file(tensors, f"{path}/golden.safetensors")
    size = sum(os.path.getsize(f"{path}/{f}") for f in os.listdir(path))
    print(name, [round(e.get("min_margin", 0), 4) for e in entries], size)


def lfm2():
    """Four taps, biases in the convolution, three heads of 8 on one, width 24 (no whole vectors), conv layers at both ends."""
    cfg = Lfm2Config(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=4, num_attention_heads=3, num_key_value_heads=1,
                     conv_bias=True, conv_L_cache=4, block_auto_adjust_ff_dim=False, block_multiple_of=8, norm_eps=2e-5,
                     layer_types=["conv", "full_attention", "conv", "conv"], max_position_embeddings=512, attn_implementation="eager",
                     rope_parameters={"rope_type": "default", "rope_theta": 300.0})
    write("lfm2-odd", *clear(Lfm2ForCausalLM, cfg, 1, 1.5, {"short": 5, "long": 75}, 0.02))


def lfm2_moe():
    """One dense layer, then five experts of 12, two chosen with the help of a bias; conv and attention."""
    cfg = Lfm2MoeConfig(vocab_size=57, hidden_size=24, intermediate_size=36, moe_intermediate_size=12, num_hidden_layers=4, num_dense_layers=1,
                        num_attention_heads=4, num_key_value_heads=2, num_experts=5, num_experts_per_tok=2, use_expert_bias=True,
                        norm_topk_prob=True, routed_scaling_factor=1.25, layer_types=["conv", "full_attention", "conv", "full_attention"],
                        conv_L_cache=3, norm_eps=1e-5, max_position_embeddings=512, attn_implementation="eager",
                        rope_parameters={"rope_type": "default", "rope_theta": 300.0})
    write("lfm2_moe-odd", *clear(Lfm2MoeForCausalLM, cfg, 6, 1.5, {"short": 5, "long": 75}, 0.02))


def qwen2_moe(name, norm, seed, **more):
    """Six experts of 20, three chosen; a shared one of 28."""
    cfg = Qwen2MoeConfig(vocab_size=59, hidden_size=36, intermediate_size=44, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
                         moe_intermediate_size=20, shared_expert_intermediate_size=28, num_experts=6, num_experts_per_tok=3,
                         norm_topk_prob=norm, max_position_embeddings=512, attn_implementation="eager", **more,
                         rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    write(name, *clear(Qwen2MoeForCausalLM, cfg, seed, 1.6, {"short": 5, "long": 40}, 0.02))


def zaya():
    """Convolutions of three and two taps, six heads of 8 on three, so that a head's value channels are both now and before."""
    rope = {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.5}
    cfg = ZayaConfig(vocab_size=53, hidden_size=40, moe_intermediate_size=20, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
                     head_dim=8, num_experts=4, router_hidden_size=12, cca_time0=3, cca_time1=2, sliding_window=7,
                     layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding"], max_position_embeddings=512, attn_implementation="eager",
                     rope_parameters={"hybrid": rope, "hybrid_sliding": dict(rope, rope_theta=90.0)})
    model, entries, tensors = clear(ZayaForCausalLM, cfg, 4, 2.0, {"short": 5, "long": 75}, 0.01)
    write("zaya-odd", model, entries, tensors)
    original("zaya_original-odd", "zaya-odd", zaya_config, zaya_weights, entries, tensors)


def zaya_bias():
    """Biases in the attention, which hold before the first token too; the ropes of a config.json that names none; another activation."""
    cfg = ZayaConfig(vocab_size=37, hidden_size=20, moe_intermediate_size=9, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
                     head_dim=8, num_experts=3, router_hidden_size=7, cca_time0=2, cca_time1=3, sliding_window=5, attention_bias=True,
                     layer_types=["hybrid", "hybrid_sliding", "hybrid"], hidden_act="gelu", max_position_embeddings=512, attn_implementation="eager",
                     experts_implementation="eager")
    model, entries, tensors = clear(ZayaForCausalLM, cfg, 5, 2.0, {"short": 5, "long": 30}, 0.01)
    write("zaya_bias-odd", model, entries, tensors)
    path = f"{FOLDER}/zaya_bias-odd/config.json"
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    del config["rope_parameters"]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def original(name, source, config, weights, entries, tensors):
    """The same model as its authors store it."""
    path = f"{FOLDER}/{name}"
    os.makedirs(path, exist_ok=True)
    with open(f"{FOLDER}/{source}/config.json", encoding="utf-8") as f:
        config = config(json.load(f))
    with open(f"{path}/config.json", "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    given = load_file(f"{FOLDER}/{source}/model.safetensors")
    save_weights({k: v.contiguous() for k, v in weights(given).items()}, f"{path}/model.safetensors")
    finish(name, entries, tensors)


def zaya_config(c):
    window = [0 if j % 2 or c["layer_types"][j // 2] == "hybrid" else c["sliding_window"] - 1 for j in range(2 * c["num_hidden_layers"])]
    return {"model_type": "zaya", "vocab_size": c["vocab_size"], "hidden_size": c["hidden_size"], "num_hidden_layers": 2 * c["num_hidden_layers"],
            "num_attention_heads": 2 * c["num_attention_heads"], "cca_num_q_heads": c["num_attention_heads"],
            "num_query_groups": c["num_key_value_heads"], "num_key_value_heads": c["num_key_value_heads"], "kv_channels": c["head_dim"],
            "head_dim": c["head_dim"], "cca": True, "cca_time0": c["cca_time0"], "cca_time1": c["cca_time1"],
            "ffn_hidden_size": 2 * c["moe_intermediate_size"], "num_experts": c["num_experts"], "moe_router_topk": 1,
            "zaya_mlp_expansion": c["router_hidden_size"], "norm_epsilon": c["rms_norm_eps"],
            "rope_theta": c["rope_parameters"]["hybrid"]["rope_theta"], "swa_rotary_base": c["rope_parameters"]["hybrid_sliding"]["rope_theta"],
            "partial_rotary_factor": 0.5, "swa_layers": window, "tie_word_embeddings": True, "max_position_embeddings": 512}


ZAYA = {
    "input_layernorm": "input_norm", "post_attention_layernorm": "input_norm", "self_attn.o_proj": "self_attn.o_proj",
    "self_attn.qk_norm.temp": "self_attn.qkv.temp", "self_attn.qkv_proj.q_proj": "self_attn.qkv.linear_q",
    "self_attn.qkv_proj.k_proj": "self_attn.qkv.linear_k", "self_attn.qkv_proj.v_proj_current": "self_attn.qkv.val_proj1",
    "self_attn.qkv_proj.v_proj_delayed": "self_attn.qkv.val_proj2", "self_attn.qkv_proj.conv_qk_depthwise": "self_attn.qkv.conv_qk.0",
    "self_attn.qkv_proj.conv_qk_grouped": "self_attn.qkv.conv_qk.1", "mlp.gate.down_proj": "zaya_block.router.down_proj",
    "mlp.gate.router_states_scale": "zaya_block.router.router_states_scale", "mlp.gate.router_mlp.norm": "zaya_block.router.rmsnorm_eda",
    "mlp.gate.router_mlp.fc1": "zaya_block.router.router_mlp.0", "mlp.gate.router_mlp.fc2": "zaya_block.router.router_mlp.2",
    "mlp.gate.router_mlp.out_proj": "zaya_block.router.router_mlp.4", "mlp.gate.balancing_biases": "zaya_block.router.balancing_biases",
}


def zaya_weights(given):
    out, last = {}, max(int(k.split(".")[2]) for k in given if ".layers." in k)
    for key, v in given.items():
        if ".layers." not in key:
            out[key.replace("model.input_", "model.layers.0.res_scale.")] = v
            continue
        i, rest = int(key.split(".")[2]), key.split(".", 3)[3]
        stem, dot, end = rest.rpartition(".")
        if rest.startswith("mlp.experts."):
            for e in range(v.shape[0]):
                part = "linear_fc1" if "gate_up" in rest else "linear_fc2"
                out[f"model.layers.{2 * i + 1}.zaya_block.experts.local_experts.{e}.{part}.weight"] = v[e]
        elif stem == "post_mlp_residual_scale":
            out[f"model.layers.{2 * i + 2}.res_scale.{end}" if i < last else f"model.res_scale.{end}"] = v
        elif stem == "post_attention_residual_scale":
            out[f"model.layers.{2 * i + 1}.res_scale.{end}"] = v
        else:
            name = ZAYA.get(rest) or ZAYA[stem] + dot + end
            out[f"model.layers.{2 * i + (0 if rest.startswith(('self_attn', 'input')) else 1)}.{name}"] = v
    return out


def privacy_config(c):
    rope = c["rope_parameters"]
    return {"model_type": "privacy_filter", "num_hidden_layers": c["num_hidden_layers"], "num_experts": c["num_local_experts"],
            "experts_per_token": c["num_experts_per_tok"], "vocab_size": c["vocab_size"], "num_labels": 3, "id2label": c["id2label"],
            "hidden_size": c["hidden_size"], "intermediate_size": c["intermediate_size"], "head_dim": c["head_dim"],
            "num_attention_heads": c["num_attention_heads"], "num_key_value_heads": c["num_key_value_heads"], "bidirectional_context": True,
            "bidirectional_left_context": c["sliding_window"], "bidirectional_right_context": c["sliding_window"],
            "initial_context_length": rope["original_max_position_embeddings"], "max_position_embeddings": 512, "rope_theta": rope["rope_theta"],
            "rope_scaling_factor": rope["factor"], "rope_ntk_alpha": rope["beta_slow"], "rope_ntk_beta": rope["beta_fast"],
            "swiglu_limit": c["swiglu_limit"], "swiglu_alpha": c["swiglu_alpha"]}


PRIVACY = {
    "input_layernorm.weight": "attn.norm.scale", "post_attention_layernorm.weight": "mlp.norm.scale", "self_attn.o_proj": "attn.out",
    "self_attn.sinks": "attn.sinks", "mlp.router": "mlp.gate", "mlp.experts.gate_up_proj": "mlp.swiglu.weight",
    "mlp.experts.gate_up_proj_bias": "mlp.swiglu.bias", "mlp.experts.down_proj": "mlp.out.weight", "mlp.experts.down_proj_bias": "mlp.out.bias",
}


def privacy_weights(given):
    out = {"embedding.weight": given["model.embed_tokens.weight"], "norm.scale": given["model.norm.weight"],
           "unembedding.weight": given["score.weight"]}
    for key, v in given.items():
        if ".layers." not in key:
            continue
        _, _, i, rest = key.split(".", 3)
        stem, dot, end = rest.rpartition(".")
        if stem == "self_attn.q_proj":
            out[f"block.{i}.attn.qkv.{end}"] = torch.cat([given[key.replace("q_proj", p)] for p in ("q_proj", "k_proj", "v_proj")])
        elif stem not in ("self_attn.k_proj", "self_attn.v_proj"):
            out[f"block.{i}." + (PRIVACY.get(rest) or PRIVACY[stem] + dot + end)] = v / np.log(2) if rest == "self_attn.sinks" else v
    return out


def privacy_filter():
    """Three heads of 6 on one, window 3, five experts, three labels; a limit that clamps often. Logits for one and for all experts, too."""
    names = {0: "O", 1: "B-x", 2: "E-x"}
    cfg = OpenAIPrivacyFilterConfig(vocab_size=47, hidden_size=20, intermediate_size=12, num_hidden_layers=3, num_attention_heads=3,
                                    num_key_value_heads=1, head_dim=6, num_local_experts=5, num_experts_per_tok=3, sliding_window=3,
                                    swiglu_limit=0.8, swiglu_alpha=1.3, id2label=names, label2id={v: k for k, v in names.items()},
                                    max_position_embeddings=512, attn_implementation="eager", pad_token_id=0, eos_token_id=1,
                                    rope_parameters={"rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0,
                                                     "truncate": False, "original_max_position_embeddings": 32})
    model, entries, tensors = clear(OpenAIPrivacyFilterForTokenClassification, cfg, 5, 1.5, {"short": 5, "long": 75}, 0)
    for k in (1, 5):
        for layer in model.model.layers:
            layer.mlp.router.top_k = layer.mlp.num_experts = k  # the one divides, the other multiplies
        tensors[f"k{k}.logits"] = run(model, entries[1]["input_ids"]).logits[0]
    write("privacy_filter-odd", model, entries, tensors)
    bare = {k: v - model.score.bias.detach() if k.endswith("logits") else v for k, v in tensors.items() if not k.startswith("k")}
    original("privacy_filter_original-odd", "privacy_filter-odd", privacy_config, privacy_weights, entries, bare)


if __name__ == "__main__":
    torch.set_num_threads(1)
    lfm2()
    lfm2_moe()
    qwen2_moe("qwen2_moe-odd", True, 2, mlp_only_layers=[1])
    qwen2_moe("qwen2_moe_window-odd", False, 3, decoder_sparse_step=2, use_sliding_window=True, sliding_window=6, max_window_layers=2)
    zaya()
    zaya_bias()
    privacy_filter()

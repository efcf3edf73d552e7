"""Makes golden.json and golden.safetensors for `ane check` from any transformers model (pip install torch transformers safetensors).
Usage: python3 make_golden.py MODEL_FOLDER OUT_FOLDER 1,2,3 [4,5,6 ...]    a folder or hub name; the token ids of each prompt"""
import json, sys, safetensors.torch, torch, transformers
BLOCKS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
          "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
# module of a layer: the name of its output in model:values()
def make(model, out, prompts, n_greedy=24):
    core, seen, golden, tensors = model.base_model, {}, {"model_type": model.config.model_type, "prompts": []}, {}
    def keep(name): return lambda _, args, y: seen.__setitem__(name, y[0] if isinstance(y, tuple) else y)
    for i, layer in enumerate(core.layers):  # hidden.0 is what enters layer 0, hidden.i what layer i - 1 adds up to
        layer.register_forward_hook(keep(f"hidden.{i + 1}"))
        for path, module in layer.named_modules():
            if path in BLOCKS: module.register_forward_hook(keep(f"layers.{i}.{BLOCKS[path]}"))
    start = lambda _, args, kw: seen.__setitem__("hidden.0", args[0] if args else kw["hidden_states"])
    core.layers[0].register_forward_pre_hook(start, with_kwargs=True)
    core.norm.register_forward_hook(keep("hidden.final"))
    with torch.no_grad():
        for k, ids in enumerate(prompts):
            seen["logits"] = model(torch.tensor([ids]), use_cache=False).logits
            tensors.update({f"p{k}.{name}": v[0].reshape(len(ids), -1).float().clone() for name, v in seen.items()})
            golden["prompts"].append({"name": f"p{k}", "input_ids": ids}); x = list(ids)
            if tensors[f"p{k}.logits"].shape[1] != model.config.vocab_size: continue  # a classifier: no tokens follow
            for _ in range(n_greedy): x.append(int(model(torch.tensor([x]), use_cache=False).logits[0, -1].argmax()))
            golden["prompts"][k]["greedy"] = x[len(ids):]
    json.dump(golden, open(f"{out}/golden.json", "w"))
    safetensors.torch.save_file(tensors, f"{out}/golden.safetensors")
if __name__ == "__main__":
    cls = getattr(transformers, transformers.AutoConfig.from_pretrained(sys.argv[1]).architectures[0])
    model = cls.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager").eval()
    make(model, sys.argv[2], [[int(i) for i in ids.split(",")] for ids in sys.argv[3:]])

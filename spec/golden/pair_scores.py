#!/usr/bin/env python3
"""Makes spec/fixtures/hf/NAME-odd with scores of transformers: sequence classifiers with several labels, a decoder with a classifier, and
an activation of the score.

Run from the top folder: python3 spec/golden/pair_scores.py  (torch, transformers 5, safetensors)
"""
import json
import os

import torch
import transformers

from decoders import spread

ENCODER = dict(hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3, vocab_size=71, pad_token_id=0)
DECODER = dict(ENCODER, num_attention_heads=4, num_key_value_heads=2, head_dim=6, max_position_embeddings=64, bos_token_id=None, eos_token_id=2)
GEMMA = dict(DECODER, use_bidirectional_attention=True, sliding_window=6, query_pre_attn_scalar=6, bos_token_id=1,
             layer_types=["sliding_attention", "full_attention"])
# name: configuration, model, values, labels, name of the activation in torch.nn
MODELS = {
    "bert_labels": ("BertConfig", "BertForSequenceClassification", dict(ENCODER, max_position_embeddings=64), 3, None),
    "bert_tanh": ("BertConfig", "BertForSequenceClassification", dict(ENCODER, max_position_embeddings=64), 1, "Tanh"),
    "qwen3_score": ("Qwen3Config", "Qwen3ForSequenceClassification", DECODER, 2, None),
    "llama_score": ("LlamaConfig", "LlamaForSequenceClassification", dict(DECODER, bos_token_id=1), 1, "Sigmoid"),
    "gemma3_score": ("Gemma3TextConfig", "Gemma3TextForSequenceClassification", GEMMA, 1, "Identity"),
}
# The second and the third end with padding: a decoder scores the last token before it.
PROMPTS = [[5, 9, 33, 2, 47, 60, 2], [7, 8, 12, 0], [11, 0, 4, 0, 0], [3], list(range(3, 40))]

for number, (name, (config, model, values, labels, act)) in enumerate(MODELS.items()):
    cfg = getattr(transformers, config)(num_labels=labels, **values)
    if act:
        cfg.sentence_transformers = {"activation_fn": "torch.nn.modules.activation." + act, "version": "6.2.0"}
    m = getattr(transformers, model)(cfg)
    spread(m, 300 + number)
    folder = f"spec/fixtures/hf/{name}-odd"
    m.bfloat16().save_pretrained(folder)
    m = getattr(transformers, model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    f = getattr(torch.nn, act)() if act else torch.nn.Sigmoid() if labels == 1 else torch.nn.Identity()
    out = []
    for ids in PROMPTS:
        with torch.no_grad():
            logits = m(torch.tensor([ids])).logits[0].float()
        out.append({"input_ids": ids, "logits": logits.tolist(), "scores": f(logits).tolist()})
    with open(f"{folder}/golden.json", "w") as file:
        json.dump({"kind": "scores", "computed_with": "transformers " + transformers.__version__ + ", float32", "prompts": out}, file)
    for file in os.listdir(folder):
        os.chmod(f"{folder}/{file}", 0o644)

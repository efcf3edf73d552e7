#!/usr/bin/env python3
"""Writes GGUF files with random weights in the shapes of published models of newer blocks, for bench/compare. Needs: pip install gguf.

    python3 bench/make_blocks.py qwen3.5-0.8b|gpt-oss-small|granite-4-h-1b FILE.gguf [--layers N] [--type Q4_0|Q8_0|F32]

qwen3.5-0.8b    Qwen/Qwen3.5-0.8B, config.json: 24 layers, three of four gated delta nets. Matrices in --type, embeddings in Q8_0.
gpt-oss-small   openai/gpt-oss-20b, config.json, with all widths, heads and the vocabulary halved and 6 of 24 layers: 32 experts,
                4 of them chosen. Experts in MXFP4, the other matrices in Q8_0, as in the published GGUF files.
granite-4-h-1b  ibm-granite/granite-4.0-h-1b, config.json, with 20 of 40 layers: one attention layer in ten, else Mamba-2.
                Matrices in --type, embeddings in Q8_0.

Weights are normally distributed with variance 1 / inputs. A row is put together from quantised blocks of one pool of 2^20 values, so
that a file takes seconds; the same arguments give the same file. The files have no tokenizer. With --type F32 all tensors are in fp32,
to compare logits without the rounding of activations that quantised types bring.
"""
import argparse
import sys

import gguf
import numpy as np
from gguf.quants import quantize

TYPES = {name: getattr(gguf.GGMLQuantizationType, name) for name in ("F32", "Q4_0", "Q8_0", "MXFP4")}
POOL = 1 << 20  # values; a multiple of the block of all TYPES (32 values)


class Maker:
    """A GGUF file that is being written. Shapes are [rows, inputs], as numpy has them; GGUF stores them reversed."""

    def __init__(self, path, architecture, exact):
        self.writer = gguf.GGUFWriter(path, architecture)
        self.architecture, self.random = architecture, np.random.default_rng(17)
        self.normal = self.random.standard_normal(POOL, dtype=np.float32)
        self.pools, self.exact = {}, exact

    def keys(self, **values):
        """Keys of the architecture; an underscore pair stands for a dot. Strings, flags, integers, floats and lists of integers."""
        for name, value in values.items():
            name = self.architecture + "." + name.replace("__", ".")
            add = {str: "add_string", bool: "add_bool", int: "add_uint32", float: "add_float32", list: "add_array"}[type(value)]
            getattr(self.writer, add)(name, value)

    def vector(self, name, values):
        self.writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))

    def norm(self, name, n):
        self.vector(name + ".weight", 1 + 0.1 * self.random.standard_normal(n))

    def matrix(self, name, shape, kind):
        """A weight of variance 1 / inputs. shape: [rows, inputs] or [experts, rows, inputs]."""
        kind = "F32" if self.exact else kind
        key = (kind, shape[-1])
        if key not in self.pools:
            data = quantize(self.normal * shape[-1] ** -0.5, TYPES[kind])
            self.pools[key] = data.reshape(POOL // 32, -1)  # a row for 32 values
        blocks, count = self.pools[key], int(np.prod(shape)) // 32
        data = blocks[self.random.integers(0, len(blocks), count)].reshape(*shape[:-1], -1)
        self.writer.add_tensor(name + ".weight", data, raw_dtype=TYPES[kind])

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def common(m, layers, width, vocab, heads, kv_heads, head_dim, inner, eps):
    m.writer.add_string("tokenizer.ggml.model", "none")
    m.keys(block_count=layers, context_length=32768, embedding_length=width, vocab_size=vocab, feed_forward_length=inner,
           attention__head_count=heads, attention__head_count_kv=kv_heads, attention__key_length=head_dim,
           attention__value_length=head_dim, attention__layer_norm_rms_epsilon=eps)


def ssm_keys(m, taps, state, groups, heads, inner):
    m.keys(ssm__conv_kernel=taps, ssm__state_size=state, ssm__group_count=groups, ssm__time_step_rank=heads, ssm__inner_size=inner)


def decays(m, heads):
    """-A of heads and the bias of their time steps, as Mamba-2 draws them: A of 1 to 16, steps of 0.001 to 0.1 before softplus."""
    step = np.exp(m.random.uniform(np.log(0.001), np.log(0.1), heads))
    return -m.random.uniform(1, 16, heads), step + np.log(-np.expm1(-step))


def qwen35(m, layers, kind):
    width, vocab, heads, kv, dim, inner = 1024, 248320, 8, 2, 256, 3584
    delta, state = 16, 128  # key heads and as many value heads, and the width of both
    common(m, layers, width, vocab, heads, kv, dim, inner, 1e-6)
    ssm_keys(m, 4, state, delta, delta, delta * state)
    m.keys(full_attention_interval=4, rope__dimension_count=dim // 4, rope__freq_base=1e7, rope__dimension_sections=[11, 11, 10, 0])
    m.matrix("token_embd", (vocab, width), "Q8_0")
    m.norm("output_norm", width)
    for i in range(layers):
        p = f"blk.{i}."
        m.norm(p + "attn_norm", width)
        m.norm(p + "post_attention_norm", width)
        if (i + 1) % 4 == 0:
            m.matrix(p + "attn_q", (2 * heads * dim, width), kind)  # with the gate
            m.matrix(p + "attn_k", (kv * dim, width), kind)
            m.matrix(p + "attn_v", (kv * dim, width), kind)
            m.matrix(p + "attn_output", (width, heads * dim), kind)
            m.norm(p + "attn_q_norm", dim)
            m.norm(p + "attn_k_norm", dim)
        else:
            a, bias = decays(m, delta)
            m.matrix(p + "attn_qkv", (3 * delta * state, width), kind)
            m.matrix(p + "attn_gate", (delta * state, width), kind)
            m.matrix(p + "ssm_alpha", (delta, width), kind)
            m.matrix(p + "ssm_beta", (delta, width), kind)
            m.matrix(p + "ssm_out", (width, delta * state), kind)
            m.vector(p + "ssm_conv1d.weight", 0.5 * m.random.standard_normal((3 * delta * state, 4)))
            m.vector(p + "ssm_a", a)
            m.vector(p + "ssm_dt.bias", bias)
            m.norm(p + "ssm_norm", state)
        feed_forward(m, p, width, inner, kind)


def feed_forward(m, p, width, inner, kind):
    m.matrix(p + "ffn_gate", (inner, width), kind)
    m.matrix(p + "ffn_up", (inner, width), kind)
    m.matrix(p + "ffn_down", (width, inner), kind)


def gpt_oss(m, layers, _):
    width, vocab, heads, kv, dim, inner, experts = 1440, 100544, 32, 4, 64, 1440, 32
    common(m, layers, width, vocab, heads, kv, dim, inner, 1e-5)
    m.keys(expert_count=experts, expert_used_count=4, expert_feed_forward_length=inner, attention__sliding_window=128,
           rope__freq_base=150000.0, rope__scaling__type="yarn", rope__scaling__factor=32.0, rope__scaling__original_context_length=4096,
           rope__dimension_count=dim)
    m.matrix("token_embd", (vocab, width), "Q8_0")
    m.matrix("output", (vocab, width), "Q8_0")
    m.norm("output_norm", width)

    def biased(name, rows, inputs):
        m.matrix(name, (rows, inputs), "Q8_0")
        m.vector(name + ".bias", 0.1 * m.random.standard_normal(rows))

    for i in range(layers):
        p = f"blk.{i}."
        m.norm(p + "attn_norm", width)
        m.norm(p + "post_attention_norm", width)
        biased(p + "attn_q", heads * dim, width)
        biased(p + "attn_k", kv * dim, width)
        biased(p + "attn_v", kv * dim, width)
        biased(p + "attn_output", width, heads * dim)
        m.vector(p + "attn_sinks.weight", m.random.standard_normal(heads))
        m.vector(p + "ffn_gate_inp.weight", width ** -0.5 * m.random.standard_normal((experts, width)))
        m.vector(p + "ffn_gate_inp.bias", 0.1 * m.random.standard_normal(experts))
        for name, rows, inputs in (("gate", inner, width), ("up", inner, width), ("down", width, inner)):
            m.matrix(p + f"ffn_{name}_exps", (experts, rows, inputs), "MXFP4")
            m.vector(p + f"ffn_{name}_exps.bias", 0.1 * m.random.standard_normal((experts, rows)))


def granite(m, layers, kind):
    width, vocab, heads, kv, dim, inner = 1536, 100352, 12, 4, 128, 4096
    ssm_heads, head, state = 48, 64, 128
    ssm = ssm_heads * head  # inner width of the Mamba-2 layers
    common(m, layers, width, vocab, heads, [kv if i % 10 == 5 else 0 for i in range(layers)], dim, inner, 1e-5)
    ssm_keys(m, 4, state, 1, ssm_heads, ssm)
    m.keys(embedding_scale=12.0, residual_scale=0.22, attention__scale=1 / dim, logit_scale=6.0, rope__dimension_count=dim,
           rope__scaling__finetuned=False)
    m.matrix("token_embd", (vocab, width), "Q8_0")
    m.norm("output_norm", width)
    for i in range(layers):
        p = f"blk.{i}."
        m.norm(p + "attn_norm", width)
        m.norm(p + "ffn_norm", width)
        if i % 10 == 5:
            m.matrix(p + "attn_q", (heads * dim, width), kind)
            m.matrix(p + "attn_k", (kv * dim, width), kind)
            m.matrix(p + "attn_v", (kv * dim, width), kind)
            m.matrix(p + "attn_output", (width, heads * dim), kind)
        else:
            a, bias = decays(m, ssm_heads)
            channels = ssm + 2 * state
            m.matrix(p + "ssm_in", (ssm + channels + ssm_heads, width), kind)
            m.matrix(p + "ssm_out", (width, ssm), kind)
            m.vector(p + "ssm_conv1d.weight", 0.5 * m.random.standard_normal((channels, 4)))
            m.vector(p + "ssm_conv1d.bias", 0.1 * m.random.standard_normal(channels))
            m.vector(p + "ssm_a", a.reshape(-1, 1))
            m.vector(p + "ssm_d", np.ones((ssm_heads, 1)))
            m.vector(p + "ssm_dt.bias", bias)
            m.vector(p + "ssm_norm.weight", 1 + 0.1 * m.random.standard_normal((1, ssm)))
        feed_forward(m, p, width, inner, kind)


# Name on the command line -> architecture in GGUF, layers, maker of the tensors.
SHAPES = {"qwen3.5-0.8b": ("qwen35", 24, qwen35), "gpt-oss-small": ("gpt-oss", 6, gpt_oss), "granite-4-h-1b": ("granitehybrid", 20, granite)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("shape", choices=SHAPES)
    ap.add_argument("file")
    ap.add_argument("--layers", type=int, help="layers (24, 6, 20)")
    ap.add_argument("--type", choices=("Q4_0", "Q8_0", "F32"), default="Q4_0", help="type of the matrices (Q4_0)")
    a = ap.parse_args()
    architecture, layers, make = SHAPES[a.shape]
    if a.layers is not None and a.layers < 1:
        sys.exit("--layers: wanted a positive number, got " + str(a.layers))
    m = Maker(a.file, architecture, a.type == "F32")
    make(m, a.layers or layers, a.type)
    m.close()


if __name__ == "__main__":
    main()

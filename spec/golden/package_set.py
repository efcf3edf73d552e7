#!/usr/bin/env python3
"""Makes spec/fixtures/mlpackage/set: a tiny language model as a package set, written by coremltools, with logits from numpy.

Layer 0 is attention (2 heads, 1 kv head, rope, window 5), layer 1 a short convolution over three tokens whose state is a
column buffer; two slices of the head. Needs coremltools 9: `python spec/golden/package_set.py OUT`.
"""
import json, os, shutil, sys
import numpy as np
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

OUT = sys.argv[1]
V, D, H, DH, CTX, MAXT, K, WINDOW = 43, 16, 2, 8, 24, 4, 3, 5
rng = np.random.default_rng(7)
def w(*shape, scale=0.3): return (rng.standard_normal(shape) * scale).astype(np.float16)
W = {"embed": w(V, D, scale=1.0), "q": w(H * DH, D), "k": w(DH, D), "v": w(DH, D), "o": w(D, H * DH), "conv": w(D, 1, K, 1), "p": w(D, D), "head": w(V, D, scale=1.0)}
INV = [1.0, 0.25, 0.0625, 0.015625]

from coremltools.converters.mil.mil import get_new_symbol
def kernel(name): return W[name].reshape(W[name].shape + (1, 1))

def attention():
    t = get_new_symbol()
    @mb.program(input_specs=[mb.TensorSpec((1, D, t, 1), dtype=types.fp16), mb.TensorSpec((1,), dtype=types.int32),
                             mb.TensorSpec((1, DH // 2, t, 1), dtype=types.fp16), mb.TensorSpec((1, DH // 2, t, 1), dtype=types.fp16),
                             mb.TensorSpec((1, 1, t, CTX), dtype=types.fp16),
                             mb.StateTensorSpec((1, 1, CTX, DH), dtype=types.fp16), mb.StateTensorSpec((1, 1, CTX, DH), dtype=types.fp16)],
                opset_version=ct.target.iOS18)
    def prog(hidden, position, cos_0, sin_0, mask_0, keys, values):
        def heads(name, n):                                          # [1, n, T, DH]
            y = mb.conv(x=hidden, weight=kernel(name))
            y = mb.reshape(x=mb.squeeze(x=y, axes=[3]), shape=[1, n, DH, -1])
            return mb.transpose(x=y, perm=[0, 1, 3, 2])
        c = mb.transpose(x=mb.squeeze(x=cos_0, axes=[3]), perm=[0, 2, 1]); c = mb.expand_dims(x=c, axes=[1])   # [1, 1, T, r/2]
        s = mb.transpose(x=mb.squeeze(x=sin_0, axes=[3]), perm=[0, 2, 1]); s = mb.expand_dims(x=s, axes=[1])
        def rope(x):
            a, b = mb.split(x=x, num_splits=2, axis=-1)
            return mb.concat(values=[mb.sub(x=mb.mul(x=a, y=c), y=mb.mul(x=b, y=s)), mb.add(x=mb.mul(x=b, y=c), y=mb.mul(x=a, y=s))], axis=-1)
        q, k, v = rope(heads("q", H)), rope(heads("k", 1)), heads("v", 1)
        n = mb.gather(x=mb.shape(x=hidden), indices=[2], axis=0)
        begin = mb.concat(values=[[0, 0], position, [0]], axis=0)
        end = mb.concat(values=[[1, 1], mb.add(x=position, y=n), [DH]], axis=0)
        kk = mb.coreml_update_state(state=keys, value=mb.slice_update(x=mb.read_state(input=keys), update=k, begin=begin, end=end))
        vv = mb.coreml_update_state(state=values, value=mb.slice_update(x=mb.read_state(input=values), update=v, begin=begin, end=end))
        scores = mb.add(x=mb.mul(x=mb.matmul(x=q, y=kk, transpose_y=True), y=np.float16(DH ** -0.5)), y=mask_0)
        y = mb.matmul(x=mb.softmax(x=scores, axis=-1), y=vv)         # [1, H, T, DH]
        y = mb.reshape(x=mb.transpose(x=y, perm=[0, 1, 3, 2]), shape=[1, H * DH, -1, 1])
        return mb.add(x=hidden, y=mb.conv(x=y, weight=kernel("o")), name="hidden_out")
    return prog, t

def convolution():
    t = get_new_symbol()
    @mb.program(input_specs=[mb.TensorSpec((1, D, t, 1), dtype=types.fp16), mb.StateTensorSpec((1, D, K - 1, 1), dtype=types.fp16)], opset_version=ct.target.iOS18)
    def prog(hidden, columns):
        p = mb.conv(x=hidden, weight=kernel("p"))
        line = mb.concat(values=[mb.read_state(input=columns), p], axis=2)
        rest = mb.slice_by_index(x=line, begin=[0, 0, -(K - 1), 0], end=[1, D, 0, 1], end_mask=[True] * 4)
        mb.coreml_update_state(state=columns, value=mb.reshape(x=rest, shape=[1, D, K - 1, 1]))
        y = mb.silu(x=mb.conv(x=line, weight=W["conv"], groups=D))
        return mb.add(x=hidden, y=y, name="hidden_out")
    return prog, t

def head(a, b, argmax):
    t = get_new_symbol()
    @mb.program(input_specs=[mb.TensorSpec((1, D, t, 1), dtype=types.fp16)], opset_version=ct.target.iOS18)
    def prog(hidden):
        y = mb.conv(x=hidden, weight=W["head"][a:b].reshape(b - a, D, 1, 1), name="logits")
        if not argmax: return y
        y = mb.squeeze(x=y, axes=[3])
        return mb.reduce_argmax(x=y, axis=1, name="argmax"), mb.reduce_max(x=y, axes=[1], name="max")
    return prog, t

def save(name, made, flexible):
    prog, t = made
    d = lambda shape: ct.Shape(tuple(ct.RangeDim(1, MAXT, 1) if x is None else x for x in shape))
    ins = [ct.TensorType(name=n, shape=d(s), dtype=dt) for n, s, dt in flexible]
    m = ct.convert(prog, inputs=ins, minimum_deployment_target=ct.target.iOS18, compute_precision=ct.precision.FLOAT16,
                   pass_pipeline=ct.PassPipeline.DEFAULT)
    path = os.path.join(OUT, name)
    shutil.rmtree(path, ignore_errors=True)
    m.save(path)
    size = sum(os.path.getsize(os.path.join(r, f)) for r, _, fs in os.walk(path) for f in fs)
    return {"path": name, "bytes": size, "sha256": ""}

f16 = np.float16
HID = ("hidden", (1, D, None, 1), f16)
os.makedirs(OUT, exist_ok=True)
W["embed"].tofile(os.path.join(OUT, "embed.bin"))
rope, mask = (1, DH // 2, None, 1), (1, 1, None, CTX)
packages = []
p = save("layer_00.mlpackage", attention(), [HID, ("position", (1,), np.int32), ("cos_0", rope, f16), ("sin_0", rope, f16), ("mask_0", mask, f16)])
packages.append({**p, "kind": "layers", "start": 0, "end": 0,
                 "inputs": [{"name": "hidden", "role": "hidden", "edge": "embed"}, {"name": "position", "role": "position"},
                            {"name": "cos_0", "role": "rope_cos", "rope": 0}, {"name": "sin_0", "role": "rope_sin", "rope": 0},
                            {"name": "mask_0", "role": "mask", "window": WINDOW, "ahead": 0}],
                 "outputs": [{"name": "hidden_out", "role": "hidden", "edge": "layers.0"}],
                 "states": [{"name": "keys", "shape": [1, 1, CTX, DH], "role": "keys"}, {"name": "values", "shape": [1, 1, CTX, DH], "role": "values"}]})
p = save("layer_01.mlpackage", convolution(), [HID])
packages.append({**p, "kind": "layers", "start": 1, "end": 1, "inputs": [{"name": "hidden", "role": "hidden", "edge": "layers.0"}],
                 "outputs": [{"name": "hidden_out", "role": "hidden", "edge": "layers.1"}], "states": [{"name": "columns", "shape": [1, D, K - 1, 1], "role": "columns"}]})
heads = {}
for argmax in (False, True):
    heads[argmax] = []
    for i, (a, b) in enumerate(((0, 20), (20, V))):
        p = save("%s_%02d.mlpackage" % ("argmax" if argmax else "lm_head", i), head(a, b, argmax), [HID])
        outs = [{"name": "argmax", "role": "argmax"}, {"name": "max", "role": "max"}] if argmax else [{"name": "logits", "role": "logits"}]
        heads[argmax].append({**p, "kind": "head", "vocab_start": a, "vocab_end": b, "inputs": [{"name": "hidden", "role": "hidden", "edge": "layers.1"}], "outputs": outs, "states": []})
meta = {"format_version": 1, "kind": "causal", "model_family": "tiny", "model_name": "tiny", "d_model": D, "n_layers": 2, "vocab_size": V, "max_seq_len": CTX,
        "rangedim_max_t": MAXT, "weights": "fp16", "embed_bin": "embed.bin", "eos_ids": [1], "ropes": [{"inv_freq": INV, "magnitude": 1.0}]}
json.dump({**meta, "packages": packages + heads[False]}, open(os.path.join(OUT, "runtime_meta.json"), "w"), indent=1)
json.dump({**meta, "packages": packages + heads[True]}, open(os.path.join(OUT, "argmax_meta.json"), "w"), indent=1)

# ---- the same in numpy ----
F = {k: v.astype(np.float64) for k, v in W.items()}
def logits(ids):
    n = len(ids); x = F["embed"][ids]
    ang = np.outer(np.arange(n), INV); c, s = np.cos(ang), np.sin(ang)
    def rot(y): a, b = y[..., :DH // 2], y[..., DH // 2:]; return np.concatenate([a * c - b * s, b * c + a * s], -1)
    q = [rot(x @ F["q"][h * DH:(h + 1) * DH].T) for h in range(H)]; k = rot(x @ F["k"].T); v = x @ F["v"].T
    j, p = np.arange(n)[None], np.arange(n)[:, None]
    hide = np.where((j <= p) & (j > p - WINDOW), 0, -np.inf)
    out = []
    for h in range(H):
        sc = q[h] @ k.T * DH ** -0.5 + hide; e = np.exp(sc - sc.max(1, keepdims=True)); out.append(e / e.sum(1, keepdims=True) @ v)
    x = x + np.concatenate(out, 1) @ F["o"].T
    u = np.concatenate([np.zeros((K - 1, D)), x @ F["p"].T])
    y = sum(u[i:i + n] * F["conv"][:, 0, i, 0] for i in range(K))
    x = x + y / (1 + np.exp(-y))
    return x @ F["head"].T
ids = [int(i) for i in rng.integers(2, V, 13)]
L = logits(ids)
greedy = list(ids[:5])
for _ in range(10): greedy.append(int(logits(greedy)[-1].argmax()))
json.dump({"ids": ids, "logits": [[round(float(v), 6) for v in r] for r in L], "prompt": ids[:5], "greedy": greedy[5:]}, open(os.path.join(OUT, "golden.json"), "w"))

#!/usr/bin/env python3
"""Makes packages whose outputs are norms, activations, resampled images, moved elements and recurrent layers, in odd shapes and
with odd parameters, case files with what PyTorch and numpy give by the documented formulas, and a list of all MIL operations.
Needs coremltools 9 and torch: `package_layers.py OUT`."""
import json, os, shutil, sys
import numpy as np
import torch
import torch.nn.functional as F
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
OUT = sys.argv[1]
rng = np.random.default_rng(5)
f32, i32 = np.float32, np.int32
W = lambda *s: rng.standard_normal(s).astype(f32)
T = torch.from_numpy
INPUTS = {"x": W(2, 4, 3, 5), "q": W(1, 8, 2, 3), "v": W(2, 3, 7), "s": W(5, 2, 3), "h": W(2, 4), "h2": W(2, 8), "c": W(2, 4), "c2": W(2, 8),
          "i": np.array([[2, 0, -1], [4, 1, 3]], i32), "j": np.array([3, 0, 3], i32), "u": W(2, 3, 3, 5), "n": np.array([2, 0, 3], i32)}
KIND = {"f": types.fp32, "i": types.int32}

def group(name, cases, target):
    """cases: output -> (inputs, operation of them, expected values of them)"""
    names = [n for n in INPUTS if any(n in c[0].split() for c in cases.values())]
    env = {"cases": cases, "mb": mb}
    exec("def f(%s):\n    g = dict(%s)\n    outs = []\n    for key, (args, fn, _) in cases.items():\n        r = fn(*[g[a] for a in args.split()])\n"
         "        outs += [mb.identity(x=y, name='out_%%s_%%d' %% (key, k)) for k, y in enumerate(r if isinstance(r, (list, tuple)) else [r])]\n    return tuple(outs)\n"
         % (", ".join(names), ", ".join("%s=%s" % (n, n) for n in names)), env)
    prog = mb.program(input_specs=[mb.TensorSpec(INPUTS[n].shape, dtype=KIND[INPUTS[n].dtype.kind]) for n in names], opset_version=target)(env["f"])
    model = ct.convert(prog, minimum_deployment_target=target, compute_precision=ct.precision.FLOAT32, pass_pipeline=ct.PassPipeline.EMPTY)
    folder = os.path.join(OUT, name); shutil.rmtree(folder, ignore_errors=True); os.makedirs(folder)
    model.save(os.path.join(folder, "model.mlpackage"))
    want = {}
    for key, (args, _, fn) in cases.items():
        r = fn(*[INPUTS[a] for a in args.split()])
        for k, y in enumerate(r if isinstance(r, (list, tuple)) else [r]): want["out_%s_%d" % (key, k)] = np.asarray(y)
    tensor = lambda a: {"shape": list(a.shape), "dtype": {"f": "float32", "i": "int32", "b": "int32"}[a.dtype.kind],
                        "data": [float("%.7g" % v) if a.dtype.kind == "f" else int(v) for v in a.ravel()]}
    case = {"name": name, "package": "model.mlpackage", "tolerance": {"atol": 2e-5, "rtol": 2e-5},
            "calls": [{"inputs": {n: tensor(INPUTS[n]) for n in names}, "outputs": {k: tensor(v) for k, v in want.items()}}]}
    json.dump(case, open(os.path.join(folder, "case.json"), "w"))
    print(name, len(want))

# ---- norms and activations ----
pos = lambda *s: (rng.random(s) + 0.2).astype(f32)
m4, v4, g4, b4, a4, p4 = W(4), pos(4), W(4), W(4), W(4), pos(4)
m3, v3 = W(3), pos(3)
rows = lambda a, n: a.reshape([1, -1] + [1] * (n - 2))
def lrn(x, size, alpha, beta, k):  # channels: the third axis from the end
    s, d = np.square(x), x.shape[-3]
    total = np.stack([s[..., max(0, c - size // 2):min(d, c + (size - 1) // 2 + 1), :, :].sum(-3) for c in range(d)], -3)
    return (x / (k + alpha / size * total) ** beta).astype(f32)
norms = {
    "batch": ("x", lambda x: mb.batch_norm(x=x, mean=m4, variance=v4, gamma=g4, beta=b4, epsilon=f32(1e-2)), lambda x: F.batch_norm(T(x), T(m4), T(v4), T(g4), T(b4), eps=1e-2)),
    "batch3": ("v", lambda v: mb.batch_norm(x=v, mean=m3, variance=v3), lambda v: F.batch_norm(T(v), T(m3), T(v3))),
    "batch_b": ("x", lambda x: mb.batch_norm(x=x, mean=m4, variance=v4, beta=b4), lambda x: F.batch_norm(T(x), T(m4), T(v4), None, T(b4))),
    "instance": ("x", lambda x: mb.instance_norm(x=x, gamma=g4, beta=b4, epsilon=f32(1e-3)), lambda x: F.instance_norm(T(x), weight=T(g4), bias=T(b4), eps=1e-3)),
    "instance3": ("v", lambda v: mb.instance_norm(x=v), lambda v: F.instance_norm(T(v))),
    "l2": ("x", lambda x: mb.l2_norm(x=x, epsilon=f32(0.5)), lambda x: x / np.sqrt(np.square(x).sum((1, 2, 3), keepdims=True) + 0.5)),
    "l2_3": ("v", lambda v: mb.l2_norm(x=v), lambda v: v / np.sqrt(np.square(v).sum() + 1e-6)),
    "lrn": ("x", lambda x: mb.local_response_norm(x=x, size=3, alpha=f32(0.7), beta=f32(0.6), k=f32(1.5)), lambda x: F.local_response_norm(T(x), 3, 0.7, 0.6, 1.5)),
    "lrn_2": ("x", lambda x: mb.local_response_norm(x=x, size=2, alpha=f32(0.3)), lambda x: F.local_response_norm(T(x), 2, 0.3)),
    "lrn_3": ("v", lambda v: mb.local_response_norm(x=v, size=3), lambda v: lrn(v, 3, 1e-4, 0.75, 1)),
    "prelu": ("x", lambda x: mb.prelu(x=x, alpha=a4), lambda x: F.prelu(T(x), T(a4))),
    "scaled_tanh": ("x", lambda x: mb.scaled_tanh(x=x, alpha=f32(1.7), beta=f32(0.6)), lambda x: f32(1.7) * np.tanh(x * f32(0.6))),
    "softplus": ("x", lambda x: mb.softplus_parametric(x=x, alpha=a4, beta=p4), lambda x: rows(a4, 4) * np.log1p(np.exp(x * rows(p4, 4)))),
    "threshold": ("x", lambda x: mb.thresholded_relu(x=x, alpha=f32(0.3)), lambda x: np.where(x >= f32(0.3), x, f32(0))),
}
group("ops_norm", norms, ct.target.iOS16)

# ---- images ----
def resized(x, n, mode):
    """Bilinear by the grid points of MIL's documentation, an axis at a time."""
    for axis, out in zip((-2, -1), n):
        w, i = x.shape[axis], np.arange(out, dtype=np.float64)
        p = {"STRICT_ALIGN_CORNERS": i * (w - 1) / max(out - 1, 1), "ALIGN_CORNERS": i * (w - 1) / (out - 1) if out > 1 else i + (w - 1) / 2,
             "DEFAULT": i * w / out, "OFFSET_CORNERS": (i + 0.5) * max(1, w - 1) / out, "UNALIGN_CORNERS": (i + 0.5) * w / out - 0.5}[mode]
        p = np.clip(p, 0, w - 1); low = np.floor(p).astype(int); high = np.minimum(low + 1, w - 1); share = p - low
        shape = [1] * x.ndim; shape[axis] = out
        x = np.take(x, low, axis) * (1 - share.reshape(shape)) + np.take(x, high, axis) * share.reshape(shape)
    return x.astype(f32)
def middle(x, n):  # the element that holds the middle of the new one
    for axis, out in zip((-2, -1), n): x = np.take(x, ((2 * np.arange(out) + 1) * x.shape[axis]) // (2 * out), axis)
    return x
up = lambda x, mode, s, a=None, again=None: F.interpolate(T(x), scale_factor=s, mode=mode, align_corners=a, recompute_scale_factor=again)
image = {
    "nearest": ("x", lambda x: mb.upsample_nearest_neighbor(x=x, scale_factor_height=2, scale_factor_width=3), lambda x: up(x, "nearest", (2, 3))),
    "nearest_f": ("x", lambda x: mb.upsample_nearest_neighbor(x=x, scale_factor_height=f32(1.5), scale_factor_width=f32(1.7)), lambda x: up(x, "nearest", (1.5, 1.7))),
    "nearest_o": ("x", lambda x: mb.upsample_nearest_neighbor(x=x, scale_factor_height=f32(7.0001 / 3), scale_factor_width=f32(8.0001 / 5)), lambda x: F.interpolate(T(x), (7, 8))),
    "to_nearest": ("x", lambda x: mb.resize_nearest_neighbor(x=x, target_size_height=7, target_size_width=3), lambda x: middle(x, (7, 3))),
    "linear": ("x", lambda x: mb.upsample_bilinear(x=x, scale_factor_height=2, scale_factor_width=3, align_corners=False), lambda x: up(x, "bilinear", (2, 3), False)),
    "linear_a": ("x", lambda x: mb.upsample_bilinear(x=x, scale_factor_height=2, scale_factor_width=3, align_corners=True), lambda x: up(x, "bilinear", (2, 3), True)),
    "linear_f": ("x", lambda x: mb.upsample_bilinear(x=x, scale_factor_height=f32(1.5), scale_factor_width=f32(0.7), align_corners=False), lambda x: up(x, "bilinear", (1.5, 0.7), False, True)),
    "linear_h": ("x", lambda x: mb.upsample_bilinear(x=x, scale_factor_height=2, scale_factor_width=2, align_corners=False, half_pixel_centers=False), lambda x: resized(x, (6, 10), "DEFAULT")),
}
for mode in ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS", "UNALIGN_CORNERS"):
    for h, w in ((7, 4), (1, 9)):
        image["to_%s_%d" % (mode, h)] = ("x", lambda x, h=h, w=w, mode=mode: mb.resize_bilinear(x=x, target_size_height=h, target_size_width=w, sampling_mode=mode),
                                         lambda x, h=h, w=w, mode=mode: resized(x, (h, w), mode))
def depth(q, b):  # channel (i b + j) C + c becomes place (i, j) of channel c
    n, c, h, w = q.shape; return q.reshape(n, b, b, c // b // b, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // b // b, h * b, w * b)
def space(x, b):
    n, c, h, w = x.shape; return x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)
image |= {
    "shuffle": ("q", lambda q: mb.pixel_shuffle(x=q, upscale_factor=2), lambda q: F.pixel_shuffle(T(q), 2)),
    "unshuffle": ("q", lambda q: mb.pixel_unshuffle(x=mb.slice_by_index(x=q, begin=[0, 0, 0, 0], end=[1, 8, 2, 2]), downscale_factor=np.uint32(2)), lambda q: F.pixel_unshuffle(T(q)[..., :2], 2)),
    "depth": ("q", lambda q: mb.depth_to_space(x=q, block_size=2), lambda q: depth(q, 2)),
    "space": ("x", lambda x: mb.space_to_depth(x=mb.slice_by_index(x=x, begin=[0, 0, 0, 1], end=[2, 4, 2, 5]), block_size=2), lambda x: space(x[:, :, :2, 1:], 2)),
    "crop": ("x", lambda x: mb.crop(x=x, crop_height=[1, 0], crop_width=[1, 2]), lambda x: x[:, :, 1:, 1:-2]),
    "l2_pool": ("x", lambda x: mb.l2_pool(x=x, kernel_sizes=[2, 3], strides=[1, 2], pad_type="custom", pad=[1, 0, 1, 1]), lambda x: torch.sqrt(F.avg_pool2d(F.pad(T(x) ** 2, (1, 1, 1, 0)), (2, 3), (1, 2), divisor_override=1))),
    "max_c": ("x", lambda x: mb.max_pool(x=x, kernel_sizes=[2, 2], strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1], ceil_mode=True), lambda x: F.max_pool2d(T(x), 2, 2, 1, ceil_mode=True)),
    "avg_c": ("x", lambda x: mb.avg_pool(x=x, kernel_sizes=[2, 3], strides=[2, 2], pad_type="custom", pad=[0, 0, 1, 1], ceil_mode=True), lambda x: F.avg_pool2d(T(x), (2, 3), 2, (0, 1), ceil_mode=True)),
    "avg_x": ("x", lambda x: mb.avg_pool(x=x, kernel_sizes=[3, 3], strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1], exclude_padding_from_average=True), lambda x: F.avg_pool2d(T(x), 3, 2, 1, count_include_pad=False)),
}
w1 = W(4, 2, 3, 2)
image["transposed"] = ("x", lambda x: mb.conv_transpose(x=x, weight=w1, strides=[2, 3], pad_type="custom", pad=[1, 0, 0, 0], output_shape=[2, 2, 6, 15]),
                       lambda x: F.conv_transpose2d(T(x), T(w1), stride=(2, 3), output_padding=(0, 1))[:, :, 1:])
group("ops_image", image, ct.target.iOS16)

# ---- places ----
def scattered(fn, axis):
    def run(x, j, u):
        y = np.moveaxis(x.copy(), axis, 0); w = np.moveaxis(u, 1, 0)
        for k, at in enumerate(j): y[at] = fn(y[at], w[k])
        return np.moveaxis(y, 0, axis)
    return run
MODES = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum, "update": lambda a, b: b}
order = lambda x, axis, up: np.argsort(x if up else -x, axis=axis, kind="stable").astype(i32)
band = lambda x, lo, hi: np.triu(x, -lo if lo >= 0 else -99) * (np.tril(np.ones_like(x), hi) if hi >= 0 else 1)
hot = lambda i, n, on, off: np.where(np.arange(n) == i[..., None], on, off)
def reversed_(s, n):  # the first n[b] elements of axis 0, for each b of axis 2
    s = s.copy()
    for b, k in enumerate(n): s[:k, :, b] = s[:k, :, b][::-1]
    return s
place = {
    "one_hot": ("i", lambda i: mb.one_hot(indices=i, one_hot_vector_size=4), lambda i: hot(i, 4, 1, 0).astype(i32)),
    "one_hot_f": ("i", lambda i: mb.one_hot(indices=i, one_hot_vector_size=5, axis=1, on_value=f32(2.5), off_value=f32(-1)), lambda i: np.moveaxis(hot(i, 5, f32(2.5), f32(-1)), 2, 1)),
    "one_hot_r": ("i j", lambda i, j: mb.one_hot(indices=i, one_hot_vector_size=mb.reduce_max(x=j, keep_dims=False), axis=0), lambda i, j: np.moveaxis(hot(i, 3, 1, 0), 2, 0).astype(i32)),
    "argsort": ("x", lambda x: mb.argsort(x=x), lambda x: order(x, -1, False)),
    "argsort_1": ("x", lambda x: mb.argsort(x=x, axis=1, ascending=True), lambda x: order(x, 1, True)),
    "argsort_i": ("i", lambda i: mb.argsort(x=i, axis=-2, ascending=True), lambda i: order(i, -2, True)),
    "flat": ("x", lambda x: mb.flatten2d(x=x), lambda x: x.reshape(2, -1)), "flat_n": ("x", lambda x: mb.flatten2d(x=x, axis=-2), lambda x: x.reshape(8, -1)),
    "like": ("x s i", lambda x, s, i: mb.reshape_like(x=x, ref_tensors=(x, s, i), begins=(0, 0, 1), ends=(2, 1, 0), end_masks=(False, False, True)), lambda x, s, i: x.reshape(2, 4, 5, 3)),
    "along": ("x i", lambda x, i: mb.scatter_along_axis(data=x, indices=mb.fill(shape=I4, value=i32(1)), updates=x, axis=1, mode="add"), lambda x, i: np.stack([x[:, 0], x[:, 1] + x.sum(1), x[:, 2], x[:, 3]], 1)),
    "nd": ("x", lambda x: mb.scatter_nd(data=x, indices=np.array([[1, 2], [0, 0]], i32), updates=ND, mode="update"), lambda x: nd(x)),
    "windows": ("v", lambda v: mb.sliding_windows(x=v, axis=2, size=3, stride=2), lambda v: np.lib.stride_tricks.sliding_window_view(v, 3, 2)[:, :, ::2]),
    "windows_1": ("x", lambda x: mb.sliding_windows(x=x, axis=-2, size=2), lambda x: np.moveaxis(np.lib.stride_tricks.sliding_window_view(x, 2, 2), -1, 3)),
    "turned": ("s n", lambda s, n: mb.reverse_sequence(x=s, lengths=n, seq_axis=0, batch_axis=2), reversed_),
    "turned_i": ("i", lambda i: mb.reverse_sequence(x=i, lengths=np.array([3, 2], i32), seq_axis=-1, batch_axis=0), lambda i: np.stack([i[0, ::-1], i[1, [1, 0, 2]]])),
}
place["resize"] = ("x", lambda x: mb.resize(x=x, shape=np.array([2, 7, 0], i32), resized_dims=np.uint32(2), sampling_mode="UNALIGN_CORNERS"), lambda x: resized(x, (7, 5), "UNALIGN_CORNERS"))
place["resize_r"] = ("x n", lambda x, n: mb.resize(x=x, shape=mb.add(x=n, y=i32(1)), resized_dims=np.uint32(2)), lambda x, n: resized(x, (1, 4), "DEFAULT"))
place["resize_n"] = ("x", lambda x: mb.resize(x=x, shape=np.array([7, 4], i32), resized_dims=np.uint32(2), interpolation_mode="NEAREST_NEIGHBOR"), lambda x: middle(x, (7, 4)))
place["scalars"] = ("x i", lambda x, i: mb.concat(values=[mb.gather(x=mb.shape(x=x), indices=i32(3), axis=0), mb.reduce_max(x=i, keep_dims=False), i32(-2)], axis=0), lambda x, i: np.array([5, i.max(), -2], i32))
I4, ND = np.array([2, 4, 3, 5], i32), W(2, 3, 5)
def nd(x): x = x.copy(); x[1, 2], x[0, 0] = ND; return x
for lo, hi in ((-1, 0), (0, -1), (0, 0), (1, 2), (-1, -1), (2, -1)):
    place["band_%d_%d" % (lo + 1, hi + 1)] = ("x", lambda x, lo=lo, hi=hi: mb.band_part(x=x, lower=lo, upper=hi), lambda x, lo=lo, hi=hi: band(x, lo, hi))
for mode, fn in MODES.items(): place["scatter_" + mode] = ("x j u", lambda x, j, u, mode=mode: mb.scatter(data=x, indices=j, updates=u, axis=1, mode=mode), scattered(fn, 1))
place["scatter_0"] = ("x", lambda x: mb.scatter(data=x, indices=np.array([1], i32), updates=np.ones((1, 4, 3, 5), f32)), lambda x: np.stack([x[0], x[1] + 1]))
place["scatter_i"] = ("i", lambda i: mb.scatter(data=i, indices=np.array([2, 0], i32), updates=np.array([[1, 2], [3, 4]], i32), axis=-1, mode="mul"), lambda i: i * np.array([[2, 1, 1], [4, 1, 3]], i32))
group("ops_place", place, ct.target.iOS17)

# ---- recurrent layers ----
ACT = {"tanh": np.tanh, "scaled_tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
       "relu": lambda x: np.maximum(x, 0), "linear": lambda x: x}
def lstm(x, h, c, wi, wh, b, p, acts, clip):
    y = []
    for t in x.astype(np.float64):
        i, f, o, z = np.split(t @ wi.T + h @ wh.T + b, 4, 1); pi, pf, po = np.split(p, 3)
        i, f, z = ACT[acts[0]](i + c * pi), ACT[acts[0]](f + c * pf), ACT[acts[1]](z)
        c = np.clip(f * c + i * z, -clip, clip)
        h = ACT[acts[0]](o + c * po) * ACT[acts[2]](c); y.append(h)
    return np.stack(y).astype(f32), h.astype(f32), c.astype(f32)
def gru(x, h, wi, wh, b, acts, after=None):
    y, (ri, oi, zi), (rh, oh, zh), (rb, ob, zb) = [], np.split(wi, 3), np.split(wh, 3), np.split(b, 3)
    for t in x.astype(np.float64):
        if after is None:
            r, z = ACT[acts[0]](t @ ri.T + h @ rh.T + rb), ACT[acts[0]](t @ zi.T + h @ zh.T + zb)
            o = ACT[acts[1]](t @ oi.T + (r * h) @ oh.T + ob)
        else:
            ra, oa, za = np.split(after, 3)
            r, z = ACT[acts[0]](t @ ri.T + h @ rh.T + rb + ra), ACT[acts[0]](t @ zi.T + h @ zh.T + zb + za)
            o = ACT[acts[1]](t @ oi.T + oa + r * (h @ oh.T + ob))
        h = (1 - z) * o + z * h; y.append(h)
    return np.stack(y).astype(f32), h.astype(f32)
def rnn(x, h, wi, wh, b, act):
    y = []
    for t in x.astype(np.float64): h = ACT[act](t @ wi.T + h @ wh.T + b); y.append(h)
    return np.stack(y).astype(f32), h.astype(f32)
def ends(r, all_): return r if all_ else [r[0][-1:]] + list(r[1:])
L = [(W(16, 3), W(16, 4), W(16), W(12)) for _ in range(2)]
zero = lambda n: np.zeros(n, f32)
both = lambda s, h, c, acts, clip, peep: [np.concatenate([a, b], -1) for a, b in zip(
    lstm(s, h[:, :4], c[:, :4], *L[0][:3], L[0][3] if peep else zero(12), acts, clip), (lambda r: (r[0][::-1], *r[1:]))(
    lstm(s[::-1], h[:, 4:], c[:, 4:], *L[1][:3], L[1][3] if peep else zero(12), acts, clip)))]
one = dict(weight_ih=L[0][0], weight_hh=L[0][1]); back = dict(weight_ih_back=L[1][0], weight_hh_back=L[1][1], bias_back=L[1][2])
std = ("sigmoid", "tanh", "tanh")
G = (W(12, 3), W(12, 4), W(12), W(12)); R = (W(4, 3), W(4, 4), W(4))
def two(s, h, c):  # without output_sequence: the last of each direction
    y, hn, cn = both(s, h, c, std, np.inf, False)
    return np.concatenate([y[-1:, :, :4], y[:1, :, 4:]], -1), hn, cn
cells = {
    "lstm": ("s h c", lambda s, h, c: mb.lstm(x=s, initial_h=h, initial_c=c, bias=L[0][2], output_sequence=True, **one), lambda s, h, c: lstm(s, h, c, *L[0][:3], zero(12), std, np.inf)),
    "lstm_r": ("s h c", lambda s, h, c: mb.lstm(x=s, initial_h=h, initial_c=c, direction="reverse", output_sequence=True, peephole=L[0][3], clip=f32(0.4), recurrent_activation="hard_sigmoid", cell_activation="relu", activation="linear", **one),
               lambda s, h, c: lstm(s[::-1], h, c, L[0][0], L[0][1], zero(16), L[0][3], ("hard_sigmoid", "relu", "linear"), 0.4)),
    "lstm_2": ("s h2 c2", lambda s, h, c: mb.lstm(x=s, initial_h=h, initial_c=c, bias=L[0][2], direction="bidirectional", output_sequence=True, peephole=L[0][3], peephole_back=L[1][3], activation="scaled_tanh", **one, **back),
               lambda s, h, c: both(s, h, c, ("sigmoid", "tanh", "scaled_tanh"), np.inf, True)),
    "lstm_2e": ("s h2 c2", lambda s, h, c: mb.lstm(x=s, initial_h=h, initial_c=c, bias=L[0][2], direction="bidirectional", **one, **back), two),
    "lstm_e": ("s h c", lambda s, h, c: mb.lstm(x=s, initial_h=h, initial_c=c, bias=L[0][2], **one), lambda s, h, c: ends(lstm(s, h, c, *L[0][:3], zero(12), std, np.inf), False)),
    "gru": ("s h", lambda s, h: mb.gru(x=s, initial_h=h, weight_ih=G[0], weight_hh=G[1], bias=G[2], output_sequence=True), lambda s, h: gru(s, h, *G[:3], ("sigmoid", "tanh"))),
    "gru_r": ("s h", lambda s, h: mb.gru(x=s, initial_h=h, weight_ih=G[0], weight_hh=G[1], direction="reverse", recurrent_activation="hard_sigmoid", activation="relu", output_sequence=True),
              lambda s, h: gru(s[::-1], h, G[0], G[1], zero(12), ("hard_sigmoid", "relu"))),
    "gru_e": ("s h", lambda s, h: mb.gru(x=s, initial_h=h, weight_ih=G[0], weight_hh=G[1], bias=G[2], input_bias=G[3]), lambda s, h: ends(gru(s, h, G[0], G[1], G[2] + G[3], ("sigmoid", "tanh")), False)),
    "gru_a": ("s h", lambda s, h: mb.gru(x=s, initial_h=h, weight_ih=G[0], weight_hh=G[1], bias=G[2], input_bias=G[3], reset_after=True, output_sequence=True), lambda s, h: gru(s, h, *G[:3], ("sigmoid", "tanh"), G[3])),
    "rnn": ("s h", lambda s, h: mb.rnn(x=s, initial_h=h, weight_ih=R[0], weight_hh=R[1], bias=R[2], output_sequence=True), lambda s, h: rnn(s, h, *R, "tanh")),
    "rnn_r": ("s h", lambda s, h: mb.rnn(x=s, initial_h=h, weight_ih=R[0], weight_hh=R[1], direction="reverse", activation="relu"), lambda s, h: ends(rnn(s[::-1], h, R[0], R[1], zero(4), "relu"), False)),
}
group("ops_recurrent", cells, ct.target.iOS18)

# ---- all operations ----
from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry
with open(os.path.join(OUT, "operations.txt"), "w") as f: f.writelines(n + "\n" for n in sorted(SSAOpRegistry.core_ops) if n[0] != "_")

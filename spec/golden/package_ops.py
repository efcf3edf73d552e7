#!/usr/bin/env python3
"""Makes packages whose outputs are one operation each, in odd shapes and with odd parameters, and case files with what an
independent interpreter gives. Needs coremltools 9 and the interpreter run_mil_numpy.py: `ops.py OUT DIR_OF_INTERPRETER`."""
import json, os, shutil, sys
import itertools
import numpy as np
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
OUT = sys.argv[1]
sys.path.insert(0, sys.argv[2])
import run_mil_numpy
rng = np.random.default_rng(11)
def conv(a):  # the definition, place by place
    x, w, g = a["x"].astype(np.float64), a["weight"].astype(np.float64), int(a.get("groups", 1)); n = x.ndim - 2
    st = [int(v) for v in a.get("strides", [1] * n)]; dil = [int(v) for v in a.get("dilations", [1] * n)]; kind = a.get("pad_type", "valid")
    span = [(w.shape[2 + i] - 1) * dil[i] + 1 for i in range(n)]
    if kind == "custom": pad = [(int(a["pad"][2 * i]), int(a["pad"][2 * i + 1])) for i in range(n)]
    elif kind == "same":
        pad = []
        for i in range(n):
            t = max((-(-x.shape[2 + i] // st[i]) - 1) * st[i] + span[i] - x.shape[2 + i], 0); pad.append((t // 2, t - t // 2))
    else: pad = [(0, 0)] * n
    x = np.pad(x, [(0, 0), (0, 0)] + pad)
    out = [(x.shape[2 + i] - span[i]) // st[i] + 1 for i in range(n)]
    y = np.zeros([x.shape[0], w.shape[0]] + out); ci, co = x.shape[1] // g, w.shape[0] // g
    for o in range(w.shape[0]):
        xs = x[:, o // co * ci:(o // co + 1) * ci]
        for at in itertools.product(*map(range, out)):
            cut = tuple(slice(at[i] * st[i], at[i] * st[i] + span[i], dil[i]) for i in range(n))
            y[(slice(None), o) + at] = (xs[(slice(None), slice(None)) + cut] * w[o]).reshape(x.shape[0], -1).sum(1)
    if a.get("bias") is not None: y = y + a["bias"].reshape([1, -1] + [1] * n)
    return y.astype(np.float32)
run_mil_numpy.OPS["conv"] = conv
f32, f16, i32 = np.float32, np.float16, np.int32
INPUTS = {  # name: value
  "a": rng.standard_normal((2, 3, 5)).astype(f32), "b": rng.standard_normal((3, 1)).astype(f32), "p": (rng.random((2, 3, 5)) + 0.3).astype(f32),
  "m": rng.standard_normal((2, 3, 4, 6)).astype(f32), "n": rng.standard_normal((3, 6, 7)).astype(f32),
  "i": rng.integers(-7, 8, (2, 3, 5)).astype(i32), "j": np.array([[3], [-2], [4]], i32), "k": rng.integers(0, 3, (4,)).astype(i32),
  "c1": rng.standard_normal((2, 4, 9)).astype(f32), "c2": rng.standard_normal((1, 6, 5, 8)).astype(f32), "c3": rng.standard_normal((1, 2, 4, 5, 3)).astype(f32),
  "t": rng.integers(0, 5, (2, 3, 2)).astype(i32), "pos": np.array([2], i32),
}
T = {f32: types.fp32, i32: types.int32, f16: types.fp16}
W = lambda *s: rng.standard_normal(s).astype(f32)
def group(name, fns, target, names=None, inputs=None, tol=2e-5):
    inputs = inputs or INPUTS
    names = names or list(inputs)
    specs = [mb.TensorSpec(inputs[n].shape, dtype=T[inputs[n].dtype.type]) for n in names]
    src = "def f(%s):\n    x = dict(%s)\n    outs = []\n    for key, fn in fns.items():\n        r = fn(x)\n        outs += [mb.identity(x=r_, name='out_%%s_%%d' %% (key, q)) for q, r_ in enumerate(r if isinstance(r, (list, tuple)) else [r])]\n    return tuple(outs)\n" % (", ".join(names), ", ".join("%s=%s" % (n, n) for n in names))
    env = {"fns": fns, "mb": mb}; exec(src, env)
    prog = mb.program(input_specs=specs, opset_version=target)(env["f"])
    model = ct.convert(prog, minimum_deployment_target=target, compute_precision=ct.precision.FLOAT32, pass_pipeline=ct.PassPipeline.EMPTY)
    folder = os.path.join(OUT, name); shutil.rmtree(folder, ignore_errors=True); os.makedirs(folder)
    path = os.path.join(folder, "model.mlpackage"); model.save(path)
    pkg = run_mil_numpy.Package(path)
    got = pkg.run({n: inputs[n] for n in names if n in [i.name for i in pkg.functions["main"].input]}, pkg.new_state())
    short = lambda v: float("%.7g" % v)
    dt = lambda a: {"f": "float32", "i": "int32", "b": "bool", "u": "int32"}[np.asarray(a).dtype.kind]
    tensor = lambda a: {"shape": list(np.shape(a)), "dtype": dt(a), "data": [short(v) if dt(a) == "float32" else int(v) for v in np.asarray(a).ravel()]}
    case = {"name": name, "package": "model.mlpackage", "tolerance": {"atol": tol, "rtol": tol}, "calls": [{"inputs": {n: tensor(inputs[n]) for n in names if n in [i.name for i in pkg.functions["main"].input]},
            "outputs": {k: tensor(v) for k, v in got.items() if np.isfinite(np.asarray(v, np.float64)).all()}}]}
    dropped = [k for k, v in got.items() if not np.isfinite(np.asarray(v, np.float64)).all()]
    if dropped: print("not finite:", dropped)
    json.dump(case, open(os.path.join(folder, "case.json"), "w"))
    print(name, len(got))

iOS15, iOS16, iOS17, iOS18 = ct.target.iOS15, ct.target.iOS16, ct.target.iOS17, ct.target.iOS18
I = lambda v: np.array(v, i32)
def binary(op, x="a", y="b"): return lambda v: getattr(mb, op)(x=v[x], y=v[y])
def unary(op, x="a", **kw): return lambda v: getattr(mb, op)(x=v[x], **kw)
elementwise = {}
for op in "add sub mul real_div maximum minimum less less_equal greater greater_equal equal not_equal".split():
    elementwise[op] = binary(op); elementwise[op + "_i"] = binary(op, "i", "j")
for op in "floor_div mod".split(): elementwise[op + "_i"] = binary(op, "i", "j"); elementwise[op] = binary(op)
elementwise["pow"] = binary("pow", "p", "b"); elementwise["pow2"] = lambda v: mb.pow(x=v["a"], y=f32(2))
elementwise["scalar"] = lambda v: mb.add(x=f32(1.5), y=v["a"])
for op in "abs sign square".split(): elementwise[op] = unary(op); elementwise[op + "_i"] = unary(op, "i")
for op in "exp sin cos floor ceil round erf relu silu sigmoid tanh softplus".split(): elementwise[op] = unary(op)
elementwise["sqrt"] = unary("sqrt", "p")
elementwise["rsqrt"] = unary("rsqrt", "p"); elementwise["rsqrt_e"] = unary("rsqrt", "p", epsilon=f32(0.1)); elementwise["inverse"] = unary("inverse", "p"); elementwise["inverse_e"] = unary("inverse", "p", epsilon=f32(0.2))
elementwise["log"] = unary("log", "p"); elementwise["log_e"] = unary("log", "p", epsilon=f32(0.3))
elementwise["clip"] = unary("clip", alpha=f32(-0.5), beta=f32(0.7))
for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"): elementwise["gelu_" + mode[:4]] = unary("gelu", mode=mode)
elementwise["leaky"] = unary("leaky_relu", alpha=f32(0.2))
elementwise["cast_i"] = lambda v: mb.cast(x=mb.mul(x=v["a"], y=f32(3)), dtype="int32"); elementwise["cast_b"] = lambda v: mb.cast(x=v["i"], dtype="bool"); elementwise["cast_f"] = unary("cast", "i", dtype="fp32")
elementwise["select"] = lambda v: mb.select(cond=mb.greater(x=v["a"], y=f32(0)), a=v["a"], b=v["p"])
elementwise["and"] = lambda v: mb.logical_and(x=mb.greater(x=v["a"], y=f32(0)), y=mb.less(x=v["p"], y=f32(0.8)))
elementwise["or"] = lambda v: mb.logical_or(x=mb.greater(x=v["a"], y=f32(0)), y=mb.less(x=v["p"], y=f32(0.8)))
elementwise["not"] = lambda v: mb.logical_not(x=mb.greater(x=v["a"], y=f32(0)))
# bool outputs are no outputs of a model: as numbers
asnum = lambda fn: (lambda v: mb.cast(x=fn(v), dtype="int32"))
for k in list(elementwise):
    if k.split("_i")[0] in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "and", "or", "not", "cast_b"): elementwise[k] = asnum(elementwise[k])

red = {}
for op in "reduce_mean reduce_sum reduce_max reduce_min reduce_prod reduce_sum_square reduce_l2_norm".split():
    red[op] = unary(op); red[op + "_k"] = unary(op, axes=[-1], keep_dims=True); red[op + "_02"] = unary(op, axes=[0, -1], keep_dims=False)
for op in "reduce_sum reduce_max reduce_min".split(): red[op + "_i"] = unary(op, "i", axes=[1], keep_dims=True)
for op in ("reduce_argmax", "reduce_argmin"): red[op] = unary(op); red[op + "1"] = unary(op, axis=1, keep_dims=True); red[op + "_i"] = unary(op, "t", axis=-3, keep_dims=False)
red["topk"] = lambda v: mb.topk(x=v["a"], k=2, axis=-2); red["topk_up"] = lambda v: mb.topk(x=v["a"], k=3, axis=2, ascending=True)
for a in (0, 1, -1):
    for e in (False, True):
        for r in (False, True): red["cumsum%d%d%d" % (a + 1, e, r)] = unary("cumsum", axis=a, exclusive=e, reverse=r)
red["cumsum_i"] = unary("cumsum", "i", axis=1)
red["softmax"] = unary("softmax"); red["softmax0"] = unary("softmax", axis=0); red["softmax1"] = unary("softmax", axis=-2)
red["ln_all"] = unary("layer_norm", axes=[0, 1, 2]); red["ln_last"] = unary("layer_norm", axes=[-1], gamma=W(5), beta=W(5), epsilon=f32(1e-3)); red["ln_1"] = unary("layer_norm", axes=[1], gamma=W(3))
red["ln_02"] = unary("layer_norm", axes=[0, 2], epsilon=f32(1e-4)); red["ln_m"] = unary("layer_norm", "m", axes=[1, 3], gamma=W(3, 6), beta=W(3, 6)); red["ln_23"] = unary("layer_norm", "m", axes=[-2, -1], gamma=W(4, 6), beta=W(4, 6))

def S(x, begin, end, **kw): return lambda v: mb.slice_by_index(x=v[x], begin=begin, end=end, **kw)
move = {
  "transpose": unary("transpose", "m", perm=[2, 0, -1, 1]), "expand": unary("expand_dims", axes=[0, -1]), "squeeze": unary("squeeze", "c2", axes=[0]), "squeeze_all": lambda v: mb.squeeze(x=mb.expand_dims(x=v["a"], axes=[1, 3])),
  "concat": lambda v: mb.concat(values=[v["a"], v["p"], v["a"]], axis=-2), "concat_i": lambda v: mb.concat(values=[v["i"], v["t"]], axis=2), "inter": lambda v: mb.concat(values=[v["a"], v["p"]], axis=1, interleave=True),
  "stack": lambda v: mb.stack(values=[v["a"], v["p"]], axis=1), "stack_": lambda v: mb.stack(values=[v["a"], v["p"]], axis=-1),
  "split": lambda v: mb.split(x=v["m"], num_splits=2, axis=2), "split_s": lambda v: mb.split(x=v["m"], split_sizes=[1, 3, 2], axis=-1),
  "slice": S("m", [0, 1, -3, 1], [2, 3, 4, -1]), "slice_s": S("m", [1, 0, 3, 5], [2, 3, 0, 0], stride=[1, 2, -1, -2], end_mask=[False, True, False, False]),
  "slice_m": S("m", [0, 9, 0, 1], [7, 7, 7, 7], begin_mask=[True, True, False, False], end_mask=[True] * 4), "slice_q": S("m", [1, -1, 0, 2], [0, 0, 3, 5], squeeze_mask=[True, True, False, False]),
  "slice_r": lambda v: mb.slice_by_index(x=v["m"], begin=mb.concat(values=[I([0, 0]), v["pos"], I([0])], axis=0), end=I([2, 3, 4, 6])),
  "slice_n": S("c1", [0, 3, 8], [2, 0, 0], stride=[1, -1, -3], begin_mask=[True, False, False], end_mask=[True, False, True]),
  "size": lambda v: mb.slice_by_size(x=v["m"], begin=I([0, 1, 2, 0]), size=I([1, 2, -1, 3])),
  "reshape": unary("reshape", "m", shape=[4, -1]), "reshape_i": unary("reshape", "i", shape=[-1]), "tile": unary("tile", reps=[2, 1, 3]), "reverse": unary("reverse"), "reverse_1": unary("reverse", "i", axes=[-2]),
  "pad": unary("pad", "m", pad=I([1, 0, 2, 3]), mode="constant", constant_val=f32(-1.5)), "pad_r": unary("pad", "c2", pad=I([1, 2, 3, 1]), mode="reflect"), "pad_e": unary("pad", "c2", pad=I([2, 0, 1, 4]), mode="replicate"),
  "gather": lambda v: mb.gather(x=v["n"], indices=v["k"], axis=0), "gather_2": lambda v: mb.gather(x=v["n"], indices=v["t"], axis=-2), "gather_s": lambda v: mb.gather(x=v["n"], indices=I(4), axis=1),
  "along": lambda v: mb.gather_along_axis(x=v["a"], indices=v["t"], axis=2), "shape": unary("shape", "m"), "fill": lambda v: mb.fill(shape=I([2, 3]), value=f32(2.5)), "fill_i": lambda v: mb.fill(shape=I([3]), value=i32(7)),
  "like": lambda v: mb.fill_like(ref_tensor=v["b"], value=f32(-3)), "range": lambda v: mb.range_1d(start=i32(2), end=i32(11), step=i32(3)), "range_f": lambda v: mb.range_1d(start=f32(1), end=f32(-1.1), step=f32(-0.5)),
  "identity": unary("identity", "m"),
}
prod = {
  "matmul": lambda v: mb.matmul(x=v["m"], y=v["n"]), "matmul_w": lambda v: mb.matmul(x=v["m"], y=W(6, 5)), "matmul_wt": lambda v: mb.matmul(x=v["a"], y=W(7, 5), transpose_y=True),
  "matmul_tx": lambda v: mb.matmul(x=v["m"], y=W(3, 4, 5), transpose_x=True), "matmul_ty": lambda v: mb.matmul(x=v["m"], y=v["m"], transpose_y=True),
  "matmul_b": lambda v: mb.matmul(x=v["a"], y=W(4, 1, 5, 2)),
  "matmul_i": lambda v: mb.matmul(x=v["i"], y=v["i"], transpose_y=True), "linear": lambda v: mb.linear(x=v["a"], weight=W(4, 5), bias=W(4)), "linear0": lambda v: mb.linear(x=v["a"], weight=W(17, 5)),
  "einsum": lambda v: mb.einsum(values=[mb.reshape(x=v["c2"], shape=[1, 6, 5, 8]), W(1, 8, 5, 3)], equation="nchw,nwhu->nchu"), "einsum3": lambda v: mb.einsum(values=[v["a"], W(5, 3, 4)], equation="abc,cbd->abd"),
  "conv1": lambda v: mb.conv(x=v["c1"], weight=W(3, 4, 3), bias=W(3), strides=[2], pad_type="custom", pad=[2, 1], dilations=[2]), "conv1s": lambda v: mb.conv(x=v["c1"], weight=W(5, 4, 3), pad_type="same", strides=[2]),
  "conv2": lambda v: mb.conv(x=v["c2"], weight=W(4, 6, 3, 2), pad_type="valid"), "conv2g": lambda v: mb.conv(x=v["c2"], weight=W(9, 2, 3, 3), groups=3, bias=W(9), pad_type="custom", pad=[0, 2, 1, 0]),
  "conv2d": lambda v: mb.conv(x=v["c2"], weight=W(6, 1, 3, 1), groups=6), "conv11": lambda v: mb.conv(x=v["c2"], weight=W(20, 6, 1, 1), bias=W(20)), "conv11s": lambda v: mb.conv(x=v["c2"], weight=W(5, 6, 1, 1), strides=[2, 3]),
  "conv3": lambda v: mb.conv(x=v["c3"], weight=W(3, 2, 2, 3, 1), strides=[2, 1, 1]), "conv_same": lambda v: mb.conv(x=v["c2"], weight=W(2, 6, 3, 5), pad_type="same"),
  "conv_run": lambda v: mb.conv(x=v["c2"], weight=mb.reshape(x=v["m"], shape=[4, 6, 3, 2])),
}
group("ops_elementwise", elementwise, iOS17)
group("ops_reduce", red, iOS16)
new = dict(move)
new["reshape0"] = unary("reshape", "m", shape=[0, -1, 0]); new["update"] = lambda v: mb.slice_update(x=v["m"], update=W(2, 3, 2, 3), begin=I([0, 0, 1, 0]), end=I([0, 3, 3, 6]), stride=I([1, 1, 1, 2]), end_mask=[True, False, False, False])
new["update_r"] = lambda v: mb.slice_update(x=v["m"], update=W(2, 3, 1, 6), begin=mb.concat(values=[I([0, 0]), v["pos"], I([0])], axis=0), end=mb.concat(values=[I([0, 0]), mb.add(x=v["pos"], y=i32(1)), I([0])], axis=0), begin_mask=[True, True, False, True], end_mask=[True, True, False, True])
new["update_q"] = lambda v: mb.slice_update(x=v["m"], update=W(3, 6), begin=I([1, 0, 2, 0]), end=I([0, 3, 0, 6]), squeeze_mask=[True, False, True, False])
new["gather_b"] = lambda v: mb.gather(x=mb.slice_by_index(x=v["n"], begin=[0, 0, 0], end=[2, 6, 7]), indices=mb.reshape(x=v["t"], shape=[2, 6]), axis=1, batch_dims=1)
new["small"] = lambda v: mb.cast(x=mb.gather(x=mb.cast(x=mb.shape(x=v["m"]), dtype="uint16"), indices=mb.cast(x=v["k"], dtype="uint16"), axis=0), dtype="int32")
new["int8"] = lambda v: mb.cast(x=mb.cast(x=v["i"], dtype="int8"), dtype="int32"); new["uint8"] = lambda v: mb.cast(x=mb.cast(x=v["t"], dtype="uint8"), dtype="int32")
group("ops_move", new, iOS18)
pn = dict(prod)
pn["sdpa"] = lambda v: mb.scaled_dot_product_attention(query=v["m"], key=W(2, 3, 5, 6), value=W(2, 3, 5, 7)); pn["sdpa_m"] = lambda v: mb.scaled_dot_product_attention(query=v["m"], key=W(2, 3, 5, 6), value=W(2, 3, 5, 7), attn_mask=W(2, 1, 4, 5))
pn["sdpa_b"] = lambda v: mb.scaled_dot_product_attention(query=v["m"], key=W(2, 3, 5, 6), value=W(2, 3, 5, 7), attn_mask=rng.random((4, 5)) > 0.3)
group("ops_product", pn, iOS18)

# ---- constants ----
from coremltools.converters.mil.mil.types.type_mapping import nptype_from_builtin
def sub(x, t): return np.asarray(x).astype(nptype_from_builtin(t))
R = lambda lo, hi, *s: rng.integers(lo, hi, s)
INP = {"x": rng.standard_normal((1, 64, 2, 1)).astype(f32), "y": rng.standard_normal((3, 64)).astype(f32), "ids": np.array([0, 6, 3], i32)}
def uses(w, bias=0):
    """A weight [Co, 64], packed and by rows."""
    return lambda v: [mb.linear(x=v["y"], weight=w(v)), mb.gather(x=w(v), indices=v["ids"], axis=0)]
def kernel(w):  # a weight [Co, 64, 1, 1]
    return lambda v: mb.conv(x=v["x"], weight=w(v))
i8 = np.int8; u8 = np.uint8
def aff(q, s, z, axis): return lambda v: mb.constexpr_affine_dequantize(quantized_data=q, zero_point=z, scale=s, axis=i32(axis))
S = lambda *s: (rng.random(s) * 0.05 + 0.01).astype(f32)
g16 = {}
q = R(-128, 128, 21, 64).astype(i8); qu = R(0, 256, 21, 64).astype(u8)
g16["aff_t"] = uses(aff(q, f32(0.03), i8(0), 0)); g16["aff_r"] = uses(aff(q, S(21), np.zeros(21, i8), 0)); g16["aff_z"] = uses(aff(qu, S(21), R(0, 256, 21).astype(u8), 0))
g16["aff_c"] = uses(aff(q, S(64), np.zeros(64, i8), 1)); g16["aff_m"] = uses(aff(q, f32(0.01), i8(-7), -1)); g16["aff_mix"] = uses(aff(qu, S(21), u8(128), 0))
q4 = R(-127, 128, 33, 64, 1, 1).astype(i8)
g16["aff_k"] = kernel(aff(q4, S(33), np.zeros(33, i8), 0)); g16["aff_kt"] = kernel(aff(q4, f32(0.02), i8(0), 0)); g16["aff_kc"] = kernel(aff(q4, S(64), R(-9, 9, 64).astype(i8), 1))
q5 = R(-127, 128, 5, 64, 2, 1).astype(i8); g16["aff_k2"] = kernel(aff(q5, S(5), np.zeros(5, i8), 0))
def lut16(n, shape):
    idx = R(0, 1 << n, *shape); bits = ((idx.ravel()[:, None] >> np.arange(n)) & 1).astype(u8).ravel()
    lut = rng.standard_normal(1 << n).astype(f32)
    return lambda v: mb.constexpr_lut_to_dense(indices=np.packbits(bits, bitorder="little"), lut=lut, shape=np.array(shape, np.uint32))
for n in (1, 2, 4, 6, 8): g16["lut%d" % n] = uses(lut16(n, (19, 64)))
g16["lut_k"] = kernel(lut16(4, (17, 64, 1, 1)))
def sparse16(shape):
    m = rng.random(shape) > 0.4
    return lambda v: mb.constexpr_sparse_to_dense(nonzero_data=rng.standard_normal(int(m.sum())).astype(f32), mask=np.packbits(m.ravel(), bitorder="little"), shape=np.array(shape, np.uint32))
g16["sparse"] = kernel(sparse16((13, 64, 1, 1)))
g16["cast"] = lambda v: mb.linear(x=v["y"], weight=mb.constexpr_cast(source_val=rng.standard_normal((9, 64)).astype(f16), output_dtype="fp32"))
group("ops_const16", g16, iOS16, inputs=INP, tol=1e-4)
g18 = {}
def bss(d, s, o=None): return (lambda v: mb.constexpr_blockwise_shift_scale(data=d, scale=s)) if o is None else (lambda v: mb.constexpr_blockwise_shift_scale(data=d, scale=s, offset=o))
i4 = lambda *s: sub(R(-8, 8, *s), types.int4); u4 = lambda *s: sub(R(0, 16, *s), types.uint4)
H = lambda *s: S(*s).astype(f16).astype(f32)   # scales that halves hold
g18["i8_t"] = uses(bss(q, S(1, 1))); g18["i8_r"] = uses(bss(q, S(21, 1))); g18["i8_rb"] = uses(bss(q, S(7, 1))); g18["i8_b"] = uses(bss(q, S(21, 4))); g18["i8_bb"] = uses(bss(q, S(3, 8))); g18["i8_c"] = uses(bss(q, S(1, 64)))
g18["i8_o"] = uses(bss(q, S(21, 1), R(-20, 20, 21, 1).astype(i8))); g18["u8_b"] = uses(bss(qu, S(21, 2), R(0, 255, 21, 2).astype(u8))); g18["i8_fo"] = uses(bss(q, S(21, 1), S(21, 1)))
for name, s in (("t", (1, 1)), ("r", (21, 1)), ("b32", (21, 2)), ("b16", (21, 4)), ("b64r3", (7, 1)), ("c", (1, 64)), ("b2", (3, 32))):
    g18["i4_" + name] = uses(bss(i4(21, 64), H(*s))); g18["u4_" + name] = uses(bss(u4(21, 64), H(*s), u4(*s)))
g18["i4_f"] = uses(bss(i4(21, 64), S(21, 2))); g18["i4_o"] = uses(bss(i4(21, 64), H(21, 2), i4(21, 2))); g18["i4_fo"] = uses(bss(i4(21, 64), H(21, 2), S(21, 2)))
g18["f_s"] = uses(bss(rng.standard_normal((6 + 15, 64)).astype(f32), S(21, 8)))
g18["k_i8"] = kernel(bss(q4, S(33, 1, 1, 1))); g18["k_i4"] = kernel(bss(i4(35, 64, 1, 1), H(35, 2, 1, 1))); g18["k_i4_2"] = kernel(bss(i4(5, 64, 2, 1), H(5, 4, 1, 1))); g18["k_1"] = kernel(bss(i4(1, 64, 1, 1), H(1, 2, 1, 1)))
def lut18(t, n, shape, groups, vec=1, axis=None, lut=None):
    idx = sub(R(0, 1 << n, *shape), t); table = rng.standard_normal(tuple(groups) + (1 << n, vec)).astype(f32) if lut is None else lut
    return (lambda v: mb.constexpr_lut_to_dense(indices=idx, lut=table() if callable(table) else table)) if axis is None else (lambda v: mb.constexpr_lut_to_dense(indices=idx, lut=table, vector_axis=i32(axis)))
for t, n in ((types.uint1, 1), (types.uint2, 2), (types.uint3, 3), (types.uint4, 4), (types.uint6, 6), (types.uint8, 8)):
    g18["lut%d" % n] = uses(lut18(t, n, (24, 64), (1, 1))); g18["lut%d_g" % n] = uses(lut18(t, n, (24, 64), (3, 1))); g18["lut%d_gg" % n] = uses(lut18(t, n, (24, 64), (4, 2)))
g18["lut_k"] = kernel(lut18(types.uint4, 4, (16, 64, 1, 1), (2, 1, 1, 1))); g18["lut_v1"] = uses(lut18(types.uint4, 4, (24, 32), (3, 1), 2, 1)); g18["lut_v0"] = uses(lut18(types.uint3, 3, (8, 64), (1, 1), 3, 0))
lutq = sub(R(-128, 128, 2, 1, 16, 1), types.int8)
g18["lut_q"] = uses(lut18(types.uint4, 4, (24, 64), (2, 1), lut=lambda: mb.constexpr_blockwise_shift_scale(data=lutq, scale=S(1, 1, 1, 1))))
def mask(shape): return (rng.random(shape) > 0.35)
def sp(shape):
    m = mask(shape); nz = rng.standard_normal(int(m.sum())).astype(f32)
    return lambda v: mb.constexpr_sparse_to_dense(nonzero_data=nz, mask=sub(m, types.uint1))
g18["sp"] = uses(sp((14, 64)))
def sps(shape, scale):
    m = mask(shape); nz = R(-127, 128, int(m.sum())).astype(i8)
    def fn(v):
        a, b = mb.constexpr_sparse_blockwise_shift_scale(data_mask=sub(m, types.uint1), nonzero_data=nz, scale=scale)
        return mb.constexpr_sparse_to_dense(nonzero_data=b, mask=a)
    return fn
g18["sps"] = uses(sps((14, 64), S(14, 1)))
def spl(shape, vec):
    m = mask(shape); nz = sub(R(0, 8, int(m.sum())), types.uint3); lut = rng.standard_normal((2, 1, 8, vec)).astype(f32)
    def fn(v):
        kw = {} if vec == 1 else {"vector_axis": i32(1)}
        a, b = mb.constexpr_lut_to_sparse(indices_mask=sub(m, types.uint1), indices_nonzero_data=nz, lut=lut, **kw)
        return mb.constexpr_sparse_to_dense(nonzero_data=b, mask=a)
    return fn
g18["spl"] = uses(spl((14, 64), 1)); g18["splv"] = uses(spl((14, 32), 2))
group("ops_const18", g18, iOS18, inputs=INP, tol=1e-4)

#!/usr/bin/env python3
"""Makes spec/fixtures/mlpackage/values.mlpackage and values.json: a package with a constant of every element type in both
places (immediate, blob), lists, a dictionary, nested blocks, two functions that share weights, flexible and optional inputs;
and what each constant holds, packed here by numpy.

Run from the top folder: python3 spec/golden/mlpackage_values.py  (coremltools 9.0, numpy)
"""
import json
import os
import shutil
import struct

import numpy as np
from coremltools.proto import Model_pb2 as ml

OUT = "spec/fixtures/mlpackage/values.mlpackage"
DTYPE = dict(bool=1, string=2, fp16=10, fp32=11, fp64=12, bf16=13, int8=21, int16=22, int32=23, int64=24, int4=25, uint8=31, uint16=32,
             uint32=33, uint64=34, uint4=35, uint2=36, uint1=37, uint6=38, uint3=39, fp8e4m3=40, fp8e5m2=41)
BLOB = dict(fp16=1, fp32=2, uint8=3, int8=4, bf16=5, int16=6, uint16=7, int4=8, uint1=9, uint2=10, uint4=11, uint3=12, uint6=13, int32=14,
            uint32=15, fp8e4m3=16, fp8e5m2=17)
SUB = dict(int4=4, uint4=4, uint2=2, uint1=1, uint6=6, uint3=3)
NUMPY = dict(fp16="<f2", fp32="<f4", fp64="<f8", int8="<i1", int16="<i2", int32="<i4", int64="<i8", uint8="<u1", uint16="<u2", uint32="<u4",
             uint64="<u8", bool="<u1", fp8e4m3="<u1", fp8e5m2="<u1", bf16="<u2")
FIELD = dict(fp32="floats", fp64="doubles", bool="bools", int32="ints", int16="ints", uint16="ints", int64="longInts", uint64="longInts")
rng = np.random.default_rng(7)
weights = bytearray(struct.pack("<II", 0, 2) + bytes(56))
expected = {"main": {}, "other": {}}


def numbers(name, n):
    """n values of a type, with its extremes first."""
    if name in ("fp16", "fp32", "fp64"):
        ends = [-0.0, np.inf, np.finfo(NUMPY[name]).max]
        return np.concatenate([ends, rng.standard_normal(n)])[:n].astype(NUMPY[name])
    bits = SUB.get(name, 8 * np.dtype(NUMPY.get(name, "<u1")).itemsize)
    if name == "bool": bits = 1
    signed = name.startswith("int")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    whole = "int64" if signed else "uint64"
    return np.concatenate([np.array([x], whole) for x in (low, high)] + [rng.integers(low, high, n, dtype=whole, endpoint=True)])[:n]


def pack(name, values):
    if name in SUB:
        n, out = SUB[name], bytearray(-(-len(values) * SUB[name] // 8))
        for i, v in enumerate(values):
            for b in range(n):
                if int(v) >> b & 1: out[(i * n + b) // 8] |= 1 << (i * n + b) % 8
        return bytes(out)
    return values.astype(NUMPY[name]).tobytes()


def set_type(t, name, shape, unknown=()):
    t.tensorType.dataType, t.tensorType.rank = DTYPE[name], len(shape)
    for i, d in enumerate(shape):
        dim = t.tensorType.dimensions.add()
        if i in unknown: dim.unknown.variadic = False
        else: dim.constant.size = d


def set_immediate(v, name, shape, values):
    set_type(v.type, name, shape)
    t = v.immediateValue.tensor
    if name == "string":
        t.strings.values.extend(values)
    elif name in FIELD:
        getattr(t, FIELD[name]).SetInParent()
        if name == "uint64": values = values.astype("int64")
        getattr(t, FIELD[name]).values.extend(bool(x) if name == "bool" else x.item() for x in values)
    else:
        t.bytes.values = pack(name, values)


def add_blob(name, values):
    weights.extend(bytes(-len(weights) % 64))
    at, data = len(weights), pack(name, values)
    pad = len(data) * 8 - len(values) * SUB.get(name, 8 * len(data) // max(len(values), 1))
    weights.extend(struct.pack("<IIQQQ", 0xDEADBEEF, BLOB[name], len(data), at + 64, pad) + bytes(32) + data)
    weights[0:4] = struct.pack("<I", struct.unpack_from("<I", weights)[0] + 1)
    return at


def set_blob(v, name, shape, at):
    set_type(v.type, name, shape)
    v.blobFileValue.fileName, v.blobFileValue.offset = "@model_path/weights/weight.bin", at


def text(v, s):
    set_immediate(v, "string", [], [s])


def const(block, function, output, name, shape, values, at=None):
    op = block.operations.add(type="const")
    text(op.attributes["name"], "op_" + output)
    if at is None: set_immediate(op.attributes["val"], name, shape, values)
    else: set_blob(op.attributes["val"], name, shape, at)
    o = op.outputs.add(name=output)
    o.type.CopyFrom(op.attributes["val"].type)
    data = values if name == "string" else pack(name, np.asarray(values)).hex()
    expected[function][output] = {"dtype": name, "shape": shape, "data": data}


def op(block, kind, inputs, outputs):
    o = block.operations.add(type=kind)
    text(o.attributes["name"], "the_" + (outputs[0][0] if outputs else kind))
    for k, names in inputs.items():
        for n in names: o.inputs[k].arguments.add(name=n)
    for n, t, shape, unknown in outputs: set_type(o.outputs.add(name=n).type, t, shape, unknown)
    return o


def array(f, name, t, shape, kind="multiArrayType"):
    f.name = name
    a = f.type.stateType.arrayType if kind == "stateType" else f.type.multiArrayType
    a.shape.extend(shape)
    a.dataType = dict(fp32=65568, fp64=65600, int32=131104, fp16=65552, int8=131080)[t]
    return a


model = ml.Model(specificationVersion=10)
program = model.mlProgram
program.version = 1

# Program attribute: a dictionary of strings.
info = program.attributes["buildInfo"]
set_type(info.type.dictionaryType.keyType, "string", [])
set_type(info.type.dictionaryType.valueType, "string", [])
for k, v in (("made by", "spec/golden"), ("Gr\u00fc\u00dfe", "\u4e16\u754c")):
    pair = info.immediateValue.dictionary.values.add()
    text(pair.key, k)
    text(pair.value, v)

main = program.functions["main"]
main.opset = "CoreML9"
block = main.block_specializations["CoreML9"]
set_type(main.inputs.add(name="x").type, "fp16", [1, 4, 0, 1], [2])
set_type(main.inputs.add(name="ids").type, "int32", [0], [0])
set_type(main.inputs.add(name="scale").type, "fp32", [])
set_type(main.inputs.add(name="kv").type.stateType.wrappedType, "fp16", [2, 8])
for n, t in enumerate(DTYPE):
    if t == "string": continue
    for count in (0, 1, 5, 11):
        shape = [] if count == 1 else [count]
        const(block, "main", f"{t}_{count}", t, shape, numbers(t, count))
    if t in BLOB:
        for count, shape in ((13, [13]), (24, [2, 3, 4]), (0, [0, 7])):
            values = numbers(t, count)
            const(block, "main", f"{t}_blob_{count}", t, shape, values, add_blob(t, values))
const(block, "main", "word", "string", [], ["valid"])
const(block, "main", "words", "string", [3], ["", "a \"b\"\n", "\u00e9\u4e16"])
shared = numbers("fp16", 32)
shared_at = add_blob("fp16", shared)
const(block, "main", "table", "fp16", [8, 4], shared, shared_at)

# A list and a tuple, as attributes of an operation.
o = op(block, "identity", {"x": ["x"]}, [("x1", "fp16", [1, 4, 0, 1], [2])])
v = o.attributes["numbers"]
set_type(v.type.listType.type, "int32", [])
v.type.listType.length.constant.size = 3
for i in (-1, 0, 2**31 - 1): set_immediate(v.immediateValue.list.values.add(), "int32", [], np.array([i]))
v = o.attributes["pair"]
set_type(v.type.tupleType.types.add(), "bool", [])
set_type(v.type.tupleType.types.add(), "fp32", [2])
set_immediate(v.immediateValue.tuple.values.add(), "bool", [], np.array([1]))
set_immediate(v.immediateValue.tuple.values.add(), "fp32", [2], np.array([0.1, 1e30], "<f4"))

# A parameter bound to a value in place, one bound to several names, an operation without outputs.
o = op(block, "constexpr_blockwise_shift_scale", {}, [("weight", "fp16", [2, 3, 4], [])])
set_blob(o.inputs["data"].arguments.add().value, "int4", [2, 3, 4], add_blob("int4", numbers("int4", 24)))
set_immediate(o.inputs["scale"].arguments.add().value, "fp16", [2, 1, 1], np.array([0.5, -2], "<f2"))
op(block, "concat", {"values": ["x1", "x", "x1"], "axis": ["int32_1"], "interleave": ["bool_1"]}, [("cat", "fp16", [1, 4, 0, 1], [2])])
op(block, "read_state", {"input": ["kv"]}, [("old", "fp16", [2, 8], [])])
op(block, "write_state", {"input": ["kv"], "data": ["old"]}, [])

# Blocks in blocks; siblings use the same name.
cond = op(block, "cond", {"pred": ["bool_1"]}, [("chosen", "fp16", [2, 8], [])])
for kind in ("relu", "tanh"):
    b = cond.blocks.add()
    op(b, kind, {"x": ["old"]}, [("inner", "fp16", [2, 8], [])])
    b.outputs.append("inner")
loop = op(block, "while_loop", {"loop_vars": ["chosen"]}, [("looped", "fp16", [2, 8], [])])
for outputs in (["bool_1"], ["step"]):
    b = loop.blocks.add()
    set_type(b.inputs.add(name="var").type, "fp16", [2, 8])
    op(b, "sqrt", {"x": ["var"]}, [("step", "fp16", [2, 8], [])])
    b.outputs.extend(outputs)
block.outputs.extend(["cat", "looped"])

other = program.functions["other"]
other.opset = "CoreML9"
block = other.block_specializations["CoreML9"]
set_type(other.inputs.add(name="ids").type, "int32", [0, 0], [0, 1])
const(block, "other", "table", "fp16", [4, 8], shared, shared_at)
op(block, "gather", {"x": ["table"], "indices": ["ids"]}, [("y", "fp16", [0, 0, 8], [0, 1])])
block.outputs.append("y")

d = model.description
d.defaultFunctionName = "main"
f = d.functions.add(name="main")
a = array(f.input.add(shortDescription="activations"), "x", "fp16", [1, 4, 2, 1])
for low, high in ((1, 1), (4, 4), (1, 64), (1, 1)): a.shapeRange.sizeRanges.add(lowerBound=low, upperBound=high)
a = array(f.input.add(), "ids", "int32", [2])
a.shapeRange.sizeRanges.add(lowerBound=0, upperBound=-1)
a = array(f.input.add(), "scale", "fp32", [1])
a.floatDefaultValue = 0.5
f.input[2].type.isOptional = True
array(f.state.add(), "kv", "fp16", [2, 8], "stateType")
array(f.output.add(), "cat", "fp16", [])
array(f.output.add(), "looped", "fp16", [2, 8])
f = d.functions.add(name="other")
a = array(f.input.add(), "ids", "int32", [2, 2])
for shape in ([2, 2], [1, 16], [4, 0]): a.enumeratedShapes.shapes.add(shape=shape)
array(f.output.add(), "y", "fp16", [])
d.metadata.shortDescription, d.metadata.author, d.metadata.versionString, d.metadata.license = "Every kind of value", "nobody", "1.2", "MIT"
for k, v in (("zeta", "last"), ("alpha", ""), ("com.github.apple.coremltools.version", "9.0")): d.metadata.userDefined[k] = v

shutil.rmtree(OUT, ignore_errors=True)
data = OUT + "/Data/com.apple.CoreML"
os.makedirs(data + "/weights")
open(data + "/model.mlmodel", "wb").write(model.SerializeToString(deterministic=True))
open(data + "/weights/weight.bin", "wb").write(weights)
item = {"author": "com.apple.CoreML"}
json.dump({"fileFormatVersion": "1.0.0", "itemInfoEntries": {
    "model": {**item, "description": "CoreML Model Specification", "name": "model.mlmodel", "path": "com.apple.CoreML/model.mlmodel"},
    "weights": {**item, "description": "CoreML Model Weights", "name": "weights", "path": "com.apple.CoreML/weights"}},
    "rootModelIdentifier": "model"}, open(OUT + "/Manifest.json", "w"), indent=1)
json.dump(expected, open("spec/fixtures/mlpackage/values.json", "w"), indent=0)

#!/usr/bin/env python3
"""Makes spec/fixtures/mlpackage/flow.mlpackage (cond, while_loop, nested), functions.mlpackage (two functions that share a
state), shapes.mlpackage (enumerated shapes, an optional input with a default). What they compute is plain enough to be written
out in the spec. Needs coremltools 9: `python spec/golden/package_flow.py OUT`."""
import os, shutil, sys, tempfile
import numpy as np
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
OUT = sys.argv[1]
f32, i32 = np.float32, np.int32
def save(model, name):
    path = os.path.join(OUT, name); shutil.rmtree(path, ignore_errors=True); model.save(path); return path
def convert(prog, **kw):
    return ct.convert(prog, minimum_deployment_target=ct.target.iOS18, compute_precision=ct.precision.FLOAT32, pass_pipeline=ct.PassPipeline.EMPTY, **kw)

# y = x doubled until its sum is at least `least`, at most n times; the number of doublings; sign: 10 where the sum is above 0, else -10 - n
@mb.program(input_specs=[mb.TensorSpec((3,)), mb.TensorSpec((1,)), mb.TensorSpec((1,), dtype=types.int32)], opset_version=ct.target.iOS18)
def flow(x, least, n):
    limit = mb.squeeze(x=n)
    goal = mb.squeeze(x=least)
    def more(count, value):
        return mb.logical_and(x=mb.less(x=count, y=limit), y=mb.less(x=mb.reduce_sum(x=value, axes=[0]), y=goal))
    def turn(count, value):
        odd = mb.equal(x=mb.mod(x=count, y=i32(2)), y=i32(1))
        # a condition inside the loop: every second turn goes through another branch, with the same result
        twice = mb.cond(pred=odd, _true_fn=lambda: mb.add(x=value, y=value), _false_fn=lambda: mb.mul(x=value, y=f32(2)))
        return mb.add(x=count, y=i32(1)), twice
    count, value = mb.while_loop(_cond=more, _body=turn, loop_vars=(mb.sub(x=limit, y=limit), mb.identity(x=x)))
    above = mb.greater(x=mb.reduce_sum(x=x, axes=[0]), y=f32(0))
    sign = mb.cond(pred=above, _true_fn=lambda: mb.add(x=least, y=f32(10)), _false_fn=lambda: mb.sub(x=mb.cast(x=mb.sub(x=i32(-10), y=n), dtype="fp32"), y=f32(0)))
    return mb.identity(x=value, name="y"), mb.expand_dims(x=count, axes=[0], name="turns"), mb.identity(x=sign, name="sign")
save(convert(flow), "flow.mlpackage")

# add: state += x, gives it; scale: gives state * x
def stateful(op):
    @mb.program(input_specs=[mb.TensorSpec((1, 4), dtype=types.fp16), mb.StateTensorSpec((1, 4), dtype=types.fp16)], opset_version=ct.target.iOS18)
    def prog(x, kept):
        if op == "add":
            y = mb.coreml_update_state(state=kept, value=mb.add(x=mb.read_state(input=kept), y=x))
            return mb.identity(x=y, name="y")
        return mb.mul(x=mb.read_state(input=kept), y=x, name="y")
    return convert(prog)
with tempfile.TemporaryDirectory() as d:
    desc = ct.utils.MultiFunctionDescriptor()
    for op in ("add", "scale"):
        path = os.path.join(d, op + ".mlpackage"); stateful(op).save(path)
        desc.add_function(path, src_function_name="main", target_function_name=op)
    desc.default_function_name = "add"
    path = os.path.join(OUT, "functions.mlpackage"); shutil.rmtree(path, ignore_errors=True)
    ct.utils.save_multifunction(desc, path)

# y = x + bias: x of three shapes, bias absent: 1.5
from coremltools.converters.mil.mil import get_new_symbol
@mb.program(input_specs=[mb.TensorSpec((get_new_symbol(), get_new_symbol())), mb.TensorSpec((1,))], opset_version=ct.target.iOS18)
def shapes(x, bias): return mb.add(x=x, y=bias, name="y")
model = convert(shapes, inputs=[ct.TensorType(name="x", shape=ct.EnumeratedShapes([(2, 3), (1, 5), (4, 1)], default=(2, 3))), ct.TensorType(name="bias", shape=(1,))])
spec = model.get_spec()
bias = [i for i in spec.description.input if i.name == "bias"][0]
bias.type.isOptional = True; bias.type.multiArrayType.floatDefaultValue = 1.5
save(ct.models.MLModel(spec, weights_dir=model.weights_dir), "shapes.mlpackage")

#!/usr/bin/env python3
"""Makes spec/fixtures/lowered/logits.json: what an independent interpreter of ML Programs gives for the packages and inputs of
lowered_cases.lua. Run from the top folder: lowered_values.py OUT_OF_LOWERED_CASES DIR_OF_INTERPRETER (run_mil_numpy.py;
coremltools 9, numpy)."""
import glob
import json
import os
import sys

import numpy as np

CASES, OUT = sys.argv[1], "spec/fixtures/lowered/logits.json"
sys.path.insert(0, sys.argv[2])
import run_mil_numpy


def conv(a):  # the definition: no padding, stride 1
    x, w, g = a["x"].astype(np.float64), a["weight"].astype(np.float64), int(a["groups"])
    kh, kw = w.shape[2:]
    h, v = x.shape[2] - kh + 1, x.shape[3] - kw + 1
    y = np.zeros((1, w.shape[0], h, v))
    ci, co = x.shape[1] // g, w.shape[0] // g
    for o in range(w.shape[0]):
        xs = x[0, o // co * ci:(o // co + 1) * ci]
        for i in range(kh):
            for j in range(kw):
                y[0, o] += np.tensordot(w[o, :, i, j], xs[:, i:i + h, j:j + v], 1)
    if a.get("bias") is not None:
        y += a["bias"].reshape(1, -1, 1, 1)
    return y.astype(np.float32)


run_mil_numpy.OPS["conv"] = conv
run_mil_numpy._CAST["fp16"] = run_mil_numpy._CAST["fp32"] = "f32"  # states of fp16 keep what they are given, as ours do in fp32

result = {}
for path in sorted(glob.glob(CASES + "/*.json")):
    name, case = os.path.basename(path)[:-5], json.load(open(path))
    package = run_mil_numpy.Package(path[:-5] + ".mlpackage")
    state, rows = package.new_state(), []
    for call in case["calls"]:
        inputs = {k: np.frombuffer(bytes.fromhex(t["bytes"]), np.dtype(t["dtype"])).reshape([int(d) for d in t["shape"]]) for k, t in call.items()}
        logits = package.run(inputs, state)["logits"]
        rows += logits.reshape(logits.shape[1], -1).T.tolist()
    result[name] = [[float("%.7g" % v) for v in row] for row in rows]
os.makedirs(os.path.dirname(OUT), exist_ok=True)
with open(OUT, "w") as f:
    f.write("{\n" + ",\n".join('"%s": [\n%s\n]' % (n, ",\n".join(json.dumps(r) for r in rows)) for n, rows in result.items()) + "\n}\n")

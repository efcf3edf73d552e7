-- Core ML packages run: fixtures of coremltools with the outputs of an independent interpreter; inputs and states checked.
local ane = require "ane"
local core = require "ane.core"
local command = require "support.command"

local FOLDER = "spec/fixtures/mlpackage/"
local FIXTURES = {
  "attn_state_rangedim", "attn_state_slice", "lm_head_argmax", "mlp_fp16", "mlp_int4_block", "mlp_int8_affine_ios16", "mlp_int8_channel",
  "mlp_lut4", "moe_softmax", "shortconv_depthwise",
}

local function open(name, opts) return assert(ane.package(FOLDER .. name .. "/model.mlpackage", opts)) end

describe("ane predict", function()
  for _, name in ipairs(FIXTURES) do
    for _, precision in ipairs { "fp32", "fp16" } do
      it(("holds %s in %s over all calls"):format(name, precision), function()
        local path = FOLDER .. name
        local case = core.json_decode(assert(core.read_file(path .. "/case.json")))
        local out = command.json { "predict", path .. "/model.mlpackage", path .. "/case.json", "--precision", precision }
        assert.equal(#case.calls, #out.calls)
        assert.is_true(out.ok)
        for i, call in ipairs(case.calls) do
          for output in pairs(call.outputs) do
            local got = out.calls[i].outputs[output]
            assert.is_true(got.ok, ("call %d, %s: off by %s"):format(i, output, got.max_abs_err))
          end
        end
      end)
    end
  end

  -- An output is an operation, or a constant in one of its stored forms. Made by spec/golden/package_ops.py with the values of an
  -- independent interpreter, and by package_layers.py with those of PyTorch and numpy.
  for _, name in ipairs {
    "ops_elementwise", "ops_reduce", "ops_move", "ops_product", "ops_const16", "ops_const18", "ops_norm", "ops_image", "ops_place",
    "ops_recurrent",
  } do
    it(("computes each output of %s as others do"):format(name), function()
      local path = FOLDER .. name
      for _, threads in ipairs { "1", "3" } do
        local out = command.json { "predict", path .. "/model.mlpackage", path .. "/case.json", "-t", threads }
        local wrong = {}
        for output, o in pairs(out.calls[1].outputs) do
          if o.ok == false then wrong[#wrong + 1] = ("%s off by %s"):format(output, o.max_abs_err) end
        end
        assert.same({}, wrong)
        assert.is_true(out.ok)
      end
    end)
  end

  it("says that results are off", function()
    local path = FOLDER .. "lm_head_argmax"
    local case = core.json_decode(assert(core.read_file(path .. "/case.json")))
    case.calls[1].outputs.best.data[1] = case.calls[1].outputs.best.data[1] + 1
    case.calls[2].outputs.next_token.data[1] = case.calls[2].outputs.next_token.data[1] + 1
    local file = os.tmpname()
    local f <close> = assert(io.open(file, "w"))
    f:write(core.json_encode(case))
    f:flush()
    local failed, json, why = command.run { "predict", path .. "/model.mlpackage", file, "--json" }
    local out = core.json_decode(json)
    local code, text, message = command.run { "predict", path .. "/model.mlpackage", file }
    assert.same({ 1, "ane predict: an output differs from the expected one\n" }, { code, message })
    assert.same({ code, message }, { failed, why })
    assert.matches("too large", text)
    os.remove(file)
    assert.is_false(out.ok)
    assert.is_false(out.calls[1].outputs.best.ok)
    assert.is_true(out.calls[1].outputs.next_token.ok)
    assert.is_false(out.calls[2].outputs.next_token.ok)
  end)
end)

describe("a case that is wrong", function()
  local x = ('{"shape": [1, 32, 3, 1], "data": [%s0]}'):format(("0, "):rep(95))
  local function predict(case) return command.run({ "predict", FOLDER .. "mlp_fp16/model.mlpackage", "-" }, case) end

  for tolerance, message in pairs {
    ['5'] = "tolerance: must be {atol, rtol}",
    ['{"atl": 1}'] = 'tolerance: unknown key "atl"; known are: atol, rtol',
    ['{"atol": "1"}'] = "tolerance: atol is not a number",
  } do
    it("is told of its tolerance: " .. tolerance, function()
      local code, _, text = predict(('{"calls": [{"inputs": {"x": %s}}], "tolerance": %s}'):format(x, tolerance))
      assert.equal(1, code)
      assert.truthy(text:find(message, 1, true), text)
    end)
  end

  for call, message in pairs {
    ["1"] = "must be an object with `inputs`",
    ['{"inputs": null}'] = "must be an object with `inputs`",
    ['{"inputs": {"x": {"shape": [1.5], "data": [1]}}}'] = "input x: shape must be a list of integers of 0 or more",
    ['{"inputs": {"x": {"shape": [-1], "data": [1]}}}'] = "input x: shape must be a list of integers of 0 or more",
    ['{"inputs": {"x": {"shape": "a", "data": []}}}'] = "input x: shape must be a list of integers of 0 or more",
    ['{"inputs": {"x": {"shape": [9999999999, 9999999999], "data": [1]}}}'] = "input x: the shape has too many elements",
    ['{"inputs": {"x": {"shape": [1], "data": 1}}}'] = "input x: data is not a list",
    ['{"inputs": {"x": {"shape": [1], "data": [null]}}}'] = "input x has null, which is not a number",
    ['{"inputs": {"x": X}, "function": 3}'] = "function is not a name",
    ['{"inputs": {"x": X}, "state": {}}'] = "state is not a name",
    ['{"inputs": {"x": X}, "reset_state": "yes"}'] = "reset_state is neither true nor false",
    ['{"inputs": {"x": X}, "silent": 1}'] = "silent is neither true nor false",
    ['{"inputs": {"x": X}, "ouputs": {}}'] = "unknown key \"ouputs\"; known are: description, function, inputs, name, outputs, "
      .. "reset_state, silent, state",
    ['{"inputs": {"x": {"shape": [1], "data": [1], "type": "fp16"}}}'] = "input x: unknown key \"type\"; known are: data, dtype, shape",
    ['{"inputs": {"x": {"shape": [1], "values": [1]}}}'] = "input x: unknown key \"values\"; known are: data, dtype, shape",
    ['{"inputs": {"x": {"call": 1, "output": "y", "row": 1}}}'] = "input x: unknown key \"row\"; known are: call, output",
    ['{"inputs": {"x": X}, "outputs": {"y": {"shape": [1], "data": [1], "atol": 1}}}'] = "output y: unknown key \"atol\"; known are: "
      .. "data, dtype, shape",
    ['{"inputs": {"x": {"call": 1, "output": "y"}}}'] = "input x: must be {call, output} with the number of an earlier call, from 1",
    ['{"inputs": {"x": {"call": 0, "output": "y"}}}'] = "input x: must be {call, output}",
    ['{"inputs": {"x": {"call": "a"}}}'] = "input x: must be {call, output}",
    ['{"inputs": {"x": X}, "outputs": 3}'] = "outputs: must be an object",
    ['{"inputs": {"x": X}, "outputs": [3]}'] = "outputs: must be an object",
    ['{"inputs": {"x": X}, "outputs": {"y": 3}}'] = "output y: must be {shape, data} with lists of numbers",
    ['{"inputs": {"x": X}, "outputs": {"y": {"shape": [1], "data": ["a"]}}}'] = "output y: must be {shape, data} with lists of numbers",
    ['{"inputs": {"x": X}, "outputs": {"z": {"shape": [1], "data": [1]}}}'] = 'the package has no output "z"',
  } do
    it("is told: " .. call, function()
      local code, _, text = predict(('{"calls": [%s]}'):format((call:gsub("X", x))))
      assert.equal(1, code)
      assert.truthy(text:find("call 1: ", 1, true) and text:find(message, 1, true), text)
    end)
  end

  it("names an output that an earlier call has", function()
    local code, _, text = predict(('{"calls": [{"inputs": {"x": %s}}, {"inputs": {"x": {"call": 1, "output": "z"}}}]}'):format(x))
    assert.equal(1, code)
    assert.matches('call 2: input x: call 1 has no output "z"', text)
  end)

  it("holds at least one call", function()
    for _, case in ipairs { "{}", "[]", "false", '{"calls": {}}', '{"calls": "x"}' } do
      local code, _, text = predict(case)
      assert.equal(1, code)
      assert.matches("must be an object with a list `calls`", text)
    end
  end)

  it("may have null for absent keys; the message names the shape that differs", function()
    assert.equal(0, (predict(('{"calls": [{"inputs": {"x": %s}, "function": null, "outputs": null, "state": null}]}'):format(x))))
    local code, out = predict(('{"calls": [{"inputs": {"x": %s}, "outputs": {"y": {"shape": [96], "data": [1]}}}]}'):format(x))
    assert.equal(1, code)
    assert.matches("but the shape must be %[96%]", out)
  end)
end)

describe("outputs of earlier calls", function()
  it("are inputs, and a silent call writes only what it compares", function()
    local ids = '{"shape": [1, 4], "dtype": "int32", "data": [7, 11, 3, 25]}'
    local dir = os.tmpname()
    os.remove(dir)
    assert(require("ane.coreml.export").of_path("spec/fixtures/hf/llama", dir, { target = "coreai", weights = "fp16", context = 16,
      fixed_t = { 4 } }))
    local asset = dir .. "/" .. dir:match "[^/]*$" .. ".aimodel"
    local mask = {}
    for c = 0, 15 do
      for q = 0, 3 do mask[#mask + 1] = c <= q and 0 or -40000 end
    end
    local out = command.json({ "predict", asset, "-" }, ([[{"calls": [
      {"function": "load_embeddings", "inputs": {}, "silent": true},
      {"function": "gather_embeddings_4", "silent": true,
       "inputs": {"in_new_token_ids": %s, "embedding_table": {"call": 1, "output": "embedding_table"}}},
      {"function": "extend_16_4", "inputs": {"transformer_input": {"call": 2, "output": "gathered_embeddings"},
       "embedding_table": {"call": 1, "output": "embedding_table"}, "in_step": {"shape": [1], "data": [0]},
       "position_ids": {"shape": [1, 4], "data": [0, 1, 2, 3]}, "causal_mask": {"shape": [1, 16, 1, 4], "data": %s}}}]}]]):format(ids,
      core.json_encode(mask)))
    assert.same({}, out.calls[1].outputs)
    assert.same({}, out.calls[2].outputs)
    local model <close> = assert(ane.load("spec/fixtures/hf/llama", { weights = "fp16", activations = "fp32" }))
    local session <close> = assert(model:session())
    assert(session:feed({ 7, 11, 3, 25 }, { want = "all" }))
    local got = out.calls[3].outputs.out_logits.data
    for i = 1, 4 do
      for v, want in ipairs(session:logits(i):totable()) do assert.near(want, got[(i - 1) * 1024 + v], 0.03) end
    end
    os.execute("rm -rf " .. dir)
  end)
end)

describe("package:predict", function()
  it("takes tensors, nested lists and flat data", function()
    local pkg <close> = open "lm_head_argmax"
    local case = core.json_decode(assert(core.read_file(FOLDER .. "lm_head_argmax/case.json")))
    local name, t = next(case.calls[1].inputs)
    local a = assert(pkg:predict { [name] = t })
    local b = assert(pkg:predict { [name] = ane.tensor(t.data, t.shape) })
    local nested, at = {}, 0
    local function fill(depth)
      if depth > #t.shape then
        at = at + 1
        return t.data[at]
      end
      local list = {}
      for i = 1, t.shape[depth] do list[i] = fill(depth + 1) end
      return list
    end
    nested[name] = fill(1)
    local c = assert(pkg:predict(nested))
    for key, v in pairs(a) do
      if type(v) == "userdata" then
        assert.equal(0, (v - b[key]):abs():max())
        assert.equal(0, (v - c[key]):abs():max())
      else
        assert.same(v, b[key])
        assert.same(v, c[key])
        assert.equal("int32", v.dtype)
      end
    end
  end)

  it("says what does not fit in the inputs", function()
    local pkg <close> = open "attn_state_rangedim"
    local case = core.json_decode(assert(core.read_file(FOLDER .. "attn_state_rangedim/case.json")))
    local inputs = case.calls[1].inputs
    local function with(name, v)
      local copy = {}
      for key, t in pairs(inputs) do copy[key] = t end
      copy[name] = v
      return copy
    end
    local function fails(text, code, args)
      local out, message, got = pkg:predict(args)
      assert.is_nil(out)
      assert.truthy(message:find(text, 1, true), message)
      assert.equal(code, got)
    end
    fails("input x is missing", "invalid", with("x", nil))
    fails("input x must be fp16[1, 32, -1, 1], but is fp32[1, 31, 1, 1]", "shape", with("x", core.tensor { 1, 31, 1, 1 }))
    fails("input x must have 1 to 4 elements along axis 2, but is fp32[1, 32, 5, 1]", "shape", with("x", core.tensor { 1, 32, 5, 1 }))
    fails("input x must be ", "shape", with("x", core.tensor { 1, 32 }))
    fails("has no input \"y\"; its inputs are x, ", "notfound", with("y", 1))
    assert.has_error(function() pkg:predict(with("x", { { 1, 2 }, { 3 } })) end, "predict: input x: lists at depth 2 differ in length")
    assert.has_error(function() pkg:predict(with("x", "text")) end, "predict: input x has a string, which is not a number")
    assert.has_error(function() pkg:predict(3) end, "predict: inputs must be a table of tensors by name, but is a number")
    local _, message, code = pkg:predict(inputs, nil, { ["function"] = "other" })
    assert.same({ "there is no function \"other\"", "notfound" }, { message, code })
  end)

  it("keeps states over calls, apart from each other", function()
    local pkg <close> = open "attn_state_slice"
    local case = core.json_decode(assert(core.read_file(FOLDER .. "attn_state_slice/case.json")))
    local inputs = case.calls[1].inputs
    local a, b = assert(pkg:state()), assert(pkg:state())
    local name = a:names()[1]
    assert.equal(0, a:get(name):abs():max())
    local first = assert(pkg:predict(inputs, a))
    assert.is_true(a:get(name):abs():max() > 0)
    assert.equal(0, b:get(name):abs():max())
    local fork = assert(a:copy())
    assert.is_true(a:reset())
    local again = assert(pkg:predict(inputs, a))
    for key, t in pairs(first) do assert.equal(0, (t - again[key]):abs():max()) end
    assert.equal(0, (fork:get(name) - a:get(name)):abs():max())
    assert.is_true(b:set(name, a:get(name)))
    assert.equal(0, (b:get(name) - a:get(name)):abs():max())
    assert.has_error(function() b:set(name, core.tensor { 1 }) end)
    assert.has_error(function() b:get "none" end, "there is no state none")
    local other <close> = open "attn_state_slice"
    assert.has_error(function() other:predict(inputs, a) end, "the state belongs to another package")
    fork:close()
    assert.has_error(function() fork:reset() end)
  end)

  it("gives the same bits on any number of threads", function()
    local path = FOLDER .. "attn_state_rangedim/"
    local one = command.json { "predict", path .. "model.mlpackage", path .. "case.json", "-t", "1" }
    local three = command.json { "predict", path .. "model.mlpackage", path .. "case.json", "-t", "3" }
    assert.same(one, three)
  end)
end)

-- MIL's layers and image operations with shapes, sizes and indices that no converter writes: the operation says what is wrong, and
-- nothing is read or written beyond a tensor.
local ane = require "ane"
local mlpackage = require "support.mlpackage"
local tree = require "support.tree"

local tensor, value = mlpackage.tensor, mlpackage.value

local folder
setup(function() folder = mlpackage.folder() end)
teardown(function() tree.remove(folder) end)

-- Constants: zeros in fp16, integers (a number: a scalar), a text.
local function floats(...)
  local dims, n = { ... }, 1
  for _, d in ipairs(dims) do n = n * d end
  return function(name) return mlpackage.const(name, tensor("fp16", dims), value(tensor("fp16", dims), 7, ("\0\0"):rep(n))) end
end
local function ints(list)
  local dims = type(list) == "table" and { #list } or {}
  local bytes = {}
  for i, v in ipairs(type(list) == "table" and list or { list }) do bytes[i] = mlpackage.varint(v) end
  return function(name) return mlpackage.const(name, tensor("int32", dims), value(tensor("int32", dims), 2, table.concat(bytes))) end
end
local function text(s)
  return function(name) return mlpackage.const(name, tensor("string", {}), mlpackage.text(s)) end
end

-- What an operation of these constants says. results: the dimensions of its outputs.
local function told(kind, params, results, dtype)
  local path = mlpackage.write(folder .. "/m.mlpackage", mlpackage.tiny(function(t)
    local inputs, outputs = {}, {}
    t.ops = {}
    for name, make in pairs(params) do
      t.ops[#t.ops + 1] = make("c_" .. name)
      inputs[#inputs + 1] = { name, { "c_" .. name } }
    end
    for i, dims in ipairs(results) do outputs[i] = { "r" .. i, tensor(dtype or "fp16", dims) } end
    t.ops[#t.ops + 1] = mlpackage.op(kind, inputs, outputs)
    t.outputs = { "r1" }
    t.description[3] = { 10, mlpackage.feature("r1", dtype and 131104 or 65552, {}) }
  end), mlpackage.weights {})
  local pkg <close> = assert(ane.package(path))
  local out, message, code = pkg:predict { x = { 1, 2, 3, 4 } }
  assert.is_nil(out)
  return { message:match "function main: (.*)$" or message, code }
end

local ANY3, ANY2, ANY4 = { "?", "?", "?" }, { "?", "?" }, { "?", "?", "?", "?" }

describe("a recurrent layer is refused", function()
  local function lstm(change)
    local params = { x = floats(3, 1, 2), initial_h = floats(1, 4), initial_c = floats(1, 4), weight_ih = floats(16, 2),
      weight_hh = floats(16, 4) }
    for name, make in pairs(change) do params[name] = make or nil end
    return told("lstm", params, { ANY3, ANY2, ANY2 })
  end

  it("with weights of another shape", function()
    assert.same({ "node r1 (lstm): weight_ih is fp16[15, 2]", "shape" }, lstm { weight_ih = floats(15, 2) })
    assert.same({ "node r1 (lstm): weight_hh is fp16[12, 4]", "shape" }, lstm { weight_hh = floats(12, 4) })
    assert.same({ "node r1 (lstm): weight_hh is fp16[16, 0]", "shape" }, lstm { weight_hh = floats(16, 0) })
    assert.same({ "node r1 (lstm): initial_c is fp16[1, 3]", "shape" }, lstm { initial_c = floats(1, 3) })
    assert.same({ "node r1 (lstm): bias is fp16[4], but must have 16 elements", "shape" }, lstm { bias = floats(4) })
    assert.same({ "node r1 (lstm): peephole is fp16[3, 4], but must have 12 elements", "shape" }, lstm { peephole = floats(3, 4) })
    assert.same({ "node r1 (lstm): x is fp16[3, 2]", "shape" }, lstm { x = floats(3, 2) })
  end)

  it("without the weights of its second direction", function()
    assert.same({ "node r1 (lstm): the input weight_ih_back is missing", "invalid" },
      lstm { direction = text "bidirectional", initial_h = floats(1, 8), initial_c = floats(1, 8) })
  end)

  it("only for weights of the direction that it runs", function()
    local back = { weight_ih_back = floats(16), weight_hh_back = floats(15, 4) }
    local head = "node r1 (lstm): the result is fp32[1, 1, 4], but is declared as fp16[9, 1, 4]"
    local params = { x = floats(3, 1, 2), initial_h = floats(1, 4), initial_c = floats(1, 4), weight_ih = floats(16, 2),
      weight_hh = floats(16, 4), weight_ih_back = back.weight_ih_back, weight_hh_back = back.weight_hh_back }
    assert.same({ head, "shape" }, told("lstm", params, { { 9, 1, 4 }, ANY2, ANY2 }))
    back.direction, back.initial_h, back.initial_c = text "bidirectional", floats(1, 8), floats(1, 8)
    assert.same({ "node r1 (lstm): weight_ih_back is fp16[16]", "shape" }, lstm(back))
  end)

  it("with a direction or an activation that is not known", function()
    local acts = "; known are tanh, scaled_tanh, sigmoid, hard_sigmoid, relu, linear"
    assert.same({ 'node r1 (lstm): direction is "up"; known are forward, reverse, bidirectional', "invalid" },
      lstm { direction = text "up" })
    assert.same({ 'node r1 (lstm): cell_activation is "gelu"' .. acts, "invalid" }, lstm { cell_activation = text "gelu" })
    local gru = { x = floats(3, 1, 2), initial_h = floats(1, 4), weight_ih = floats(12, 2), weight_hh = floats(12, 4),
      direction = text "bidirectional" }
    assert.same({ 'node r1 (gru): direction is "bidirectional"; known are forward, reverse', "invalid" }, told("gru", gru, { ANY3, ANY2 }))
  end)

  it("of a batch that its state does not have", function()
    assert.same({ "node r1 (rnn): initial_h is fp16[1, 2]", "shape" }, told("rnn",
      { x = floats(0, 1 << 50, 1), initial_h = floats(1, 2), weight_ih = floats(2, 1), weight_hh = floats(2, 2) }, { ANY3, ANY2 }))
  end)
end)

describe("an image operation is refused", function()
  local x = floats(1, 4, 2, 2)

  it("with a size that no memory holds", function()
    local huge = ints(2147483647)
    assert.matches("^node r1 %(resize%): a tensor of shape %[1, 4, 2147483647, 2147483647%] has too many elements$",
      told("resize_bilinear", { x = x, target_size_height = huge, target_size_width = huge }, { ANY4 })[1])
    assert.same({ "node r1 (resize): height is -1 for 2 elements", "range" },
      told("resize_nearest_neighbor", { x = x, target_size_height = ints(-1), target_size_width = huge }, { ANY4 }))
    assert.same({ "node r1 (resize): width is 1 for 0 elements", "range" },
      told("resize_bilinear", { x = floats(1, 4, 2, 0), target_size_height = ints(2) }, { ANY4 }))
  end)

  it("with a sampling mode that is not known", function()
    assert.same({ "op resize (r1): its interpolation_mode or sampling_mode is not supported", "unsupported" },
      told("resize", { x = x, shape = ints { 3, 3 }, resized_dims = ints(2), interpolation_mode = text "CUBIC" }, { ANY4 }))
    assert.same({ "op resize (r1): resized_dims is 3; only 2 is supported", "unsupported" },
      told("resize", { x = x, shape = ints { 3, 3 }, resized_dims = ints(3) }, { ANY4 }))
    assert.matches('^node r1 %(resize%): sampling_mode is "CENTER"; known are',
      told("resize_bilinear", { x = x, sampling_mode = text "CENTER" }, { ANY4 })[1])
    assert.same({ "node r1 (resize): align_corners with half_pixel_centers", "unsupported" },
      told("upsample_bilinear", { x = x, half_pixel_centers = ints(1) }, { ANY4 }))
  end)

  it("with blocks that do not divide it", function()
    assert.same({ "node r1 (reshape): fp16[1, 4, 2, 2] cannot take the shape [1, 0, 3, 3, 2, 2]", "shape" },
      told("pixel_shuffle", { x = x, upscale_factor = ints(3) }, { ANY4 }))
    assert.same({ "op space_to_depth (r1): block_size is 0", "invalid" }, told("space_to_depth", { x = x, block_size = ints(0) }, { ANY4 }))
    assert.same({ "node r1 (gather): index 2 is outside of 2 elements", "range" },
      told("depth_to_space", { x = floats(4, 4), block_size = ints(2) }, { ANY4 }))
  end)

  it("that crops or normalises too much", function()
    assert.same({ "op crop (r1): crops -1 elements", "invalid" },
      told("crop", { x = x, crop_height = ints { -1, 0 }, crop_width = ints { 0, 0 } }, { ANY4 }))
    assert.same({ "op crop (r1): parameter crop_width must have 2 elements", "shape" },
      told("crop", { x = x, crop_height = ints { 1, 0 }, crop_width = ints(1) }, { ANY4 }))
    assert.same({ "op local_response_norm (r1): size is 0", "invalid" }, told("local_response_norm", { x = x, size = ints(0) }, { ANY4 }))
    assert.same({ "op l2_norm (r1): parameter x is missing", "format" }, told("l2_norm", {}, { ANY4 }))
    assert.same({ "op prelu (r1): the result has 1 dimensions, but must have 2 to 10", "shape" },
      told("prelu", { x = floats(4), alpha = floats(4) }, { { 4 } }))
  end)
end)

describe("an operation that moves elements is refused", function()
  it("with an index outside of its axis", function()
    local data, updates = floats(3, 2), floats(1, 2)
    assert.same({ "node r1 (scatter_along_axis): index 3 is outside of 3 elements", "range" },
      told("scatter", { data = data, indices = ints { 3 }, updates = updates }, { ANY2 }))
    assert.same({ "op scatter (r1): axis is 2, not an axis of 2 dimensions", "invalid" },
      told("scatter", { data = data, indices = ints { 0 }, updates = updates, axis = ints(2) }, { ANY2 }))
    assert.same({ "node r1 (gather_along_axis): index 3 is outside of 3 elements", "range" },
      told("reverse_sequence", { x = data, lengths = ints { 4, 1 }, seq_axis = ints(0), batch_axis = ints(1) }, { ANY2 }))
  end)

  it("with a number of places that cannot be", function()
    assert.same({ "node r1 (one_hot): depth is 0 and values has 2 elements", "invalid" },
      told("one_hot", { indices = ints { 1, 2 }, one_hot_vector_size = ints(0) }, { ANY2 }, "int32"))
    assert.same({ "node r1 (range_1d): step is 0 or not a number", "invalid" },
      told("sliding_windows", { x = floats(4), axis = ints(0), size = ints(2), stride = ints(0) }, { ANY2 }))
    assert.same({ "node r1 (gather): the result is fp32[0, 5], but is declared as fp16[1, 5]", "shape" },
      told("sliding_windows", { x = floats(4), axis = ints(0), size = ints(5) }, { { 1, 5 } }))
  end)

  it("like references whose lists differ", function()
    assert.same({ "op reshape_like (r1): must have x, ref_tensors, begins, ends and end_masks, lists of one length", "format" },
      told("reshape_like", { x = floats(4), ref_tensors = floats(2, 2) }, { ANY2 }))
  end)
end)

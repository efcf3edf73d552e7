--- Lifting: tables of tokens, linear products, norms, elementwise ops. See ane.onnx.lift.

local elements = require("ane.util.shape").count
local graph = require "ane.onnx.graph"

-- Follows a constant back through transposes. Returns the value of the constant, and whether it is transposed.
local function stored(lift, v)
  local g, transposed = lift.graph, false
  for _ = 1, 16 do
    v = g:through(v)
    local node = g.maker[v]
    if not node or node.op ~= "Transpose" or not g.static[v] then break end
    local perm = node.attrs.perm
    if perm and not (#perm == 2 and perm[1] == 1 and perm[2] == 0) then break end
    transposed, v = not transposed, node.inputs[1]
  end
  return v, transposed
end

-- Dimensions after a Reshape of `dims` to `want`; nil if the sizes do not fit. keep_zero: 0 is a size, not "as before".
local function reshape(dims, want, keep_zero)
  local all, known, open, out = 1, 1, nil, {}
  for _, d in ipairs(dims) do all = all * d end
  for i, n in ipairs(want or {}) do
    if n == 0 and not keep_zero then n = dims[i] or 0 end
    out[i] = n
    if n == -1 then open = i elseif n < 0 or n > 1 << 40 then return nil else known = known * n end
  end
  if open and known > 0 then out[open], known = all // known, known * (all // known) end
  return want and known == all and out or nil
end

local function without_ones(dims)
  local out = {}
  for _, d in ipairs(dims) do
    if d ~= 1 then out[#out + 1] = d end
  end
  return out
end

-- Follows a constant through reshapes. @return value number of the constant, its dimensions after them (nil: no constant)
local function reshaped(lift, v)
  local g, shapes = lift.graph, {}
  for _ = 1, 16 do
    v = g:through(v)
    local maker = g.maker[v]
    if not maker or not g.static[v] or not (maker.op == "Reshape" or maker.op == "Squeeze" or maker.op == "Unsqueeze") then break end
    table.insert(shapes, 1, maker)
    v = maker.inputs[1]
  end
  local c = g:constant(v)
  local dims = c and c.shape
  for _, maker in ipairs(dims and shapes or {}) do
    if maker.op == "Reshape" then
      dims = reshape(dims, g:numbers(maker.inputs[2]), (maker.attrs.allowzero or 0) ~= 0) or
        graph.refuse(maker, "has a shape that does not fit")
    else
      dims = without_ones(dims)
    end
  end
  return v, dims
end

return function(RULES, M)
  local refuse = M.refuse

  M.reshaped = reshaped

  --- The weight of a product: [rows, cols], output and input features. `v` is the [cols, rows] input of a MatMul, or [rows, cols]
  -- if `transposed`.
  local function matrix(lift, v, transposed, node)
    local g = lift.graph
    local at, t = stored(lift, v)
    if t then transposed = not transposed end
    local c, maker = g:constant(at), g.maker[at]
    if c then
      if #c.shape ~= 2 then refuse(node, "multiplies by a constant of %d dimensions", #c.shape) end
      local rows, cols = c.shape[transposed and 1 or 2], c.shape[transposed and 2 or 1]
      return { kind = "plain", data = at, rows = rows, cols = cols, transposed = not transposed }
    end
    if maker and maker.op == "DequantizeLinear" then
      local data, shape = reshaped(lift, maker.inputs[1])
      local scales, zeros = g:through(maker.inputs[2]), maker.inputs[3] or 0
      if not shape or #shape ~= 2 or not g:constant(scales) then refuse(maker, "dequantises a value that is not a constant matrix") end
      local axis = maker.attrs.axis or 1
      return {
        kind = "dequantize", data = data, scales = scales, zeros = zeros > 0 and g:through(zeros) or 0,
        axis = axis < 0 and axis + 2 or axis, block = maker.attrs.block_size or 0, transposed = not transposed,
        rows = shape[transposed and 1 or 2], cols = shape[transposed and 2 or 1], zero_default = 0.0,
      }
    end
    return refuse(node, "multiplies two activations, or by a weight that is made in another way")
  end

  local function rows_of(piece) return { { piece = piece, from = 0, step = 1, n = piece.rows } } end

  local function linear(x, piece, node, bias)
    if piece.cols ~= x.e.channels then refuse(node, "has %d inputs, but its weight needs %d", x.e.channels, piece.cols) end
    local e = { op = "linear", node = node, x = x.e, channels = piece.rows, w = rows_of(piece), b = bias }
    local dims = table.move(x.dims, 1, #x.dims - 1, 1, {})
    dims[#x.dims] = { M.atom("c", e.channels) }
    return { e = e, dims = dims }
  end

  -- A constant vector as the bias of n channels.
  local function vector(lift, v, n)
    local at, shape = reshaped(lift, v)
    if not shape then return nil end
    if elements(shape) ~= n or not lift.graph:is_float(at) then return nil end
    return { { piece = { kind = "plain", data = at, rows = n, cols = 1 }, from = 0, step = 1, n = n } }
  end
  M.vector = vector

  function RULES.MatMul(lift, node)
    local a, b = node.inputs[1], node.inputs[2]
    if lift.graph.static[b] then
      local x = lift:columns(a, node)
      return linear(x, matrix(lift, b, false, node), node)
    end
    return M.product(lift, node)
  end

  function RULES.Gemm(lift, node)
    local at = node.attrs
    if (at.alpha or 1) ~= 1 or (at.transA or 0) ~= 0 then refuse(node, "scales or transposes its product") end
    local x = lift:columns(node.inputs[1], node)
    local piece = matrix(lift, node.inputs[2], (at.transB or 0) ~= 0, node)
    local bias
    if (node.inputs[3] or 0) > 0 then
      bias = (at.beta or 1) == 1 and vector(lift, node.inputs[3], piece.rows) or refuse(node, "has a bias that is not a constant vector")
    end
    return linear(x, piece, node, bias)
  end

  function RULES.MatMulNBits(lift, node)
    local g, at, inputs = lift.graph, node.attrs, node.inputs
    local bits = at.bits or 4
    M.whole(node, "N", "K", "block_size")
    local piece = {
      kind = "nbits", data = reshaped(lift, inputs[2]), scales = reshaped(lift, inputs[3]), zeros = (inputs[4] or 0) > 0 and
        reshaped(lift, inputs[4]) or 0,
      g_idx = (inputs[5] or 0) > 0 and g:through(inputs[5]) or 0, rows = at.N, cols = at.K, bits = bits, block = at.block_size,
        padded = true,
      zero_default = 2.0 ^ (bits - 1),
    }
    if not g:constant(piece.data) or not g:constant(piece.scales) then refuse(node, "has weights that are not constants") end
    local bias
    if (inputs[6] or 0) > 0 then bias = vector(lift, inputs[6], at.N) or refuse(node, "has a bias that is not a constant vector") end
    return linear(lift:columns(inputs[1], node), piece, node, bias)
  end

  -- ---- Tables --------------------------------------------------------------------------------------------------------

  local function is_ids(lift, v)
    local io = lift.graph.inputs[lift.graph:through(v)]
    return io and io.name == lift.graph.roles.ids
  end

  local function embed(piece, node)
    return M.columns { op = "embed", node = node, channels = piece.cols, w = rows_of(piece) }
  end

  function RULES.Gather(lift, node)
    if not is_ids(lift, node.inputs[2]) or (node.attrs.axis or 0) ~= 0 then
      refuse(node, "takes rows by other numbers than the token ids")
    end
    return embed(matrix(lift, node.inputs[1], true, node), node)
  end

  function RULES.GatherBlockQuantized(lift, node)
    local g, at = lift.graph, node.attrs
    local data, shape = reshaped(lift, node.inputs[1])
    local scales, zeros = reshaped(lift, node.inputs[3]), node.inputs[4] or 0
    if not is_ids(lift, node.inputs[2]) then refuse(node, "takes rows by other numbers than the token ids") end
    local codes = g:constant(data)
    local block, bits = at.block_size or 128, at.bits or 4
    if not codes or not g:constant(scales) then refuse(node, "has weights that are not constants") end
    if codes.dtype ~= "uint8" then bits = 4 end
    local rows = shape[1] or 0
    if #shape ~= 2 or rows < 1 then refuse(node, "has an empty table") end
    return embed({
      kind = "nbits", data = data, scales = scales, zeros = zeros > 0 and reshaped(lift, zeros) or 0, rows = rows,
      cols = elements(shape) // rows * (codes.dtype == "uint8" and 8 // bits or 1), bits = bits, block = block,
      padded = codes.dtype == "uint8",
      zero_default = codes.dtype == "uint8" and 2.0 ^ (bits - 1) or 0.0,
    }, node)
  end

  --- An embedding without the columns that pad its quantised table to whole blocks: the first n. nil if the others are more than that.
  function M.narrow(e, n)
    local old = e.w[1].piece
    if e.op ~= "embed" or old.kind ~= "nbits" or not old.padded or
      (n + old.block - 1) // old.block * old.block ~= old.cols then return nil end
    local piece = {}
    for k, v in pairs(old) do piece[k] = v end
    piece.cols = n
    return { op = "embed", node = e.node, channels = n, w = rows_of(piece) }
  end

  -- ---- Norms ---------------------------------------------------------------------------------------------------------

  -- The RMS norm over the innermost channels.
  local function norm(lift, x, weight, eps, node)
    local n = M.inner(x)
    if not n or n < 2 then refuse(node, "norms over something else than channels") end
    local w = vector(lift, weight, n) or refuse(node, "has a weight that is not a constant vector of %d", n)
    return { e = { op = "rms_norm", node = node, x = x.e, channels = x.e.channels, groups = x.e.channels // n, w = w, eps = eps },
      dims = x.dims }
  end

  local function check_axis(node, x, axis)
    if axis ~= -1 and axis ~= #x.dims - 1 then refuse(node, "norms over several dimensions") end
  end

  local function simplified(lift, node)
    local x = lift:value(node.inputs[1])
    check_axis(node, x, node.attrs.axis or -1)
    return norm(lift, x, node.inputs[2], node.attrs.epsilon or 1e-5, node)
  end
  RULES.SimplifiedLayerNormalization, RULES.RMSNormalization = simplified, simplified

  local function add(a, b, node)
    if not M.same_dims(a.dims, b.dims) then refuse(node, "adds values with different layouts") end
    return { e = { op = "add", node = node, a = a.e, b = b.e, channels = a.e.channels }, dims = a.dims }
  end

  function RULES.SkipSimplifiedLayerNormalization(lift, node)
    local sum = add(lift:value(node.inputs[1]), lift:value(node.inputs[2]), node)
    if (node.inputs[4] or 0) > 0 then
      local bias = vector(lift, node.inputs[4], sum.e.channels) or refuse(node, "has a bias that is not a constant vector")
      local b = sum.e.b
      if b.op ~= "linear" or b.b then refuse(node, "adds a bias to something else than a product") end
      sum.e.b = { op = "linear", node = b.node, x = b.x, channels = b.channels, w = b.w, b = bias }
    end
    return { norm(lift, sum, node.inputs[3], node.attrs.epsilon or 1e-5, node), [4] = sum }
  end

  -- RMSNorm as primitives: x * (1 / sqrt(mean(x^2) + eps)), then times the weight. x^2 is "square", its mean "mean_square", the root
  -- "root", the quotient "inverse_root" and the product "normed".
  function RULES.Pow(lift, node)
    if lift.graph:number(node.inputs[2]) ~= 2 then refuse(node, "raises to another power than 2") end
    local x = lift:value(node.inputs[1])
    return { e = { op = "square", x = x.e, channels = x.e.channels }, dims = x.dims }
  end

  function RULES.ReduceMean(lift, node)
    local x = lift:value(node.inputs[1])
    local axes, keep = M.axes_of(lift, node) or {}, node.attrs.keepdims or 1
    local n = M.inner(x)
    if x.e.op ~= "square" or not n or keep ~= 1 or #axes ~= 1 or (axes[1] ~= -1 and axes[1] ~= #x.dims - 1) then
      refuse(node, "takes a mean that does not belong to a norm")
    end
    local dims = table.move(x.dims, 1, #x.dims - 1, 1, {})
    dims[#x.dims] = {}
    return { e = { op = "mean_square", x = x.e.x, n = n, of = x.dims, channels = 1 }, dims = dims }
  end

  function RULES.Sqrt(lift, node)
    local x = lift:value(node.inputs[1])
    if x.e.op ~= "mean_square" or not x.e.eps then refuse(node, "takes a root that does not belong to a norm") end
    return { e = { op = "root", x = x.e.x, n = x.e.n, of = x.e.of, eps = x.e.eps, channels = 1 }, dims = x.dims }
  end

  -- 1 / v: of a root, in a norm; of 1 + exp(-x), a sigmoid.
  local function inverse(lift, v, node)
    local x = lift:value(v)
    if x.e.op == "root" then
      return { e = { op = "inverse_root", x = x.e.x, n = x.e.n, of = x.e.of, eps = x.e.eps, channels = 1 }, dims = x.dims }
    end
    if x.e.op == "one_plus_exp_neg" then return { e = { op = "act", act = "sigmoid", x = x.e.x, channels = x.e.channels },
      dims = x.dims } end
    return refuse(node, "divides in a way that does not belong to a norm")
  end
  function RULES.Reciprocal(lift, node) return inverse(lift, node.inputs[1], node) end

  -- Is r the inverse root mean square of x?
  local function is_normed(x, r)
    return r.e.op == "inverse_root" and r.e.x == x.e and M.same_dims(r.e.of, x.dims)
  end

  -- ---- Elementwise -----------------------------------------------------------------------------------------------------

  local function unary(op)
    return function(lift, node)
      local x = lift:value(node.inputs[1])
      return { e = { op = op, x = x.e, channels = x.e.channels }, dims = x.dims }
    end
  end
  RULES.Tanh, RULES.Neg, RULES.Erf = unary "tanh", unary "neg", unary "erf"

  function RULES.Exp(lift, node)
    local x = lift:value(node.inputs[1])
    if x.e.op ~= "neg" then refuse(node, "is not a part of a sigmoid") end
    return { e = { op = "exp_neg", x = x.e.x, channels = x.e.channels }, dims = x.dims }
  end

  local function act(name)
    return function(lift, node)
      local x = lift:value(node.inputs[1])
      return { e = { op = "act", act = name, x = x.e, channels = x.e.channels }, dims = x.dims }
    end
  end
  RULES.Sigmoid = act "sigmoid"

  function RULES.Gelu(lift, node)
    return act(node.attrs.approximate == "tanh" and "gelu_tanh" or "gelu_erf")(lift, node)
  end

  function RULES.FastGelu(lift, node)
    if (node.inputs[2] or 0) > 0 then refuse(node, "has a bias") end
    return act "gelu_tanh"(lift, node)
  end

  function RULES.Swish(lift, node)
    if (node.attrs.alpha or 1) ~= 1 then refuse(node, "has an alpha other than 1") end
    return act "silu"(lift, node)
  end

  function RULES.QuickGelu(lift, node)
    if (node.attrs.alpha or 1.702) ~= 1 then refuse(node, "has an alpha other than 1, that of silu") end
    return act "silu"(lift, node)
  end

  -- x times a number. cap * tanh(x / cap) becomes a softcap.
  local function scaled(x, by, node)
    if by == 1 then return x end
    if x.e.op == "tanh" and x.e.x.op == "scale" and math.abs(x.e.x.by * by - 1) < 1e-6 then
      return { e = { op = "softcap", node = node, x = x.e.x.x, cap = by, channels = x.e.channels }, dims = x.dims }
    end
    if x.e.op == "normal_sum" then
      return { e = { op = "normal_sum", route = x.e.route, eps = x.e.eps, by = x.e.by * by, channels = 1 }, dims = x.dims }
    end
    if x.e.op == "scores" then return M.scale_scores(x, by, node) end
    if x.e.op == "scores_tanh" then return M.cap_scores(x, by, node) end
    return { e = { op = "scale", node = node, x = x.e, by = by, channels = x.e.channels }, dims = x.dims }
  end

  -- x times sigmoid(x)
  local function is_silu(x, s) return s.e.op == "act" and s.e.act == "sigmoid" and s.e.x == x.e end

  -- a times b if that is a norm, silu or a square; nil otherwise.
  local function times(a, b, node)
    if is_normed(a, b) then
      return { e = { op = "normed", x = a.e, n = b.e.n, eps = b.e.eps, channels = a.e.channels }, dims = a.dims }
    end
    if not M.same_dims(a.dims, b.dims) then return nil end
    if is_silu(a, b) then return { e = { op = "act", node = node, act = "silu", x = a.e, channels = a.e.channels }, dims = a.dims } end
    if a.e == b.e then return { e = { op = "square", x = a.e, channels = a.e.channels }, dims = a.dims } end
    return nil
  end

  -- The product of two values of data.
  local function product(lift, node, a, b)
    local x, y = lift:value(a), lift:value(b)
    local made = times(x, y, node) or times(y, x, node) or M.rescale_experts(x, y, node) or M.rescale_experts(y, x, node)
    if made then return made end
    if not M.same_dims(x.dims, y.dims) then refuse(node, "multiplies values with different layouts") end
    return { e = { op = "mul", node = node, a = x.e, b = y.e, channels = x.e.channels }, dims = x.dims }
  end

  function RULES.Mul(lift, node)
    local g, a, b = lift.graph, node.inputs[1], node.inputs[2]
    if not g.data[a] then a, b = b, a end
    if g.data[b] then return product(lift, node, a, b) end
    local x, by = lift:value(a), g:number(b)
    if by then return scaled(x, by, node) end
    if x.e.op == "normed" then
      local w = vector(lift, b, x.e.n) or refuse(node, "multiplies a normed value by something else than a constant vector of %d", x.e.n)
      local e = { op = "rms_norm", node = node, x = x.e.x, channels = x.e.channels, groups = x.e.channels // x.e.n, w = w, eps = x.e.eps }
      return { e = e, dims = x.dims }
    end
    return M.rope_term(node, x, b)
  end

  function RULES.Div(lift, node)
    local g, a, b = lift.graph, node.inputs[1], node.inputs[2]
    if g.data[a] and not g.data[b] then
      local by = g:number(b)
      if by and by ~= 0 then return scaled(lift:value(a), 1 / by, node) end
    elseif g.data[b] and not g.data[a] and g:number(a) == 1 then
      return inverse(lift, b, node)
    elseif g.data[a] and g.data[b] then
      local x, r = lift:value(a), lift:value(b)
      if r.e.op == "root" and r.e.x == x.e and M.same_dims(r.e.of, x.dims) then
        return { e = { op = "normed", x = x.e, n = r.e.n, eps = r.e.eps, channels = x.e.channels }, dims = x.dims }
      end
      return M.normal_sum(x, r, node)
    end
    return refuse(node, "divides in a way that no recipe does")
  end

  -- x plus a value that is not data: an epsilon, the 1 of a sigmoid, a mask, or a bias.
  local function add_constant(lift, node, x, b)
    local g, e = lift.graph, x.e
    local by = g:number(b)
    if by and e.op == "mean_square" and not e.eps then
      return { e = { op = "mean_square", x = e.x, n = e.n, of = e.of, eps = by, channels = 1 }, dims = x.dims }
    end
    if by == 1 and e.op == "exp_neg" then return { e = { op = "one_plus_exp_neg", x = e.x, channels = e.channels }, dims = x.dims } end
    if by and e.op == "chosen_sum" and not e.eps then
      return { e = { op = "chosen_sum", route = e.route, eps = by, channels = 1 }, dims = x.dims }
    end
    if e.op == "scores" then return M.mask_scores(lift, x, b, node) end
    local vec = M.is_columns(x) and vector(lift, b, e.channels)
    if vec and e.op == "linear" and not e.b then
      return { e = { op = "linear", node = e.node, x = e.x, channels = e.channels, w = e.w, b = vec }, dims = x.dims }
    end
    if vec then return { e = { op = "biased", node = node, x = e, b = vec, channels = e.channels }, dims = x.dims } end
    return refuse(node, "adds something that no recipe does")
  end

  function RULES.Add(lift, node)
    local g, a, b = lift.graph, node.inputs[1], node.inputs[2]
    if not g.data[a] then a, b = b, a end
    if not g.data[b] then return add_constant(lift, node, lift:value(a), b) end
    local x, y = lift:value(a), lift:value(b)
    return M.rotated(lift, node, x, y) or M.rotated(lift, node, y, x) or add(x, y, node)
  end
end

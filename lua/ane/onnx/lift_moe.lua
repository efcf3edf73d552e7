--- Lifting: mixtures of experts and their routers. See ane.onnx.lift.

return function(RULES, M)
  local refuse = M.refuse

  -- ---- Routing as primitives ----------------------------------------------------------------------------------------

  -- The scores are sigmoid(router(x)). TopK chooses by score + bias, GatherElements takes the chosen scores ("chosen"), and
  -- ScatterElements puts their logarithms at the indices of the experts ("log_routed"), which MoE takes as the router's values. A factor
  -- sum / (sum + eps) * scale follows the experts ("normal_sum").

  local function is_score(e) return e.op == "act" and e.act == "sigmoid" end

  function RULES.TopK(lift, node)
    local x = lift:value(node.inputs[1])
    local k = lift.graph:number(node.inputs[2])
    if (node.attrs.axis or -1) % #x.dims ~= #x.dims - 1 or (node.attrs.largest or 1) ~= 1 or
      not k then refuse(node, "is not a choice of experts") end
    local score, bias = x.e, nil
    if score.op == "biased" then score, bias = x.e.x, x.e.b end
    if not is_score(score) then refuse(node, "chooses by something else than a sigmoid") end
    local e = { op = "topk", k = math.tointeger(k), score = score, bias = bias, channels = math.tointeger(k) }
    local dims = table.move(x.dims, 1, #x.dims - 1, 1, {})
    dims[#x.dims] = { M.atom("c", e.channels) }
    return { nil, { e = e, dims = dims } }
  end

  function RULES.GatherElements(lift, node)
    local x, at = lift:value(node.inputs[1]), lift:value(node.inputs[2])
    if at.e.op ~= "topk" or at.e.score ~= x.e or
      node.attrs.axis % #x.dims ~= #x.dims - 1 then refuse(node, "picks something else than the scores of experts") end
    return { e = { op = "chosen", route = at.e, channels = at.e.k }, dims = at.dims }
  end

  function RULES.ReduceSum(lift, node)
    local x = lift:value(node.inputs[1])
    local axes = M.axes_of(lift, node) or {}
    if x.e.op ~= "chosen" or #axes ~= 1 or axes[1] % #x.dims ~= #x.dims - 1 or
      (node.attrs.keepdims or 1) ~= 1 then refuse(node, "is not a sum of chosen scores") end
    local dims = table.move(x.dims, 1, #x.dims, 1, {})
    dims[#dims] = {}
    return { e = { op = "chosen_sum", route = x.e.route, channels = 1 }, dims = dims }
  end

  --- x / r if that is sum / (sum + eps) of the chosen scores.
  function M.normal_sum(x, r, node)
    if x.e.op ~= "chosen_sum" or x.e.eps or r.e.op ~= "chosen_sum" or not r.e.eps or
      r.e.route ~= x.e.route then refuse(node, "divides in a way that no recipe does") end
    return { e = { op = "normal_sum", route = x.e.route, eps = r.e.eps, by = 1.0, channels = 1 }, dims = x.dims }
  end

  function RULES.Clip(lift, node)
    local x = lift:value(node.inputs[1])
    local low = (node.inputs[2] or 0) > 0 and lift.graph:number(node.inputs[2]) or node.attrs.min
    if x.e.op ~= "chosen" or not low or low > 1e-20 or (node.inputs[3] or 0) > 0 or
      node.attrs.max then refuse(node, "bounds activations") end
    return x
  end

  function RULES.Log(lift, node)
    local x = lift:value(node.inputs[1])
    if x.e.op ~= "chosen" then refuse(node, "does not belong to a choice of experts") end
    return { e = { op = "log_chosen", route = x.e.route, channels = x.e.channels }, dims = x.dims }
  end

  function RULES.ScatterElements(lift, node)
    local at, x = lift:value(node.inputs[2]), lift:value(node.inputs[3])
    local rest = lift.graph.data[node.inputs[1]] and {} or lift.graph:numbers(node.inputs[1], 0, 1)
    if at.e.op ~= "topk" or x.e.op ~= "log_chosen" or x.e.route ~= at.e or not rest[1] or rest[1] > -9999 or
      (node.attrs.reduction or "none") ~= "none" then
      refuse(node, "does not belong to a choice of experts")
    end
    local dims = table.move(at.dims, 1, #at.dims, 1, {})
    dims[#dims] = { M.atom("c", at.e.score.channels) }
    return { e = { op = "log_routed", route = at.e, channels = at.e.score.channels }, dims = dims }
  end

  -- ---- Experts -------------------------------------------------------------------------------------------------------

  local ACTS = { silu = "silu", gelu = "gelu_tanh" }

  -- The route op of recipes that a router is.
  -- @param router lifted values of the experts: log_routed, or the products before a softmax
  -- @param k experts per token
  local function route_of(node, router, k, normalise)
    if router.e.op == "log_routed" then
      local r = router.e.route
      if r.k ~= k then refuse(node, "takes %d experts, but its router chooses %d", k, r.k) end
      -- softmax of log s over the chosen experts is s / sum
      return { op = "route", node = node, k = k, score = "sigmoid", x = r.score.x, bias = r.bias, norm = true, norm_eps = 0.0,
        scale = 1.0, of = r }
    end
    if not M.is_columns(router) then refuse(node, "has a router whose values are not [tokens, experts]") end
    return { op = "route", node = node, k = k, score = "softmax", x = router.e, norm = normalise, norm_eps = 0.0, scale = 1.0 }
  end

  -- The constant at input i: its value, and {shape = {experts, rows, columns}}; 0, nil if the input is absent. what: name, for messages.
  local function stack(lift, node, i, what)
    if (node.inputs[i] or 0) <= 0 then return 0, nil end
    local v, shape = M.reshaped(lift, node.inputs[i])
    if not shape then refuse(node, "has %s that are not constants", what) end
    return v, { shape = shape }
  end

  -- Checks that input i is absent or zero.
  local function no_bias(lift, node, i)
    local v = node.inputs[i] or 0
    if v <= 0 then return end
    local list = lift.graph.static[v] and lift.graph:numbers(v)
    for _, x in ipairs(list or { 1 }) do
      if x ~= 0 then refuse(node, "has biases of experts, which no recipe takes") end
    end
  end

  -- The mixture of experts that a node computes.
  -- @param o router (lifted), count (experts), inner (channels of gate and up), third (input of a third matrix; 0: none),
  -- piece(which, e): piece of expert e (0-based): its matrix 1 (rows of gate and up, interleaved) or 2 (down)
  local function experts(node, x, o)
    local at = node.attrs
    if o.third ~= 0 then refuse(node, "has three matrices per expert, which is not known") end
    if at.activation_type ~= "swiglu" or (at.swiglu_fusion or 0) ~= 1 then
      refuse(node, "has the activation %s (swiglu_fusion %d), which no recipe computes", at.activation_type or ACTS.silu,
        at.swiglu_fusion or 0)
    end
    if (at.activation_alpha or 1) ~= 1 or (at.activation_beta or 0) ~= 0 or (at.swiglu_limit or math.huge) < 1e30 then
      refuse(node, "has an alpha, beta or limit that no recipe computes")
    end
    local list = {}
    for e = 0, o.count - 1 do
      local up, down = o.piece(1, e), o.piece(2, e)
      local function rows(piece, from, step, n) return { { piece = piece, from = from, step = step, n = n } } end
      list[e + 1] = { gate = rows(up, 0, 2, o.inner), up = rows(up, 1, 2, o.inner), down = rows(down, 0, 1, down.rows) }
    end
    local route = route_of(node, o.router, at.k or 1, (at.normalize_routing_weights or 0) ~= 0)
    return { e = { op = "experts", node = node, x = x.e, route = route, list = list, act = "silu", channels = x.e.channels },
      dims = x.dims }
  end

  function RULES.MoE(lift, node)
    local x, router = lift:columns(node.inputs[1], node), lift:value(node.inputs[2])
    local up, cu = stack(lift, node, 3, "weights")
    local down, cd = stack(lift, node, 5, "weights")
    no_bias(lift, node, 4)
    no_bias(lift, node, 6)
    if not cu or not cd or #cu.shape ~= 3 or #cd.shape ~= 3 then refuse(node, "has weights of an unknown shape") end
    return experts(node, x, {
      router = router, count = cu.shape[1], inner = cu.shape[2] // 2, third = node.inputs[7] or 0,
      piece = function(which, e)
        local c = which == 1 and cu or cd
        return { kind = "plain", data = which == 1 and up or down, rows = c.shape[2], cols = c.shape[3], matrix = e }
      end,
    })
  end

  function RULES.QMoE(lift, node)
    local at = node.attrs
    local x, router = lift:columns(node.inputs[1], node), lift:value(node.inputs[2])
    if (node.inputs[15] or 0) > 0 then refuse(node, "has separate weights of its router") end
    no_bias(lift, node, 5)
    no_bias(lift, node, 8)
    local bits = at.expert_weight_bits or 4
    local matrices = {}
    for i, from in ipairs { 3, 6 } do
      local data, c = stack(lift, node, from, "weights")
      local scales, s = stack(lift, node, from + 1, "scales")
      local zeros = stack(lift, node, i == 1 and 12 or 13, "zero points")
      if not c or not s or #c.shape ~= 3 then refuse(node, "has weights of an unknown shape") end
      matrices[i] = {
        kind = "nbits", data = data, scales = scales, zeros = zeros, rows = c.shape[2], cols = c.shape[3] * 8 // bits, bits = bits,
        block = at.block_size or 0, zero_default = 2.0 ^ (bits - 1), count = c.shape[1],
      }
    end
    return experts(node, x, {
      router = router, count = matrices[1].count, inner = matrices[1].rows // 2, third = node.inputs[9] or 0,
      piece = function(which, e)
        local piece = { matrix = e }
        for k, v in pairs(matrices[which]) do piece[k] = v end
        return piece
      end,
    })
  end

  --- x * by if that is experts * sum / (sum + eps) * scale, so that the weights of the experts are divided by sum + eps; else nil.
  function M.rescale_experts(x, by, node)
    local e, f = x.e, by.e
    if e.op ~= "experts" or f.op ~= "normal_sum" or e.route.of ~= f.route then return nil end
    local made, route = {}, {}
    for k, v in pairs(e) do made[k] = v end
    for k, v in pairs(e.route) do route[k] = v end
    route.norm_eps, route.scale, route.node = f.eps, f.by, node
    made.route, made.node = route, node
    return { e = made, dims = x.dims }
  end
end

--- Lifting: rotary positions, key-value caches, attention as one op or as primitives, causal convolutions. See ane.onnx.lift.

local probe = require "ane.onnx.probe"

return function(RULES, M)
  local refuse = M.refuse

  -- ---- Rope ----------------------------------------------------------------------------------------------------------

  -- The rope of heads of `head` channels by a table of ane.onnx.probe.
  local function rope(x, head, layout, table_, node)
    if table_.dims > head then refuse(node, "rotates %d channels of heads of %d", table_.dims, head) end
    return { e = { op = "rope", node = node, x = x.e, heads = x.e.channels // head, layout = layout, rope = table_,
      channels = x.e.channels }, dims = x.dims }
  end

  local function layout_of(interleaved) return (interleaved or 0) ~= 0 and "interleaved" or "half" end

  function RULES.RotaryEmbedding(lift, node)
    local at, inputs = node.attrs, node.inputs
    local contrib = node.domain == "com.microsoft"
    local x = lift:value(inputs[1])
    local cos, sin, positions = inputs[contrib and 3 or 2], inputs[contrib and 4 or 3], inputs[contrib and 2 or 4] or 0
    local given = not contrib and positions <= 0 -- tables made for the tokens of the call
    local tab = given and probe.spelled_rope(lift, node, cos, sin) or probe.rope(lift, node, cos, sin, positions)
    if (at.scale or 1) ~= 1 or (at.is_packed_batching or 0) ~= 0 then refuse(node, "has an attribute that no recipe knows") end
    local width = at.rotary_embedding_dim or 0
    if width ~= 0 and width ~= tab.dims then refuse(node, "rotates %d channels by a table for %d", width, tab.dims) end
    local head
    if #x.dims == 4 then
      head = M.inner(x)
    else
      if not M.is_columns(x) then refuse(node, "takes values that are not [tokens, channels]") end
      local heads = at.num_heads or 0
      head = heads > 0 and x.e.channels // heads or tab.dims
    end
    if not head or x.e.channels % head ~= 0 then refuse(node, "rotates something else than heads") end
    return rope(x, head, layout_of(at.interleaved), tab, node)
  end

  -- Rope as primitives: x * cos + rotate_half(x) * sin. rope_term is one of the two products, rotated their sum.

  --- x times cos or sin: value `by`, which depends on positions.
  function M.rope_term(node, x, by)
    if not M.inner(x) then refuse(node, "multiplies by something that no recipe does") end
    return { e = { op = "rope_term", node = node, x = x.e, by = by, channels = x.e.channels }, dims = x.dims }
  end

  --- The rope that a + b is; nil if it is none. a: x * cos; b: rotate_half(x) * sin.
  function M.rotated(lift, node, a, b)
    if a.e.op ~= "rope_term" or b.e.op ~= "rope_term" or b.e.x.op ~= "rotate_half" then return nil end
    local term, x = b.e.x, a.e.x
    local whole = x == term.x and term.rotary == term.head
    local part = x.op == "part" and x.x == term.x and x.from == 0 and x.to == term.rotary
    if not (whole or part) then return nil end
    local tab = probe.spelled_rope(lift, node, a.e.by, b.e.by, term.rotary)
    if whole then return rope({ e = x, dims = a.dims }, term.head, "half", tab, node) end
    return { e = { op = "rope_part", x = x.x, rotary = term.rotary, layout = "half", rope = tab, channels = x.channels }, dims = a.dims }
  end

  -- ---- Caches --------------------------------------------------------------------------------------------------------

  --- The rows of a cache followed by the new ones: [1, heads, T, head].
  function M.cached(lift, node, io, x)
    local g = lift.graph
    local state = g.past[io.name]
    local axis = node.attrs.axis
    if axis < 0 then axis = axis + #x.dims end
    local tokens = x.dims[axis + 1] and M.atoms { x.dims[axis + 1] }
    if not tokens or #tokens ~= 1 or tokens[1].kind ~= "s" or
      (state.rows or 0) ~= 0 then refuse(node, "joins a cache along something else than tokens") end
    if g:through(g.present[io.name]) ~= node.outputs[1] then refuse(node, "makes a cache that is not returned as output %s",
      state.present) end
    local dims = table.move(x.dims, 1, #x.dims, 1, {})
    dims[axis + 1] = { M.atom("t", M.TOTAL) }
    return { e = { op = "kv", node = node, x = x.e, past = io.name, channels = x.e.channels }, dims = dims }
  end

  -- Checks that input `v` is a cache of the graph, and that output `present` is its new value.
  local function check_cache(lift, node, v, present)
    local g = lift.graph
    local io = v > 0 and g.inputs[v]
    local state = io and g.past[io.name]
    if not state then refuse(node, "has no cache among the inputs of the graph") end
    if present <= 0 or g:through(g.present[io.name]) ~= present then refuse(node, "makes a cache that is not returned as output %s",
      state.present) end
  end

  -- ---- Attention -----------------------------------------------------------------------------------------------------

  local function attention(node, q, k, v, o)
    if q.channels % o.heads ~= 0 or k.channels % o.kv_heads ~= 0 or v.channels ~= k.channels or
      q.channels // o.heads ~= k.channels // o.kv_heads or
      o.heads % o.kv_heads ~= 0 then
      refuse(node, "has %d, %d and %d channels for %d and %d heads", q.channels, k.channels, v.channels, o.heads, o.kv_heads)
    end
    local head = q.channels // o.heads
    local e = {
      op = "attention", node = node, q = q, k = k, v = v, heads = o.heads, kv_heads = o.kv_heads, head_dim = head, channels = q.channels,
      scale = (o.scale or 0) ~= 0 and o.scale or head ^ -0.5, window = o.window or 0, softcap = o.softcap or 0, sinks = o.sinks,
    }
    return e
  end

  -- Checks that inputs are absent. names: input number -> name.
  local function absent(node, names)
    for i, name in pairs(names) do
      if (node.inputs[i] or 0) > 0 then refuse(node, "has the input %s, which no recipe takes", name) end
    end
  end

  function RULES.GroupQueryAttention(lift, node)
    local at, inputs = node.attrs, node.inputs
    local heads, kv_heads = M.whole(node, "num_heads", "kv_num_heads")
    absent(node, { [11] = "attention_bias", [13] = "k_scale", [14] = "v_scale", [15] = "q_norm_weight", [16] = "k_norm_weight" })
    if (at.smooth_softmax or 0) > 0 or (at.causal or 1) ~= 1 then refuse(node, "has a softmax that no recipe computes") end
    check_cache(lift, node, inputs[4], node.outputs[2] or 0)
    check_cache(lift, node, inputs[5], node.outputs[3] or 0)
    probe.lengths(lift, node, inputs[6], inputs[7])
    local q = lift:columns(inputs[1], node)
    local head = (q.e.channels // ((inputs[2] or 0) > 0 and heads or heads + 2 * kv_heads))
    local k, v
    if (inputs[2] or 0) > 0 then
      k, v = lift:columns(inputs[2], node), lift:columns(inputs[3], node)
    else
      local packed, nq, nk = q.e, heads * head, kv_heads * head
      if nq + 2 * nk ~= packed.channels then refuse(node, "has %d packed channels for %d + 2 * %d heads", packed.channels, heads,
        kv_heads) end
      q, k, v = M.columns(M.slice(packed, 0, nq, node)), M.columns(M.slice(packed, nq, nk, node)),
        M.columns(M.slice(packed, nq + nk, nk, node))
    end
    if (at.do_rotary or 0) ~= 0 then
      local tab = probe.rope(lift, node, inputs[8], inputs[9], inputs[10] or 0)
      local layout = layout_of(at.rotary_interleaved)
      q, k = rope(q, head, layout, tab, node), rope(k, head, layout, tab, node)
    end
    local sinks
    if (inputs[12] or 0) > 0 then sinks = M.vector(lift, inputs[12], heads) or refuse(node, "has a head_sink that is not a constant") end
    local window = at.local_window_size or -1
    return M.columns(attention(node, q.e, k.e, v.e, {
      heads = heads, kv_heads = kv_heads, scale = at.scale, softcap = at.softcap, window = window > 0 and window or 0, sinks = sinks,
    }))
  end

  -- Keys or values that come from a cache. Returns the lifted value, with all tokens in any layout, and the expression of the new ones.
  local function cache_of(lift, number, node)
    local v = lift:value(number)
    local e = v.e
    if e.op ~= "kv" then refuse(node, "takes keys or values that come from no cache") end
    return v, e.x
  end

  -- Kinds and strides of all atoms larger than 1, as text. A repeat atom follows the head that it repeats.
  local function order(v)
    local list = {}
    for _, a in ipairs(M.atoms(v.dims)) do list[#list + 1] = a.kind == "c" and "c" .. a.stride or a.kind end
    return table.concat(list, " ")
  end

  -- How often each head of a cache is repeated. The copies of a head are adjacent.
  local function repeats(v)
    local n = 1
    for _, a in ipairs(M.atoms(v.dims)) do
      if a.kind == "rep" then n = n * a.size end
    end
    return n
  end

  function RULES.MultiHeadAttention(lift, node)
    local at, inputs = node.attrs, node.inputs
    local heads = M.whole(node, "num_heads")
    absent(node, { [4] = "bias", [5] = "key_padding_mask" })
    local q = lift:columns(inputs[1], node)
    local head = q.e.channels // heads
    local k, v
    if (inputs[7] or 0) > 0 then
      check_cache(lift, node, inputs[7], node.outputs[2] or 0)
      check_cache(lift, node, inputs[8], node.outputs[3] or 0)
      k, v = lift:columns(inputs[2], node).e, lift:columns(inputs[3], node).e
    else
      local kv, vv
      kv, k = cache_of(lift, inputs[2], node)
      vv, v = cache_of(lift, inputs[3], node)
      local n = repeats(kv)
      local plain = n > 1 and ("t c%d rep c1"):format(head) or heads > 1 and ("t c%d c1"):format(head) or "t c1"
      if n > 1 and k.channels == head then plain = "t rep c1" end
      if (order(kv) ~= plain and order(kv) ~= "t c1") or order(vv) ~= order(kv) or repeats(vv) ~= n or k.channels * n ~= q.e.channels then
        refuse(node, "takes keys or values that are not [tokens, heads]")
      end
    end
    local window = probe.mask(lift, node, inputs[6] or 0, (at.unidirectional or 0) ~= 0)
    return M.columns(attention(node, q.e, k, v, { heads = heads, kv_heads = k.channels // head, scale = at.scale, window = window }))
  end

  function RULES.Attention(lift, node)
    local at, inputs = node.attrs, node.inputs
    if node.domain ~= "" then refuse(node, "packs its weights in a way that is not known") end
    if (inputs[7] or 0) ~= 0 or (at.left_window_size or -1) >= 0 or (at.right_window_size or -1) >= 0 then
      refuse(node, "hides keys by their number or by windows")
    end
    check_cache(lift, node, inputs[5] or 0, node.outputs[2] or 0)
    check_cache(lift, node, inputs[6] or 0, node.outputs[3] or 0)
    local q, k, v = lift:value(inputs[1]), lift:value(inputs[2]), lift:value(inputs[3])
    local heads, kv_heads = at.q_num_heads, at.kv_num_heads
    local function heads_of(x, n)
      if n and n > 0 and #x.dims == 3 then return M.is_columns(x) and n end
      local head = M.inner(x)
      return #x.dims == 4 and head and order(x) == (head < x.e.channels and ("c%d s c1"):format(head) or "s c1") and x.e.channels // head
    end
    heads, kv_heads = heads_of(q, heads), heads_of(k, kv_heads)
    if not heads or not kv_heads or not heads_of(v, at.kv_num_heads) then refuse(node,
      "takes values that do not lie as tokens and heads") end
    local window = probe.mask(lift, node, inputs[4] or 0, (at.is_causal or 0) ~= 0)
    local e = attention(node, q.e, k.e, v.e, { heads = heads, kv_heads = kv_heads, scale = at.scale, softcap = at.softcap,
      window = window })
    return #q.dims == 3 and M.columns(e) or { e = e, dims = q.dims }
  end

  -- ---- Attention as primitives -----------------------------------------------------------------------------------------

  --- A product of two activations: q k^T, in layout [1, heads, S, T], or softmax(q k^T) v, which is the attention.
  function M.product(lift, node)
    local a, b = lift:value(node.inputs[1]), lift:value(node.inputs[2])
    if a.e.op == "probabilities" then
      local s, v = a.e.scores, b.e
      if v.op ~= "kv" or order(b) ~= s.lies or repeats(b) ~= s.repeats then refuse(node, "takes values that do not lie as its keys") end
      local kv_heads = s.k.channels // s.head
      local e = attention(node, s.q, s.k, v.x, { heads = s.q.channels // s.head, kv_heads = kv_heads, scale = s.by, softcap = s.softcap,
        window = s.window })
      return { e = e, dims = s.of }
    end
    if b.e.op ~= "kv" then refuse(node, "multiplies two activations") end
    local head, q, by = M.inner(a), a.e, 1.0
    if q.op == "scale" then q, by = q.x, q.by end
    local k, n = b.e.x, repeats(b)
    if k.op == "scale" then k, by = k.x, by * k.by end
    local heads = head and q.channels // head
    local dims = table.move(b.dims, 1, #b.dims, 1, {})
    dims[#dims - 1], dims[#dims] = dims[#dims], dims[#dims - 1]
    local lies = order { dims = dims }
    local kv = head and k.channels // head
    local want = head and (kv > 1 and "c" .. head .. " " or "") .. (n > 1 and "rep " or "") .. "t c1"
    if not head or lies ~= want or order(a) ~= (heads > 1 and "c" .. head .. " " or "") .. "s c1" or kv * n ~= heads then
      refuse(node, "multiplies queries and keys that are not [heads, tokens]")
    end
    local out = table.move(a.dims, 1, #a.dims - 1, 1, {})
    out[#a.dims] = { M.atom("t", M.TOTAL) }
    local e = { op = "scores", node = node, q = q, k = k, by = by, head = head, of = a.dims, lies = lies, repeats = n, channels = heads }
    return { e = e, dims = out }
  end

  -- x with some fields of its expression replaced.
  local function changed(x, fields, node)
    local e = { node = node }
    for key, value in pairs(x.e) do e[key] = value end
    for key, value in pairs(fields) do e[key] = value end
    return { e = e, dims = x.dims }
  end

  function M.scale_scores(x, by, node)
    local s = x.e
    if s.window then return refuse(node, "scales scores that are masked already") end
    if s.softcap then refuse(node, "scales scores that are capped already") end
    return changed(x, { by = s.by * by }, node)
  end

  local tanh = RULES.Tanh
  function RULES.Tanh(lift, node)
    local x = lift:value(node.inputs[1])
    if x.e.op ~= "scores" then return tanh(lift, node) end
    return changed(x, { op = "scores_tanh" }, node)
  end

  function M.mask_scores(lift, x, mask, node)
    if x.e.window then refuse(node, "masks scores twice") end
    return changed(x, { window = probe.mask(lift, node, mask, false) }, node)
  end

  --- cap * tanh(scores), where the scores are those of the attention divided by cap.
  function M.cap_scores(x, cap, node)
    return changed(x, { op = "scores", by = x.e.by * cap, softcap = cap }, node)
  end

  function RULES.Softmax(lift, node)
    local x = lift:value(node.inputs[1])
    local axis = node.attrs.axis or (node.opset < 13 and 1 or -1)
    if x.e.op ~= "scores" or (axis ~= -1 and axis ~= #x.dims - 1) then refuse(node, "does not belong to attention") end
    if not x.e.window then refuse(node, "has no mask: every token sees all others") end
    return { e = { op = "probabilities", scores = x.e, channels = x.e.channels }, dims = x.dims }
  end

  -- ---- Convolutions --------------------------------------------------------------------------------------------------

  function RULES.CausalConvWithState(lift, node)
    local inputs, at = node.inputs, node.attrs
    local x = lift:value(inputs[1])
    check_cache(lift, node, inputs[4] or 0, node.outputs[2] or 0)
    if order(x) ~= "c1 s" then refuse(node, "takes values that do not lie as channels and tokens") end
    local data, shape = M.reshaped(lift, inputs[2])
    if not shape then refuse(node, "has a weight that is not a constant") end
    if #shape ~= 3 or shape[1] ~= x.e.channels or shape[2] ~= 1 then refuse(node, "has a weight that is not [channels, 1, taps]") end
    local bias
    if (inputs[3] or 0) > 0 then
      bias = M.vector(lift, inputs[3], x.e.channels) or refuse(node, "has a bias that is not a constant vector")
    end
    local piece = { kind = "plain", data = data, rows = shape[1], cols = shape[3] }
    local e = {
      op = "conv_causal", node = node, x = x.e, channels = x.e.channels, taps = shape[3], b = bias,
      w = { { piece = piece, from = 0, step = 1, n = piece.rows } },
    }
    if at.activation and at.activation ~= "none" and at.activation ~= "silu" then refuse(node, "has an activation that is not known") end
    if at.activation == "silu" then e = { op = "act", node = node, act = "silu", x = e, channels = e.channels } end
    return { e = e, dims = x.dims }
  end
end

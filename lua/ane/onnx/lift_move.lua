--- Lifting: ops that only change the layout of tensors; slices and concatenations of channels. See ane.onnx.lift.

local part = require("ane.onnx.segments").part

return function(RULES, M)
  local refuse = M.refuse

  local function keep(lift, node) return lift:value(node.inputs[1]) end
  RULES.Identity, RULES.Dropout = keep, keep

  function RULES.Cast(lift, node)
    if not lift.graph:is_float(node.outputs[1]) then refuse(node, "casts activations to integers") end
    return lift:value(node.inputs[1])
  end

  -- ---- Reshape -------------------------------------------------------------------------------------------------------

  -- Groups atoms in order into dimensions of these sizes. Atoms are split where necessary, but not those of tokens. nil if that is
  -- impossible.
  local function regroup(atoms, sizes)
    local list, at, dims = table.move(atoms, 1, #atoms, 1, {}), 1, {}
    for i, size in ipairs(sizes) do
      local dim, n = {}, 1
      while n < size do
        local a = list[at]
        if not a or size % n ~= 0 then return nil end
        local left = size // n
        if a.size > left then
          if a.kind == "s" or a.kind == "t" or a.size % left ~= 0 then return nil end
          local rest = a.size // left
          list[at] = M.atom(a.kind, rest, a.stride)
          dim[#dim + 1] = M.atom(a.kind, left, a.stride * rest)
          n = size
        else
          dim[#dim + 1] = a
          n, at = n * a.size, at + 1
        end
      end
      dims[i] = dim
      if n ~= size then return nil end
    end
    return not list[at] and dims or nil
  end

  function RULES.Reshape(lift, node)
    local x = lift:value(node.inputs[1])
    local want = lift.graph:numbers(node.inputs[2], M.PAST, M.TOKENS) or refuse(node, "has an unknown shape")
    local all, known, open = M.dim_size(M.atoms(x.dims)), 1, nil
    for i, n in ipairs(want) do
      if n == 0 and (node.attrs.allowzero or 0) == 0 then want[i] = x.dims[i] and M.dim_size(x.dims[i]) or 0 end
      if n == -1 then open = i else known = known * want[i] end
    end
    if open then want[open] = known > 0 and all // known or 0 end
    local dims = regroup(M.atoms(x.dims), want) or refuse(node, "mixes tokens and channels")
    return M.seen(x, dims)
  end

  local function unsqueeze(x, axes, node)
    local rank, new = #x.dims + #axes, {}
    for _, axis in ipairs(axes) do new[axis < 0 and axis + rank or axis] = true end
    local dims, at = {}, 1
    for i = 0, rank - 1 do
      if new[i] then
        dims[#dims + 1] = {}
      else
        dims[#dims + 1] = x.dims[at] or refuse(node, "has wrong axes")
        at = at + 1
      end
    end
    return M.seen(x, dims)
  end

  function RULES.Unsqueeze(lift, node)
    return unsqueeze(lift:value(node.inputs[1]), M.axes_of(lift, node) or refuse(node, "has no axes"), node)
  end

  function RULES.Squeeze(lift, node)
    local x, axes, gone, dims = lift:value(node.inputs[1]), M.axes_of(lift, node), {}, {}
    for _, axis in ipairs(axes or {}) do gone[axis < 0 and axis + #x.dims or axis] = true end
    for i, dim in ipairs(x.dims) do
      local out = gone[i - 1] or (not axes and M.dim_size(dim) == 1)
      if out and M.dim_size(dim) ~= 1 then refuse(node, "takes out a dimension that is not 1") end
      if not out then dims[#dims + 1] = dim end
    end
    return M.seen(x, dims)
  end

  function RULES.Transpose(lift, node)
    local x, dims = lift:value(node.inputs[1]), {}
    local perm = node.attrs.perm
    for i = 1, #x.dims do dims[i] = x.dims[perm and perm[i] + 1 or #x.dims - i + 1] or refuse(node, "has a wrong perm") end
    return M.seen(x, dims)
  end

  -- ---- Slices --------------------------------------------------------------------------------------------------------

  --- Channels [from, from + n) of an expression.
  function M.slice(e, from, n, node)
    if from == 0 and n == e.channels then return e end
    if e.op == "linear" then
      return { op = "linear", node = e.node, x = e.x, channels = n, w = part(e.w, from, from + n), b = e.b and part(e.b, from, from + n) }
    end
    return { op = "slice", node = node, x = e, from = from, to = from + n, channels = n }
  end

  -- Channels [from, to) of dimension `axis` (1-based): a slice of the outermost channels, or a part of each head of the innermost
  -- ones.
  local function slice_axis(x, axis, from, to, node)
    local dim, dims = x.dims[axis], table.move(x.dims, 1, #x.dims, 1, {})
    local atoms = M.atoms { dim }
    local size = M.dim_size(dim)
    if from == 0 and to == size then return x end
    if #atoms ~= 1 or atoms[1].kind ~= "c" then refuse(node, "slices something else than channels") end
    local a = atoms[1]
    local whole = a.stride * a.size == x.e.channels
    if whole and not (a.stride == 1 and #x.dims == 4) then
      dims[axis] = { M.atom("c", to - from, a.stride) }
      return { e = M.slice(x.e, from * a.stride, (to - from) * a.stride, node), dims = dims }
    end
    if a.stride ~= 1 or axis ~= #x.dims then refuse(node, "slices inside the channels of heads") end
    local of = x.e
    if of.op == "part" then of, from, to, size = of.x, from + x.e.from, to + x.e.from, x.e.head end
    dims[axis] = { M.atom("c", to - from, 1) }
    return { e = { op = "part", node = node, x = of, from = from, to = to, head = size,
      channels = x.e.channels // M.dim_size(dim) * (to - from) }, dims = dims }
  end

  local function axis_of(axis, x, node)
    if axis < 0 then axis = axis + #x.dims end
    if axis < 0 or axis >= #x.dims then refuse(node, "has no such axis") end
    return axis + 1
  end

  function RULES.Split(lift, node)
    local x = lift:value(node.inputs[1])
    local axis = axis_of(node.attrs.axis or 0, x, node)
    local size, sizes = M.dim_size(x.dims[axis]), node.attrs.split
    if not sizes and (node.inputs[2] or 0) > 0 then sizes = lift.graph:numbers(node.inputs[2], M.PAST, M.TOKENS) end
    local count = sizes and #sizes or #node.outputs
    local out, at = {}, 0
    for i = 1, count do
      local n = sizes and sizes[i] or math.min((size + count - 1) // count, size - at)
      out[i] = slice_axis(x, axis, at, at + n, node)
      at = at + n
    end
    if at ~= size then refuse(node, "splits %d of %d", at, size) end
    return out
  end

  function RULES.Slice(lift, node)
    local g, x = lift.graph, lift:value(node.inputs[1])
    local function list(i, name)
      return node.attrs[name] or ((node.inputs[i] or 0) > 0 and g:numbers(node.inputs[i], M.PAST, M.TOKENS)) or nil
    end
    local starts, ends = list(2, "starts"), list(3, "ends")
    if not starts or not ends then refuse(node, "has unknown bounds") end
    local axes, steps = list(4, "axes"), list(5, "steps")
    for i, from in ipairs(starts) do
      local axis = axis_of(axes and axes[i] or i - 1, x, node)
      local size = M.dim_size(x.dims[axis])
      if steps and steps[i] ~= 1 then refuse(node, "takes every other element") end
      local to = ends[i]
      if from < 0 then from = from + size end
      if to < 0 then to = to + size end
      from, to = math.min(math.max(from, 0), size), math.min(math.max(to, 0), size)
      if to <= from then refuse(node, "slices nothing") end
      local narrow = x.e.op == "embed" and axis == #x.dims and from == 0 and to < size and M.narrow(x.e, to)
      x = narrow and M.columns(narrow) or slice_axis(x, axis, from, to, node)
    end
    return x
  end

  -- ---- Concatenation -------------------------------------------------------------------------------------------------

  -- [-second half | first half] of the first r channels of each head; nil if a and b are not that.
  local function rotate_half(a, b)
    if a.e.op ~= "neg" or a.e.x.op ~= "part" or b.e.op ~= "part" or a.e.x.x ~= b.e.x then return nil end
    local second, first = a.e.x, b.e
    local r = second.to
    if first.from ~= 0 or first.to * 2 ~= r or second.from ~= first.to or second.head ~= first.head then return nil end
    local dims = table.move(b.dims, 1, #b.dims, 1, {})
    dims[#dims] = { M.atom("c", r, 1) }
    return { e = { op = "rotate_half", x = first.x, rotary = r, head = first.head, channels = first.x.channels // first.head * r },
      dims = dims }
  end

  -- The rotated part of each head, followed by the rest of it; nil if a and b are not that.
  local function rope_and_rest(a, b)
    local e = a.e
    if e.op ~= "rope_part" or b.e.op ~= "part" or b.e.x ~= e.x or b.e.from ~= e.rotary or b.e.to ~= b.e.head then return nil end
    local dims = table.move(b.dims, 1, #b.dims, 1, {})
    dims[#dims] = { M.atom("c", b.e.head, 1) }
    return { e = { op = "rope", x = e.x, heads = e.x.channels // b.e.head, layout = e.layout, rope = e.rope, channels = e.x.channels },
      dims = dims }
  end

  function RULES.Concat(lift, node)
    local g, inputs = lift.graph, node.inputs
    local io = #inputs == 2 and g.inputs[inputs[1]]
    if io and g.past[io.name] then return M.cached(lift, node, io, lift:value(inputs[2])) end
    if #inputs ~= 2 then refuse(node, "joins activations in a way that no recipe does") end
    local a, b = lift:value(inputs[1]), lift:value(inputs[2])
    local axis = axis_of(node.attrs.axis, a, node)
    return axis == #a.dims and (rotate_half(a, b) or rope_and_rest(a, b)) or refuse(node, "joins activations in a way that no recipe does")
  end

  -- ---- Repeats -------------------------------------------------------------------------------------------------------

  function RULES.Expand(lift, node)
    local x = lift:value(node.inputs[1])
    local want = lift.graph:numbers(node.inputs[2], M.PAST, M.TOKENS) or refuse(node, "has an unknown shape")
    if #want > #x.dims then refuse(node, "adds dimensions") end
    local dims = table.move(x.dims, 1, #x.dims, 1, {})
    for i = 1, #want do
      local at = #dims - #want + i
      local have = M.dim_size(dims[at])
      if want[i] ~= have and want[i] ~= 1 then
        if have ~= 1 then refuse(node, "has a shape that does not fit") end
        dims[at] = { M.atom("rep", want[i], 0) }
      end
    end
    return M.seen(x, dims)
  end
end

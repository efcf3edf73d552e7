--- Known mistakes of porting, each as a change to what a recipe builds. The check rebuilds the model with one of them and tests whether
-- the drift disappears.
-- Needs nothing. A variant is {kind, text, install = function(b, base, cfg, touch) -> function(result) -> result, or nothing}.
-- install overrides methods of builder b; `base` has the original ones. The function that it may return changes the logits. A
-- variant calls touch() when it changes something in the model.
-- Usage: `for _, v in ipairs(variants.list(cfg)) do ... end`

local M = {}

local function copy(t, changes)
  local out = {}
  for key, value in pairs(t or {}) do out[key] = value end
  for key, value in pairs(changes) do out[key] = value end
  return out
end

local function is_qk(role) return role:find "_[qk]_norm$" ~= nil end

-- Adds 1 to the weights of norms, or removes that addition.
local function norm_offset(which, wanted)
  return function(b, base, _, touch)
    function b:rms_norm(x, role, opts)
      local offset = opts and opts.offset or self.cfg.norm_offset or 0
      if not wanted(role) then return base.rms_norm(self, x, role, opts) end
      touch()
      return base.rms_norm(self, x, role, copy(opts, { offset = offset == 0 and 1 or 0 }))
    end
  end, ("norm convention%s: multiply by (1 + w) instead of w, or the other way round (offset of b:rms_norm)"):format(which)
end

local function norm_variants(list)
  local function add(which, wanted)
    local install, text = norm_offset(which, wanted)
    list[#list + 1] = { kind = "norm", text = text, install = install }
  end
  add("", function() return true end)
  add(" of q and k", is_qk)
  add(" of the layers' and the last norm, not of q and k", function(role) return not is_qk(role) end)
  for _, eps in ipairs { 1e-5, 1e-6, 1e-12 } do
    list[#list + 1] = { kind = "eps", text = ("norm eps: %g"):format(eps), install = function(b, base, cfg, touch)
      function b:rms_norm(x, role, opts)
        if (opts and opts.eps or cfg.norm_eps) ~= eps then touch() end
        return base.rms_norm(self, x, role, copy(opts, { eps = eps }))
      end
    end }
  end
end

-- Norms q and k after rope instead of before, or the other way round.
local function swap_qk_norm(b, base, _, touch)
  local held, rotated = {}, {}
  function b:rms_norm(x, role, opts)
    local which = role:match "_([qk])_norm$"
    if not which then return base.rms_norm(self, x, role, opts) end
    local rope = rotated[which]
    rotated[which] = nil
    if not rope then
      held[which] = { role, opts }
      return x
    end
    touch()
    return base.rope(self, base.rms_norm(self, x, role, opts), table.unpack(rope, 1, 3))
  end
  function b:rope(x, tab, name, opts)
    local which = name and name:match "^([qk])_"
    local norm = which and held[which]
    if norm then
      held[which] = nil
      touch()
      return base.rms_norm(self, base.rope(self, x, tab, name, opts), norm[1], norm[2])
    end
    if which and self:has("attn_" .. which .. "_norm") then
      rotated[which] = { tab, name, opts }
      return x
    end
    return base.rope(self, x, tab, name, opts)
  end
end

local function rope_variants(list)
  list[#list + 1] = { kind = "rope",
    text = "rope pairing: rotate pairs (i, i + r/2) instead of (2i, 2i + 1), or the other way round (layout of b:rope)",
    install = function(b, base, _, touch)
      function b:rope(x, tab, name, opts)
        touch()
        local layout = opts.layout or self.cfg.rope and self.cfg.rope.layout
        return base.rope(self, x, tab, name, copy(opts, { layout = layout == "interleaved" and "half" or "interleaved" }))
      end
    end }
  list[#list + 1] = { kind = "rope", text = "rope scaling: the golden's positions are not scaled", install = function(b, base, _, touch)
    function b:rope_table(r, name)
      if r.scaling or r.divisors then touch() end
      local plain = copy(r, {})
      plain.scaling, plain.divisors = nil, nil
      return base.rope_table(self, plain, name)
    end
  end }
  list[#list + 1] = { kind = "qk_norm", install = swap_qk_norm,
                      text = "order of norm and rope: q and k are normed on the other side of the rotation (qk_norm of attention.gqa)" }
end

-- Attention with other attributes. change(opts, cfg) returns them; nil if there is nothing to change.
local function attention(kind, text, change)
  return { kind = kind, text = text, install = function(b, base, cfg, touch)
    function b:attention(q, k, v, opts)
      local changes = change(opts, cfg)
      if changes then touch() end
      return base.attention(self, q, k, v, copy(opts, changes or {}))
    end
  end }
end

local function attention_variants(list, cfg)
  local function add(...) list[#list + 1] = attention(...) end
  local scales = { { cfg.head_dim ^ -0.5, "head_dim^-0.5" }, { 1.0, "1" },
    { (cfg.d_model / cfg.n_head) ^ -0.5, "(d_model / n_head)^-0.5" } }
  for _, scale in ipairs(scales) do
    add("scale", "scale of the attention scores: " .. scale[2], function(opts)
      return math.abs(opts.scale - scale[1]) > 1e-6 and { scale = scale[1] } or nil
    end)
  end
  add("softcap", "soft cap: the attention scores are not capped", function(opts)
    return (opts.softcap or 0) > 0 and { softcap = 0 } or nil
  end)
  local cap = cfg.meta and cfg.meta "attn_logit_softcapping" or 50
  add("softcap", ("soft cap: attention scores go through %g tanh(s / %g)"):format(cap, cap), function(opts)
    return (opts.softcap or 0) == 0 and { softcap = cap } or nil
  end)
  add("window", "sliding window: the layers see all keys", function(opts) return (opts.window or 0) > 0 and { window = 0 } or nil end)
  for _, by in ipairs { 1, -1 } do
    add("window", ("sliding window: one key %s (does it count the token itself?)"):format(by > 0 and "more" or "fewer"), function(opts)
      return (opts.window or 0) > 1 and { window = opts.window + by } or nil
    end)
  end
  if cfg.sliding_window then
    add("window", "sliding window: the layers see only the window", function(opts)
      return (opts.window or 0) == 0 and { window = cfg.sliding_window } or nil
    end)
  end
end

local function ffn_variants(list)
  for _, act in ipairs { "silu", "gelu_tanh", "gelu_erf" } do
    list[#list + 1] = { kind = "activation", text = "activation of the feed-forward block: " .. act, install = function(b, base, _, touch)
      function b:glu(gate, up, was)
        if was ~= act then touch() end
        return base.glu(self, gate, up, act)
      end
    end }
  end
  list[#list + 1] = { kind = "gate", text = "gate and up are exchanged", install = function(b, base, _, touch)
    function b:glu(gate, up, act)
      touch()
      return base.glu(self, up, gate, act)
    end
  end }
end

local function embed_variants(list, cfg)
  local root = math.sqrt(cfg.d_model)
  list[#list + 1] = { kind = "embed", text = ("embedding scale: multiply the embedding by sqrt(d_model) = %.4g"):format(root),
    install = function(b, base, _, touch)
      function b:embed(role)
        touch()
        return base.scale(self, base.embed(self, role), root)
      end
    end }
  list[#list + 1] = { kind = "embed", text = "embedding scale: the golden's embedding is not multiplied by sqrt(d_model)",
    install = function(b, base, _, touch)
      function b:scale(x, by)
        if math.abs(by / root - 1) > 1e-2 then return base.scale(self, x, by) end
        touch()
        return x
      end
    end }
end

-- Uses the weight of `role` as the matrix of the head.
local function head(from, to, text)
  return { kind = "head", text = text, install = function(b, base, _, touch)
    function b:linear(x, role, opts)
      if role == from and not self.index and self:has(to) then
        touch()
        role = to
      end
      return base.linear(self, x, role, opts)
    end
  end }
end

-- Moves soft caps from other values to the logits.
local function move_softcap(b, base, cfg, touch)
  local cap
  function b:softcap(x, by)
    if self:channels(x) ~= cfg.d_model then return base.softcap(self, x, by) end
    touch()
    cap = by
    return x
  end
  return function(result) return cap and base.softcap(b, result, cap) or result end
end

local function head_variants(list, cfg)
  list[#list + 1] = head("output", "token_embd", "tied head: the head is the embedding (token_embd), not the file's output matrix")
  list[#list + 1] = head("token_embd", "output", "untied head: the file has an output matrix, the recipe uses the embedding")
  list[#list + 1] = { kind = "softcap", text = "soft cap: the logits are not capped", install = function(b, base, _, touch)
    function b:softcap(x, by)
      if self:channels(x) == cfg.d_model then return base.softcap(self, x, by) end
      touch()
      return x
    end
  end }
  list[#list + 1] = { kind = "softcap", install = move_softcap,
                      text = "soft cap in the wrong place: it belongs after the head, on the logits" }
  local cap = cfg.meta and cfg.meta "final_logit_softcapping"
  if cap then
    list[#list + 1] = { kind = "softcap", text = ("soft cap: logits go through %g tanh(x / %g) (softcap of head.lm)"):format(cap, cap),
      install = function(b, base, _, touch)
        touch()
        return function(result) return base.softcap(b, result, cap) end
      end }
  end
end

--- All variants for a configuration, the most likely first.
function M.list(cfg)
  local list = {}
  embed_variants(list, cfg)
  norm_variants(list)
  rope_variants(list)
  ffn_variants(list)
  attention_variants(list, cfg)
  head_variants(list, cfg)
  return list
end

--- A recipe like `r`, with changes. It may leave weights unused.
-- @param chosen list of variants, applied in order
-- @return recipe; a table in which build stores b, the builder
function M.recipe(r, chosen)
  local seen = { touched = {} }
  local changed = setmetatable({ ignore = { "" } }, { __index = r })
  function changed.build(b, cfg)
    seen.b = b
    local finish = {}
    for i, variant in ipairs(chosen) do
      local base = setmetatable({}, getmetatable(b))
      for key, value in pairs(b) do base[key] = type(value) == "function" and value or nil end
      finish[#finish + 1] = variant.install(b, base, cfg, function() seen.touched[i] = true end)
    end
    local result = r.build(b, cfg)
    for i = 1, #chosen do
      if not seen.touched[i] then error({ message = "nothing changes: " .. chosen[i].text }, 0) end
    end
    for _, fn in ipairs(finish) do result = fn(result) end
    return result
  end
  return changed, seen
end

return M

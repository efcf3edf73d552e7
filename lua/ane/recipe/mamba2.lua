--- The Mamba-2 block.
-- Dao and Gu 2024, "Transformers are SSMs". Needs ane.recipe.options and shapes.
-- Usage (in a recipe): `x = b:add(x, mamba2.block(b, b:rms_norm(x, "attn_norm"), settings))`

local options = require "ane.recipe.options"
local shapes = require "ane.recipe.shapes"

local M = {}

--- Reads the sizes from GGUF keys, which are the same for all architectures.
function M.of_gguf(cfg)
  local function required(key) return cfg.meta(key, "count") or error(("metadata key %s is missing"):format(key), 0) end
  local heads = required "ssm.time_step_rank"
  return {
    heads = heads, width = required "ssm.inner_size" // heads, groups = cfg.meta("ssm.group_count", "count") or 1,
    n = required "ssm.state_size", taps = required "ssm.conv_kernel", log = false,
  }
end

--- The limits of the time step in config.json.
-- @return the lower and the upper limit; nil: none. Infinity means no limit.
function M.limits(cfg)
  local limit = cfg.meta "time_step_limit"
  if limit == nil then return nil, nil end
  local found = type(limit) == "table" and ("a list of %d"):format(#limit) or tostring(limit)
  if type(limit) ~= "table" or #limit ~= 2 then error(("time_step_limit must be a list of two numbers, but is %s"):format(found), 0) end
  return tonumber(limit[1]), tonumber(limit[2])
end

--- Reads the settings from the keys mamba_* of config.json (Falcon-H1, Granite 4), whose defaults are those of transformers.
-- @return the settings of `block` but for width, which each architecture computes in its own way
function M.of_config(cfg)
  local low, high = M.limits(cfg)
  return {
    heads = cfg.meta("mamba_n_heads", "count") or 128, groups = cfg.meta("mamba_n_groups", "count") or 1,
    n = cfg.meta("mamba_d_state", "count") or 256, taps = cfg.meta("mamba_d_conv", "count") or 4, low = low, high = high, act = cfg.act,
    bias = cfg.meta("mamba_proj_bias", "flag") or false, conv_bias = cfg.meta("mamba_conv_bias", "flag"),
  }
end

--- Names of the block's weights in Hugging Face files, under `prefix` ("mamba").
function M.names(prefix)
  return {
    ssm_in = prefix .. ".in_proj", ssm_conv1d = prefix .. ".conv1d", ssm_dt = prefix .. ".dt_bias", ssm_a = prefix .. ".A_log",
    ssm_d = prefix .. ".D", ssm_norm = prefix .. ".norm", ssm_out = prefix .. ".out_proj",
  }
end

-- Whether ssm_out has a bias.
local function out_bias(s)
  if s.out_bias ~= nil then return s.out_bias end
  return s.bias
end

--- Shapes of the block's weights, used for plans without weights.
function M.shapes(cfg, s)
  local inner = s.heads * s.width
  local mixed = inner + 2 * s.groups * s.n
  local t = {
    ssm_in = { inner + mixed + s.heads, cfg.d_model }, ssm_conv1d = { mixed, 1, s.taps },
    ["ssm_conv1d.bias"] = s.conv_bias ~= false and { mixed },
    ssm_dt = { s.heads }, ssm_a = { s.heads }, ssm_d = { s.heads }, ssm_norm = { inner }, ssm_out = { cfg.d_model, inner },
  }
  if s.bias then shapes.biases(t, { "ssm_in" }) end
  return out_bias(s) and shapes.biases(t, { "ssm_out" }) or t
end

-- The projection by rows [from, from + n) of ssm_in, multiplied by a factor (nil: 1).
local function rows(b, x, s, name, from, n, by)
  local y = b:linear(x, "ssm_in", { from = from, to = from + n, name = name, bias = s.bias })
  return by and by ~= 1 and b:scale(y, by) or y
end

-- z [1, inner, T, 1]; x | B | C [1, inner + 2 groups n, T, 1]; dt [1, heads, T, 1]
local function project(b, x, s)
  local inner, states, by = s.heads * s.width, s.groups * s.n, s.factors
  local z = rows(b, x, s, "ssm_z", 0, inner, by and by[1])
  local dt = rows(b, x, s, "ssm_dt", 2 * inner + 2 * states, s.heads, by and by[5])
  if not by then return z, rows(b, x, s, "ssm_xbc", inner, inner + 2 * states), dt end
  local u = rows(b, x, s, "ssm_x", inner, inner, by[2])
  local bs = rows(b, x, s, "ssm_b", 2 * inner, states, by[3])
  local cs = rows(b, x, s, "ssm_c", 2 * inner + states, states, by[4])
  return z, b:concat(u, b:concat(bs, cs)), dt
end

-- The gated norm: y silu(z), normed per group, or with norm_first the normed y times silu(z). Each group has its own weights.
local function gated_norm(b, y, z, s)
  local function norm(v)
    local n = b:rms_norm(v, "ssm_norm", { groups = s.groups, weight = false, offset = 0, eps = s.eps })
    return b:affine(n, false, b:weight("ssm_norm", { flat = true }), "ssm_norm")
  end
  if s.norm_first and not s.plain then return b:glu(z, norm(y), "silu") end
  y = b:glu(z, y, "silu")
  return s.plain and y or norm(y)
end

--- out(norm(scan(silu(conv(x | B | C)), dt) * silu(z))) with z | x | B | C | dt = in(x).
-- Weights: ssm_in, ssm_conv1d, ssm_dt (the bias of dt), ssm_a, ssm_d, ssm_norm, ssm_out.
-- @param x normed input [1, d_model, T, 1]
-- @param s heads, width, groups, n (state size), taps (of the convolution), log (true: ssm_a holds log(-A)), low and high (limits of the
-- time step; nil: none), plain (true: gated without a norm), norm_first (true: the norm precedes the gate), eps (of the norm; default: the
-- configuration's), factors (on z, x, B, C and dt; nil: all 1), act (activation function after the convolution; default "silu"), bias and
-- conv_bias (of ssm_in and ssm_out, and of ssm_conv1d; true: required; false: not used; nil: as the file has them), out_bias (of ssm_out,
-- instead of bias)
-- @return value [1, d_model, T, 1]
function M.block(b, x, s)
  s = options.check("mamba2.block", s)
  local gguf = b.cfg.format == "gguf"
  local z, mixed, dt = project(b, x, s)
  local bias = s.conv_bias ~= false and b:weight("ssm_conv1d", { suffix = ".bias", optional = not s.conv_bias })
  local conv = b:conv_causal(mixed, { weight = b:weight "ssm_conv1d", bias = bias, groups = b:channels(mixed), taps = s.taps })
  local y = b:ssm_scan(b:act(conv, s.act or "silu"), dt, {
    heads = s.heads, width = s.width, groups = s.groups, n = s.n, log = s.log ~= false, low = s.low, high = s.high,
    decay = b:weight("ssm_a", { suffix = "" }), d = b:weight("ssm_d", { suffix = "" }),
    dt_bias = b:weight("ssm_dt", { suffix = gguf and ".bias" or "" }),
  })
  return b:linear(gated_norm(b, y, z, s), "ssm_out", { bias = out_bias(s) })
end

return M

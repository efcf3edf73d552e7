--- Steps from a pooled vector to an embedding: dense layers, norms, and scaling to length 1.
-- Needs ane.core and ane.util.keys. Usage: `for _, step in ipairs(list) do v = steps.apply(step, v) end`
--
-- A step is one of
--   {kind = "dense", weight [rows, columns], bias [rows] or nil, act = name or nil, residual = true or a tensor [rows, columns] or nil}
--   {kind = "norm", weight [n], bias [n] or nil, eps = number}   LayerNorm
--   {kind = "normalise"}
-- act(W x + b), and with residual + x, or + R x where the numbers of rows and columns differ (sentence-transformers, Dense).

local core = require "ane.core"
local keys = require "ane.util.keys"

local M = {}

--- Returns whether all numbers of a vector are finite. It tests the sum of their squares, since embeddings and weights of modules hold no
-- numbers so large that their squares overflow.
function M.is_finite(v) return v:dot(v) < math.huge end

--- The name of a class without its modules: "ReLU" of "torch.nn.modules.activation.ReLU".
function M.class_of(name) return name:match "^.*%.(.*)$" or name end

-- erf(x) in double precision: the Maclaurin series, and beyond |x| = 4 the sign, which float32 cannot tell from erf.
local function erf(x)
  if math.abs(x) > 4 then return x > 0 and 1.0 or -1.0 end
  local term, sum, n = x, x, 0
  while math.abs(term) > 1e-17 do
    n = n + 1
    term = -term * x * x / n
    sum = sum + term / (2 * n + 1)
  end
  return 2 / math.sqrt(math.pi) * sum
end

local function sigmoid(x)
  local e = math.exp(-math.abs(x))
  return (x < 0 and e or 1) / (1 + e)
end

local function tanh(x)
  local e = math.exp(-2 * math.abs(x))
  return (x < 0 and -1 or 1) * (1 - e) / (1 + e)
end

local function gelu(x) return 0.5 * x * (1 + erf(x / math.sqrt(2))) end

local function gelu_tanh(x) return 0.5 * x * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))) end

local function relu(x) return x < 0 and 0.0 or x end

local function silu(x) return x * sigmoid(x) end

--- Activations by the names of torch.nn.
M.ACTIVATIONS = { Identity = false, Tanh = tanh, ReLU = relu, Sigmoid = sigmoid, SiLU = silu, GELU = gelu }

-- Activations by the names of recipes, which a dense step may have as well.
local OF_RECIPES = { tanh = tanh, relu = relu, silu = silu, gelu_erf = gelu, gelu_tanh = gelu_tanh }

--- The sorted names of the activations, for messages.
function M.activation_names() return table.concat(keys(M.ACTIVATIONS), ", ") end

local function mapped(v, f)
  local list = v:totable()
  for i, x in ipairs(list) do list[i] = f(x) end
  return core.tensor({ #list }, list)
end

--- A vector scaled to length 1; a zero vector stays as it is.
function M.normalised(v)
  local length = math.sqrt(v:dot(v))
  return length > 0 and v * (1 / math.max(length, 1e-12)) or v
end

local APPLY = { normalise = function(_, v) return M.normalised(v) end }

function APPLY.dense(step, v)
  local y, f = step.weight:times(v), M.ACTIVATIONS[step.act] or OF_RECIPES[step.act]
  if step.bias then y = y + step.bias end
  if f then y = mapped(y, f) end
  if not step.residual then return y end
  return y + (step.residual == true and v or step.residual:times(v))
end

function APPLY.norm(step, v)
  local mean = v:mean()
  local centred = mapped(v, function(x) return x - mean end)
  local y = centred * (1 / math.sqrt(centred:dot(centred) / #v + step.eps)) * step.weight
  return step.bias and y + step.bias or y
end

--- Applies a step to a vector.
-- @param v tensor [n]
-- @return tensor
function M.apply(step, v) return APPLY[step.kind](step, v) end

return M

--- The result of a check as text and as plain data.
-- Needs nothing. Usage: `print(report)`; `core.json_encode(report:data())`

local M = {}

local Report = {}
Report.__index = Report
Report.__name = "ane.check.report"

--- Makes a report of a result of ane.evaluate.check.
function M.wrap(self) return setmetatable(self, Report) end

local function number(v) return ("%.3g"):format(v) end

local function line_of(row)
  local note = row.shapes or not row.ok and "drifts" or row.permuted and "in another order" or ""
  local line = ("%-24s %-28s %10s %10s %10.7f  %s"):format(row.name, row.value ~= row.name and row.value or "", number(row.max_abs),
    number(row.rms), row.cosine, note)
  return (line:gsub("%s+$", ""))
end

local function header(title) return ("%-24s %-28s %10s %10s %10s"):format(title, "our value", "max |d|", "rms", "cosine") end

-- Adds the first block that drifts and those of its layer, since the list of all blocks is long.
local function add_blocks(lines, rows, first)
  local layer = first and first.name:match "^layers%.%d+%."
  local drifting = 0
  for _, row in ipairs(rows) do drifting = drifting + (row.ok and 0 or 1) end
  if drifting > 0 then lines[#lines + 1] = header "block" end
  for _, row in ipairs(rows) do
    if row == first or layer and row.name:sub(1, #layer) == layer then lines[#lines + 1] = line_of(row) end
  end
  if #rows > 0 then lines[#lines + 1] = ("blocks: %d compared, %d drift"):format(#rows, drifting) end
end

local function output_line(out)
  local row, parts = out.logits, {}
  if row then
    parts[1] = row.shapes or ("max |d| %s, cosine %.7f, argmax %.0f of %d%s"):format(number(row.max_abs), row.cosine,
      row.argmax_agree * out.tokens, out.tokens, row.ok and "" or ", drifts")
  end
  if out.greedy_equal == true then parts[#parts + 1] = "greedy tokens equal" end
  if out.greedy_equal == false then parts[#parts + 1] = ("greedy tokens differ from place %d on"):format(out.greedy_differs) end
  return ("logits of %s: %s"):format(out.prompt, table.concat(parts, "; "))
end

function Report:__tostring()
  local limit = self.limits.scaled and ("|d| <= %g (1 + |golden|)"):format(self.limits.scaled)
    or ("cosine >= %g"):format(self.limits.cosine)
  local lines = { ("%s against %s, %s activations, required: %s"):format(self.model or "model", self.golden, self.activations, limit) }
  if #self.layers > 0 then lines[#lines + 1] = header "layer" end
  for _, row in ipairs(self.layers) do lines[#lines + 1] = line_of(row) end
  add_blocks(lines, self.blocks, self.first_block)
  for _, out in ipairs(self.outputs) do lines[#lines + 1] = output_line(out) end
  if self.first then
    lines[#lines + 1] = ("first drift: %s (our %s), prompt %s"):format(self.first.name, self.first.value, self.first.prompt)
  end
  if self.first_block then lines[#lines + 1] = "first block that drifts: " .. self.first_block.name end
  for _, hint in ipairs(self.hints) do lines[#lines + 1] = (hint.certain and "cause: " or "hint: ") .. hint.text end
  lines[#lines + 1] = self.ok and "ok" or "not ok"
  return table.concat(lines, "\n")
end

-- Makes a number valid in JSON.
local function finite(v)
  if type(v) ~= "number" or v == v and math.abs(v) < math.huge then return v end
  return v ~= v and 0.0 or v > 0 and 1e308 or -1e308
end

local KEYS = { "name", "value", "prompt", "max_abs", "max_scaled", "rms", "cosine", "argmax_agree", "shapes", "permuted", "ok" }

local function plain(row)
  if not row then return nil end
  local out = {}
  for _, key in ipairs(KEYS) do out[key] = finite(row[key]) end
  return out
end

local function plain_list(rows)
  local out = {}
  for i, row in ipairs(rows) do out[i] = plain(row) end
  return out
end

--- The report without tensors, for JSON. Infinity becomes 1e308, NaN 0.
function Report:data()
  local outputs = {}
  for i, out in ipairs(self.outputs) do
    outputs[i] = { prompt = out.prompt, tokens = out.tokens, logits = plain(out.logits), greedy_equal = out.greedy_equal,
                   greedy_differs = out.greedy_differs }
  end
  return {
    model = self.model, golden = self.golden, activations = self.activations, limits = self.limits, ok = self.ok,
    layers = plain_list(self.layers), blocks = plain_list(self.blocks), logits = plain(self.logits), outputs = outputs,
    greedy_equal = self.greedy_equal, first = plain(self.first), first_block = plain(self.first_block), hints = self.hints,
  }
end

return M

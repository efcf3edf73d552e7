--- Values that no caller should pass, and the judgement of what a function says about them.
-- Usage: `for _, v in ipairs(wrong_values.list) do local fault = wrong_values.judge(pcall(f, v.value)) end`

local M = {}

local cyclic = {}
cyclic[1], cyclic.self = cyclic, cyclic

local deep = {}
for _ = 1, 20000 do deep = { deep } end

--- List of {name, value}. `value` is nil in the first.
M.list = {
  { name = "nil" }, { name = "true", value = true }, { name = "false", value = false }, { name = "0", value = 0 },
  { name = "-1", value = -1 }, { name = "1.5", value = 1.5 }, { name = "NaN", value = 0 / 0 }, { name = "inf", value = math.huge },
  { name = "2^53", value = 1 << 53 }, { name = "maxinteger", value = math.maxinteger }, { name = "mininteger", value = math.mininteger },
  { name = "empty text", value = "" }, { name = "text", value = "x" }, { name = "NUL", value = "a\0b" },
  { name = "bytes", value = "\xff\xfe" }, { name = "long text", value = ("y"):rep(5000) }, { name = "{}", value = {} },
  { name = "{{}}", value = { {} } }, { name = "hole", value = { 1, nil, 3 } }, { name = "extra key", value = { 1, 2, x = 3 } },
  { name = "hole in texts", value = { "a", nil, "c" } }, { name = "{false}", value = { false } }, { name = "{'a', 1}", value = { "a", 1 } },
  { name = "{1.5}", value = { 1.5 } }, { name = "{-1}", value = { -1 } }, { name = "{2^53}", value = { 1 << 53 } },
  { name = "{x = {}}", value = { x = {} } }, { name = "{[{}] = 1}", value = { [{}] = 1 } }, { name = "cyclic", value = cyclic },
  { name = "deep", value = deep }, { name = "function", value = function() end },
  { name = "raising function", value = function() error("mine", 0) end }, { name = "coroutine", value = coroutine.create(print) },
  { name = "file", value = io.stdout }, { name = "__index", value = setmetatable({}, { __index = { max_tokens = 1 } }) },
  { name = "locked metatable", value = setmetatable({}, { __metatable = false }) },
}

local CODES = {}
for code in ("memory io format unsupported invalid shape notfound range state stopped template"):gmatch "%a+" do CODES[code] = true end

-- Texts of errors of Lua and of its library, which say nothing to a caller.
local INTERNAL = {
  "attempt to ", "bad argument #%-", "to '%?'", "stack overflow", "assertion failed", "invalid order function", "table index is",
  "%(field '", "C stack", "nobody expected", "lua/ane/", "invalid value %(", "invalid option '",
  "table: 0x", "function: 0x", "thread: 0x", "userdata: 0x",
}

local function text_fault(text)
  if type(text) ~= "string" then return "gives no text but a " .. type(text) end
  if #text > 6000 then return ("gives a text of %d bytes"):format(#text) end
  for _, pattern in ipairs(INTERNAL) do
    if text:find(pattern) then return "says " .. text end
  end
end

--- What is wrong with the results of a pcall: an internal error, or a failure without message and code; nil: nothing.
function M.judge(ok, value, message, code)
  if not ok then return text_fault(value) end
  if value == nil and message ~= nil then
    if not CODES[code] then return ("fails with the code %s (%s)"):format(tostring(code), tostring(message)) end
    return text_fault(message)
  end
end

return M

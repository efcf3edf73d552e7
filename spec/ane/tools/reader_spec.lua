-- The work of reading replies with many or long calls.
local forms = require "ane.tools.forms"
local reader = require "ane.tools.reader"

-- Runs a function. Returns the bytes that functions of strings have read or copied meanwhile.
local function bytes_of(run)
  local bytes, plain = 0, { sub = string.sub, find = string.find, match = string.match }
  local counted = {}
  function counted.sub(...)
    local text = plain.sub(...)
    bytes = bytes + #text
    return text
  end
  function counted.find(text, what, at, ...)
    local first, last = plain.find(text, what, at, ...)
    bytes = bytes + (last or #text) - (at or 1) + 1
    return first, last
  end
  function counted.match(text, pattern, at)
    local found = plain.match(text, pattern, at)
    bytes = bytes + (type(found) == "number" and found - (at or 1) or type(found) == "string" and #found or 0)
    return found
  end
  for name, f in pairs(counted) do rawset(string, name, f) end
  local ok, message = pcall(run)
  for name, f in pairs(plain) do rawset(string, name, f) end
  assert(ok, message)
  return bytes
end

local function arguments_of(form, text)
  if form.arguments == "json" then return '{"a": "' .. text .. '"}' end
  if form.arguments == "tagged" then return form.member[1] .. "a" .. form.member[2] .. text .. form.member[3] end
  if form.arguments == "python" then return 'a="' .. text .. '"' end
  return "{a:" .. form.quote .. text .. form.quote .. "}"
end

local function call(form, name, text)
  return (form.call:gsub("{(%l+)}", { name = name, id = "a1B2c3D4e", arguments = arguments_of(form, text) }))
end

-- Replies of n parts: calls, texts and calls, a long argument, a long name.
local REPLIES = {
  ["calls"] = function(form, n)
    return form.first .. (call(form, "get", "x") .. (form.between or "")):rep(n - 1) .. call(form, "get", "x") .. form.last
  end,
  ["texts and calls"] = function(form, n) return ("Text. " .. form.first .. call(form, "get", "x") .. form.last):rep(n) end,
  ["a long argument"] = function(form, n) return form.first .. call(form, "get", ("x y "):rep(4 * n)) .. form.last end,
  ["a long name"] = function(form, n) return form.first .. call(form, ("name"):rep(4 * n), "x") .. form.last end,
  ["blanks"] = function(form, n) return (" \n"):rep(8 * n) .. form.first .. call(form, "get", "x") .. form.last end,
  ["a long header"] = function(form, n) return form.channels and "<|channel|>" .. (" final"):rep(4 * n) .. "<|message|>Text." or "" end,
}

describe("the work of a reader", function()
  local function work(form, text, size)
    return bytes_of(function()
      local r = reader.new(form)
      for at = 1, #text, size do r:push(text:sub(at, at + size - 1)) end
      r:finish()
    end)
  end

  for _, name in ipairs(forms.names()) do
    it("grows with the length of the reply, as a whole or in pieces: " .. name, function()
      local form = forms.with_names(forms.named(name), { "get" })
      for what, reply in pairs(REPLIES) do
        for _, size in ipairs { math.maxinteger // 2, 5, 1 } do
          local short, long = work(form, reply(form, 50), size), work(form, reply(form, 200), size)
          assert.is_true(long <= 4.4 * short + 2000, ("%s in pieces of %d: %d, then %d bytes"):format(what, size, short, long))
        end
      end
    end)
  end
end)

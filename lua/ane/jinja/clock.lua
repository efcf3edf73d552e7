--- strftime() in the C locale, for a time that the caller chooses.
-- Needs ane.jinja.limits. Usage: `clock.format(rt, clock.parse("2026-03-07T14:05:09"), "%d %b %Y") --> "07 Mar 2026"`

local limits = require "ane.jinja.limits"

local M = {}

local DAYS = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" }
local MONTHS = {
  "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
}
local BEFORE_MONTH = { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334 }

local function is_leap(year)
  return year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
end

-- Days since 1 January of year 1 in the proleptic Gregorian calendar.
local function ordinal(t)
  local y = t.year - 1
  return y * 365 + y // 4 - y // 100 + y // 400 + t.yday
end

local function complete(t)
  t.yday = BEFORE_MONTH[t.month] + t.day + (t.month > 2 and is_leap(t.year) and 1 or 0)
  t.wday = ordinal(t) % 7 -- 0 is Sunday: 1 January of year 1 was a Monday
  return t
end

local function days_in(year, month)
  return month == 12 and 31 or BEFORE_MONTH[month + 1] - BEFORE_MONTH[month] + (month == 2 and is_leap(year) and 1 or 0)
end

--- A time from "YYYY-MM-DD" or "YYYY-MM-DDTHH:MM:SS" with an optional fraction of a second; nil and a message for other text.
function M.parse(s)
  local year, month, day, rest = s:match("^(%d%d%d%d)%-(%d%d)%-(%d%d)(.*)$")
  local hour, minute, second, fraction = "0", "0", "0", ""
  if year and rest ~= "" then
    hour, minute, second, fraction = rest:match("^[T ](%d%d):(%d%d):(%d%d)%.?(%d*)$")
  end
  if not hour or not year then return nil, "now: YYYY-MM-DDTHH:MM:SS expected, got " .. s end
  local t = {
    year = tonumber(year), month = tonumber(month), day = tonumber(day), hour = tonumber(hour), minute = tonumber(minute),
    second = tonumber(second), micro = tonumber((fraction .. "000000"):sub(1, 6)),
  }
  if t.year < 1 or t.month < 1 or t.month > 12 or t.day < 1 or t.day > days_in(t.year, t.month) or t.hour > 23 or t.minute > 59
    or t.second > 59 then
    return nil, "now: no such date or time: " .. s
  end
  return complete(t)
end

--- The local time of the host.
function M.now()
  local d = os.date("*t")
  return complete { year = d.year, month = d.month, day = d.day, hour = d.hour, minute = d.min, second = math.min(d.sec, 59), micro = 0 }
end

-- The ISO 8601 year and week: those of the Thursday of the same week.
local function iso_week(t)
  local weekday = (t.wday + 6) % 7
  local thursday = t.yday - weekday + 3
  local year = t.year
  if thursday < 1 then
    year = year - 1
    thursday = thursday + (is_leap(year) and 366 or 365)
  elseif thursday > (is_leap(year) and 366 or 365) then
    thursday, year = thursday - (is_leap(year) and 366 or 365), year + 1
  end
  return year, (thursday - 1) // 7 + 1
end

local function hour12(t)
  return (t.hour + 11) % 12 + 1
end

local EPOCH = ordinal(complete { year = 1970, month = 1, day = 1 })

-- Each returns a text; or a number, its width, and its padding.
local DIRECTIVES = {
  a = function(t) return DAYS[t.wday + 1]:sub(1, 3) end,
  A = function(t) return DAYS[t.wday + 1] end,
  b = function(t) return MONTHS[t.month]:sub(1, 3) end,
  B = function(t) return MONTHS[t.month] end,
  C = function(t) return t.year // 100, 2 end,
  d = function(t) return t.day, 2 end,
  e = function(t) return t.day, 2, " " end,
  f = function(t) return ("%06d"):format(t.micro) end,
  g = function(t) return iso_week(t) % 100, 2 end,
  G = function(t) return (iso_week(t)), 4 end,
  H = function(t) return t.hour, 2 end,
  I = function(t) return hour12(t), 2 end,
  j = function(t) return t.yday, 3 end,
  k = function(t) return t.hour, 2, " " end,
  l = function(t) return hour12(t), 2, " " end,
  m = function(t) return t.month, 2 end,
  M = function(t) return t.minute, 2 end,
  n = function() return "\n" end,
  p = function(t) return t.hour < 12 and "AM" or "PM" end,
  P = function(t) return t.hour < 12 and "am" or "pm" end,
  s = function(t) return (ordinal(t) - EPOCH) * 86400 + t.hour * 3600 + t.minute * 60 + t.second, 1 end,
  S = function(t) return t.second, 2 end,
  t = function() return "\t" end,
  u = function(t) return (t.wday + 6) % 7 + 1, 1 end,
  U = function(t) return (t.yday + 6 - t.wday) // 7, 2 end,
  V = function(t) return select(2, iso_week(t)), 2 end,
  w = function(t) return t.wday, 1 end,
  W = function(t) return (t.yday + 6 - (t.wday + 6) % 7) // 7, 2 end,
  y = function(t) return t.year % 100, 2 end,
  Y = function(t) return t.year, 1 end,
  z = function() return "" end, -- the clock has no time zone, like datetime.now() of Python
  Z = function() return "" end,
  ["%"] = function() return "%" end,
}
DIRECTIVES.h = DIRECTIVES.b

local COMPOUND = {
  c = "%a %b %e %H:%M:%S %Y", D = "%m/%d/%y", F = "%Y-%m-%d", r = "%I:%M:%S %p", R = "%H:%M",
  T = "%H:%M:%S", x = "%m/%d/%y", X = "%H:%M:%S",
}

local PADDING = { ["-"] = "", ["_"] = " ", ["0"] = "0" }

local function format(t, fmt)
  return (fmt:gsub("%%([-_0^#]?)(.)", function(flag, c)
    if COMPOUND[c] then return format(t, COMPOUND[c]) end
    local directive = DIRECTIVES[c]
    if not directive then return nil end
    local v, width, fill = directive(t)
    if type(v) == "number" then
      fill = PADDING[flag] or fill or "0"
      v = tostring(v)
      v = fill == "" and v or fill:rep(width - #v) .. v
    end
    return flag == "^" and v:upper() or v
  end))
end

--- strftime(fmt) at a time from parse() or now(). An unknown directive stays as it is.
-- The longest directives are %c, which takes 24 characters, and a name of 9 characters.
function M.format(rt, t, fmt)
  limits.walk(rt, 8 * #fmt)
  limits.spare(rt, 24 * #fmt)
  local out = format(t, fmt)
  limits.grow(rt, #out)
  return out
end

return M

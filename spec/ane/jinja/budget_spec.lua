-- Every filter, test, method, operator, global and statement pays for its work. Each one runs here on a long input, and what it
-- does is compared with what it was charged: the VM instructions that Lua executed and the bytes that it allocated. Both are
-- counted, not timed. Work inside C functions is not counted; its price is checked by the size of the input.
local access = require "ane.jinja.access"
local filters = require "ane.jinja.filters"
local globals = require "ane.jinja.globals"
local jinja = require "ane.jinja"
local limits = require "ane.jinja.limits"
local tests = require "ane.jinja.tests"

-- The most that a step and a charged byte may stand for. A step of 120 instructions takes about 0.4 microseconds.
local INSTRUCTIONS_PER_STEP, BYTES_PER_STEP, BYTES_PER_BYTE = 120, 400, 8

-- Work of any size that needs no charge: the fixed cost of a render.
local FIXED_INSTRUCTIONS, FIXED_BYTES = 4000, 40000

-- The budget of the latest render.
local latest
local new = limits.new

local function watch()
  limits.new = function(...)
    latest = new(...)
    return latest
  end
end

local COUNT = 50

-- What a render did and what it paid.
local function measure(source, vars, given)
  local template = assert(jinja.compile(source))
  local instructions = 0
  collectgarbage()
  collectgarbage "stop"
  local before = collectgarbage "count"
  debug.sethook(function() instructions = instructions + COUNT end, "", COUNT)
  local text, message, code = template:render(vars, { now = "2026-03-07", limits = given })
  debug.sethook()
  local bytes = (collectgarbage "count" - before) * 1024
  collectgarbage "restart"
  local start = new(given)
  return {
    instructions = instructions, bytes = bytes, steps = start.left - latest.left, memory = start.room - latest.room,
    ok = text ~= nil, message = message, code = code,
  }
end

-- Variables with n bytes or items each. They come from JSON, so a render does not convert them.
local function inputs(n)
  local function list(make)
    local out = {}
    for i = 1, n do out[i] = make(i) end
    return "[" .. table.concat(out, ",") .. "]"
  end
  local dict = {}
  for i = 1, n do dict[i] = ('"k%d": %d'):format(i, i) end
  local function text(s) return '"' .. s:rep(n // #s) .. '"' end
  return assert(jinja.decode("{" .. table.concat({
    '"n": ' .. n, '"ascii": ' .. text "aB ", '"wide": ' .. text "é", '"sigma": ' .. text "Σ", '"spaces": ' .. text " ",
    '"letters": ' .. text "a", '"hyphens": ' .. text "-", '"words": ' .. text "ab-cd --e ", '"marks": ' .. text "&<",
    '"digits": ' .. text "1", '"lines": "' .. ("a\\n"):rep(n // 2) .. '"', '"tabs": "' .. ("\\t"):rep(n) .. '"',
    '"controls": "' .. ("\\u0001"):rep(n) .. '"', '"tags": ' .. text "<b>&amp;", '"dots": ' .. text "real.",
    '"percents": ' .. text "%%", '"braces": ' .. text "{{", '"list": ' .. list(tostring),
    '"strings": ' .. list(function(i) return ('"S%d"'):format(i) end),
    '"pairs": ' .. list(function(i) return ('["a%d", %d]'):format(i, i) end),
    '"records": ' .. list(function(i) return ('{"a": %d, "b": {"c": "x"}}'):format(i % 7) end),
    '"copies": ' .. list(tostring), '"entries": {' .. table.concat(dict, ",") .. "}", '"number": -7', '"float": 1.25',
    '"big": 1' .. ("1"):rep(n),
  }, ",") .. "}"))
end

local N = 1000
local SMALL, LARGE = inputs(N), inputs(4 * N)

-- Is the price of a source right? `constant`: its work does not grow with the input.
local function check(source, constant)
  local small, large = measure(source, SMALL), measure(source, LARGE)
  for _, m in ipairs { small, large } do
    assert(m.ok, ("%s: %s"):format(source, tostring(m.message)))
    local allowed = m.steps * INSTRUCTIONS_PER_STEP + FIXED_INSTRUCTIONS
    assert(m.instructions <= allowed, ("%s: %d instructions for %d steps"):format(source, m.instructions, m.steps))
    allowed = m.memory * BYTES_PER_BYTE + m.steps * BYTES_PER_STEP + FIXED_BYTES
    assert(m.bytes <= allowed, ("%s: %d bytes for %d charged and %d steps"):format(source, m.bytes, m.memory, m.steps))
  end
  local instructions = large.instructions - FIXED_INSTRUCTIONS
  assert(instructions <= 6 * small.instructions,
    ("%s: %d instructions for four times the input of %d"):format(source, large.instructions, small.instructions))
  if constant then return end
  local paid = (large.steps - small.steps) * 256 + large.memory - small.memory
  assert(paid >= 3 * N // 2, ("%s: %d steps and %d bytes for %d bytes or items more"):format(
    source, large.steps - small.steps, large.memory - small.memory, 3 * N))
end

-- Sources by name; false for what does no work. A leading "=" marks constant work.
local function check_all(cases)
  for name, sources in pairs(cases) do
    it("is right for " .. name, function()
      for _, source in ipairs(type(sources) == "table" and sources or { sources or nil }) do
        local constant = source:sub(1, 1) == "="
        if constant then source = source:sub(2) end
        if not source:find("{%", 1, true) then source = "{% set x = " .. source .. " %}" end
        check(source, constant)
      end
    end)
  end
end

local function check_complete(cases, names)
  for _, name in ipairs(names) do assert(cases[name] ~= nil, "no case for " .. name) end
  local known = {}
  for _, name in ipairs(names) do known[name] = true end
  for name in pairs(cases) do assert(known[name], "no such name: " .. name) end
end

local FILTERS = {
  abs = "=number|abs",
  attr = "=list|attr(letters)",
  batch = { "list|batch(3)|list", "list|batch(n)|list", "[1]|batch(n, 0)|list" },
  capitalize = { "ascii|capitalize", "wide|capitalize", "sigma|capitalize" },
  center = { "'a'|center(n)", "wide|center(2)" },
  count = "wide|count",
  d = "=nothing|d(list)",
  default = "=nothing|default(list)",
  dictsort = { "entries|dictsort", "entries|dictsort(by='value', reverse=true)" },
  e = "marks|e",
  escape = { "marks|escape", "wide|escape" },
  filesizeformat = "digits|filesizeformat",
  first = { "wide|first", "=list|first" },
  float = { "digits|float", "(digits ~ 'x')|float", "big|float" },
  forceescape = "marks|forceescape",
  format = { "percents|format", "'%s%s'|format(wide, wide)", "'%*d'|format(n, 1)", "'%r'|format(list)" },
  groupby = { "records|groupby('a')", "records|groupby('b.c')", "list|groupby('real')" },
  indent = { "lines|indent", "lines|indent(2, true, true)", "lines|indent('  ')" },
  int = { "digits|int", "(digits ~ 'x')|int", "('0' * n)|int", "spaces|int", "(letters ~ '!')|int" },
  items = "entries|items|list",
  join = { "list|join(', ')", "records|join(', ', attribute='b.c')", "wide|join('-')", "['a', 'b']|join(wide)" },
  last = { "wide|last", "=list|last" },
  length = { "wide|length", "=list|length" },
  list = { "list|list", "wide|list", "range(n)|list", "entries|list" },
  lower = { "ascii|lower", "wide|lower", "sigma|lower" },
  map = {
    "strings|map('lower')|list", "records|map(attribute='b.c')|list", "records|map(attribute='a', default=1)|list",
    "[1]|map(attribute=dots)|list",
  },
  max = { "list|max", "strings|max" },
  min = { "list|min", "records|min(attribute='a')" },
  pprint = {
    "list|pprint", "words|pprint", "controls|pprint", "entries|pprint", "records|pprint", "{letters: [1, 2]}|pprint",
    "[[[wide]]]|pprint",
  },
  random = { "wide|random", "=list|random" },
  reject = "list|reject('odd')|list",
  rejectattr = "records|rejectattr('a')|list",
  replace = {
    "letters|replace('a', 'bc')", "wide|replace('', '-')", "letters|replace('aaaaaaaaaaab', 'x')",
    "words|replace('ab-cd --e ', 'x')",
  },
  reverse = { "ascii|reverse", "wide|reverse", "list|reverse|list" },
  round = "=float|round(2)",
  safe = "=wide|safe",
  select = { "list|select|list", "list|select('divisibleby', 3)|list" },
  selectattr = "records|selectattr('a', 'eq', 3)|list",
  slice = { "list|slice(3)|list", "list|slice(n)|list" },
  sort = { "list|sort", "strings|sort(reverse=true)", "records|sort(attribute='a,b.c')" },
  string = { "list|string", "entries|string", "[controls]|string", "[wide]|string" },
  striptags = { "tags|striptags", "('<' * n)|striptags", "('&' ~ letters)|striptags" },
  sum = { "list|sum", "records|sum(attribute='a')" },
  title = { "ascii|title", "wide|title" },
  tojson = {
    "list|tojson", "entries|tojson(indent=2)", "controls|tojson", "wide|tojson(ensure_ascii=true)",
    "records|tojson(sort_keys=true)", "[[[1]]]|tojson(indent=n)", "big|tojson",
  },
  trim = { "spaces|trim", "wide|trim(wide)", "('a' ~ spaces)|trim" },
  truncate = { "wide|truncate(20)", "letters|truncate(n - 9)", "words|truncate(n - 9)" },
  unique = { "list|unique|list", "strings|unique|list" },
  upper = { "ascii|upper", "wide|upper" },
  urlencode = { "wide|urlencode", "pairs|urlencode", "entries|urlencode" },
  wordcount = { "words|wordcount", "wide|wordcount" },
  wordwrap = {
    "letters|wordwrap(1)", "letters|wordwrap(n // 2)", "hyphens|wordwrap(3)", "words|wordwrap(5)", "words|wordwrap(n)",
    "lines|wordwrap(1)", "letters|wordwrap(3, false)", "wide|wordwrap(2, wrapstring='--')", "('a-b-' * (n // 4))|wordwrap(50)",
    "spaces|wordwrap(7)",
  },
}

local TESTS = {
  ["!="] = "list != copies",
  ["<"] = "list < copies",
  ["<="] = "list <= copies",
  ["=="] = "list == copies",
  [">"] = "list > copies",
  [">="] = "list >= copies",
  boolean = "=list is boolean",
  callable = "=list is callable",
  defined = "=list is defined",
  divisibleby = "=number is divisibleby 3",
  eq = { "list is eq copies", "wide is eq(wide ~ '')" },
  equalto = "list is equalto copies",
  escaped = "=wide is escaped",
  even = "=number is even",
  ["false"] = "=number is false",
  filter = "=number is filter",
  float = "=number is float",
  ge = "list is ge copies",
  greaterthan = "list is greaterthan copies",
  gt = "list is gt copies",
  ["in"] = { "-1 is in list", "'b' is in letters", "letters is in (letters ~ 'a')", "entries is in pairs" },
  integer = "=number is integer",
  iterable = "=list is iterable",
  le = "list is le copies",
  lessthan = "list is lessthan copies",
  lower = { "letters is lower", "wide is lower" },
  lt = "list is lt copies",
  mapping = "=entries is mapping",
  ne = "list is ne copies",
  none = "=list is none",
  number = "=number is number",
  odd = "=number is odd",
  sameas = "wide is sameas(wide ~ '')",
  sequence = "=list is sequence",
  string = "=wide is string",
  test = "=number is test",
  ["true"] = "=number is true",
  undefined = "=list is undefined",
  upper = { "(letters|upper) is upper", "(wide|upper) is upper" },
}

local METHODS = {
  cycler = {
    next = "=cycler(1, 2).next()",
    reset = "=cycler(1, 2).reset()",
  },
  dict = {
    copy = "entries.copy()",
    fromkeys = "{}.fromkeys(list)",
    get = { "entries.get(letters)", "=entries.get('k1')" },
    items = "entries.items()",
    keys = { "=entries.keys()", "entries.keys()|list" },
    values = "entries.values()",
  },
  dicttype = {
    fromkeys = "dict(pairs)",
  },
  float = {
    is_integer = "=float.is_integer()",
  },
  int = {
    bit_length = "=number.bit_length()",
  },
  list = {
    copy = "list.copy()",
    count = "list.count(0)",
    index = "list.index(n)",
  },
  range = {
    count = "range(n).count(0)",
    index = "range(n).index(n - 1)",
  },
  str = {
    capitalize = "wide.capitalize()",
    casefold = "wide.casefold()",
    center = "'a'.center(n)",
    count = { "letters.count('a')", "letters.count('ab')", "letters.count('a', 1, -1)", "wide.count('')" },
    encode = false,
    endswith = { "letters.endswith(letters)", "letters.endswith(strings|sort|list and ('x', 'y'))" },
    expandtabs = "tabs.expandtabs(2)",
    find = { "letters.find('ab')", "wide.find('x', 1, -1)" },
    format = {
      "braces.format()", "'{}{}'.format(wide, wide)", "'{:{}}'.format(1, n)", "'{0!r}'.format(list)",
      "='{0.real.real}'.format(1)", "'{:é>9}'.format(wide)",
    },
    format_map = "braces.format_map({})",
    index = "(letters ~ 'b').index('b')",
    isalnum = "wide.isalnum()",
    isalpha = "wide.isalpha()",
    isascii = "letters.isascii()",
    isdecimal = "digits.isdecimal()",
    isdigit = "digits.isdigit()",
    isidentifier = "letters.isidentifier()",
    islower = "wide.islower()",
    isnumeric = "digits.isnumeric()",
    isprintable = "wide.isprintable()",
    isspace = "spaces.isspace()",
    istitle = "('Aa ' * n).istitle()",
    isupper = "(wide|upper).isupper()",
    join = { "'-'.join(strings)", "wide.join(['a', 'b'])" },
    ljust = "'a'.ljust(n, 'é')",
    lower = { "wide.lower()", "sigma.lower()" },
    lstrip = { "spaces.lstrip()", "wide.lstrip(wide)" },
    maketrans = false,
    partition = { "letters.partition('b')", "(letters ~ 'b').partition('b')" },
    removeprefix = "(letters ~ 'b').removeprefix(letters)",
    removesuffix = "('b' ~ letters).removesuffix(letters)",
    replace = { "letters.replace('a', '')", "wide.replace('é', 'e', n // 4)", "letters.replace('', 'b', 5)" },
    rfind = { "letters.rfind('b')", "wide.rfind('x', 1)" },
    rindex = "('b' ~ wide).rindex('b')",
    rjust = "'a'.rjust(n)",
    rpartition = { "letters.rpartition('b')", "words.rpartition('-')" },
    rsplit = { "words.rsplit()", "words.rsplit(maxsplit=2)", "letters.rsplit('a')", "words.rsplit('-', 2)" },
    rstrip = { "spaces.rstrip()", "wide.rstrip('é')" },
    split = {
      "words.split()", "spaces.split()", "letters.split('a')", "letters.split('b')", "words.split('-', 2)",
      "('é' ~ spaces ~ 'é').split()",
    },
    splitlines = { "lines.splitlines()", "lines.splitlines(true)" },
    startswith = "letters.startswith(('b', letters))",
    strip = { "spaces.strip()", "(' ' ~ letters).strip()", "('　' * n).strip()" },
    swapcase = { "ascii.swapcase()", "wide.swapcase()" },
    title = { "ascii.title()", "wide.title()" },
    translate = false,
    upper = "wide.upper()",
    zfill = "'-1'.zfill(n)",
  },
  tuple = {
    count = "=(1, 2).count(1)",
    index = "=(1, 2).index(2)",
  },
}

local GLOBALS = {
  cycler = "cycler(*list)",
  dict = { "dict(pairs)", "dict(entries)", "dict(**entries)" },
  joiner = "joiner(list)()",
  namespace = "namespace(pairs)",
  raise_exception = false,
  range = "=range(n)",
  strftime_now = { "strftime_now(letters)", "strftime_now('%c' * n)", "strftime_now('%B' * n)" },
}

local OTHERS = {
  ["%"] = { "percents % ()", "'%s' % wide", "'%99.99f' % n ~ letters ~ ''" },
  ["*"] = { "'a' * n", "[1] * n", "n * (1, 2)" },
  ["**"] = "=2 ** 40",
  ["+"] = { "letters + letters", "list + list", "=number + 1", "marks + (marks|safe)" },
  ["-"] = "=number - 1",
  ["/"] = "=number / 3",
  ["//"] = "=number // 3",
  ["a long expression"] = "{% for x in list %}{{ a and b or c and d or e and f or g and h or x and x and x and x and x and x and x and x }}"
    .. "{% endfor %}",
  ["a long key"] = "{letters: 1}",
  ["a loop"] = {
    "{% for x in list %}{% endfor %}", "{% for x in wide %}{{ x }}{% endfor %}",
    "{% for k, v in entries|items %}{{ k }}{{ loop.index }}{% endfor %}",
    "{% for x in range(n) %}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}",
    "{% for x in list|select %}{{ loop.length }}{% endfor %}",
    "{% for x in list if x is odd and x > 3 %}{{ loop.cycle(1, 2) }}{% else %}b{% endfor %}",
    "{% for a, b in pairs %}{{ loop.changed(b) }}{% endfor %}",
    "{% for x in list recursive %}{% if loop.first %}{{ loop([1, 2]) if loop.depth < 3 }}{% endif %}{% endfor %}",
  },
  ["a slice"] = { "wide[5:-5]", "ascii[::2]", "list[::-1]", "list[1:]", "=range(n)[1:]" },
  ["a string subscript"] = { "wide[n // 3]", "letters[-1]" },
  ["a subscript"] = { "=list[1]", "entries[letters]", "=entries['k1']" },
  ["a tuple as key"] = { "{% set t = {(1, 2, letters): 1} %}", "{(wide, wide): 1}|string" },
  ["an attribute"] = { "=entries.k1", "=entries.nothing", "=number.real" },
  ["and, or"] = "=number and list or entries",
  blocks = {
    "{% for x in list %}{% filter upper %}a{% endfilter %}{% with a = x, b = 2 %}{{ a }}{% endwith %}{% generation %}b"
      .. "{% endgeneration %}{% endfor %}",
    "{% for x in list %}{% if x > 1 and x < 3 or x == 7 %}{% elif x is odd %}{% else %}{% endif %}{% do x %}{% endfor %}",
  },
  ["dict equality"] = "entries == entries.copy()",
  ["in"] = { "-1 in list", "'b' in letters", "=1 in entries" },
  ["inline if"] = "=1 if list else 2",
  macros = {
    "{% macro f(a, b=2, c=3) %}{{ a }}{{ b }}{{ c }}{{ kwargs }}{{ varargs }}{% endmacro %}"
      .. "{% for x in list %}{{ f(x, c=1, d=2) }}{% endfor %}",
    "{% macro f() %}{{ caller(1) }}{% endmacro %}{% for x in list %}{% call(y) f() %}{{ y }}{% endcall %}{% endfor %}",
    "{% for x in list %}{% macro g(a) %}{% endmacro %}{% endfor %}",
  },
  ["nested equality"] = "pairs == pairs|list",
  ["not"] = "=not list",
  ["not in"] = "-1 not in list",
  ["set and namespace"] = {
    "{% set ns = namespace(a=1) %}{% for x in list %}{% set ns.a = x %}{% set y = [x, ns.a] %}{% endfor %}",
    "{% for x in list %}{% set y %}{{ x }}{% endset %}{% endfor %}",
    "{% for x in list %}{% set y = {'a': x, 'b': nothing} %}{% endfor %}",
  },
  ["starred arguments"] = {
    "{% macro f() %}{{ varargs|length }}{% endmacro %}{{ f(*list) }}",
    "{% macro f() %}{{ kwargs|length }}{% endmacro %}{{ f(**entries) }}",
    "{% macro f() %}{{ varargs|length }}{% endmacro %}{{ f(*wide) }}",
  },
  ["unary +"] = "=+number",
  ["unary -"] = { "-big", "=-number" },
  ["values that stay"] = {
    "{% set ns = namespace(l=0) %}{% for x in range(60) %}"
      .. "{% set ns.l = [ns.l, list|map('abs'), nothing, ''.strip, entries.items, 1.5|string] %}{% endfor %}"
      .. "{% set x = list|list %}",
  },
  ["view equality"] = "=entries.items() == {}.items()",
  ["~"] = { "letters ~ list ~ letters" },
}

-- The Unicode tables unpack when they are first used.
assert(jinja.compile "{{ 'é'.isalnum() }}{{ '½'.isnumeric() }}{{ ['\u{378}', 'é'.title()] }}"):render {}

describe("the price of work", function()
  before_each(watch)
  after_each(function() limits.new = new end)

  describe("of filters", function()
    it("has a case for each", function() check_complete(FILTERS, filters.names()) end)
    check_all(FILTERS)
  end)

  describe("of tests", function()
    it("has a case for each", function() check_complete(TESTS, tests.names()) end)
    check_all(TESTS)
  end)

  describe("of methods", function()
    it("has a case for each", function()
      local methods = access.methods()
      for kind, names in pairs(methods) do check_complete(METHODS[kind == "markup" and "str" or kind] or {}, names) end
    end)
    for _, cases in pairs(METHODS) do check_all(cases) end
  end)

  describe("of globals", function()
    it("has a case for each", function() check_complete(GLOBALS, globals.names()) end)
    check_all(GLOBALS)
  end)

  describe("of operators and statements", function() check_all(OTHERS) end)
end)

describe("a render that spends its budget", function()
  before_each(watch)
  after_each(function() limits.new = new end)

  local STEPS, MEMORY = 300000, 16 << 20
  for _, source in ipairs {
    "{% set x = letters|wordwrap(1) %}", "{% set x = letters|replace('a', 'b') %}", "{% set x = wide|urlencode %}",
    "{% set x = digits|int %}",
    "{% set x = (digits ~ 'x')|float %}", "{% set x = letters[n // 2] %}", "{% set x = list == copies %}",
    "{% set x = list|tojson(indent=2) %}",
    "{% set x = '%.99f' % 1e308 %}", "{% set x = list|sort %}", "{% set x = records|groupby('a') %}", "{% set x = words.split() %}",
    "{% set x = nothing and list or entries and nothing or list %}",
    "{% set ns.l = [ns.l, nothing] %}", "{% set ns.l = [ns.l, list|map('abs')] %}",
    "{% set ns.l = [ns.l, letters ~ loop.index] %}", "{% set ns.l = [ns.l, {'a': 1, 'b': 2, 'c': 3}] %}",
    "{% set ns.l = [ns.l, entries.items] %}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{% set ns.l = [ns.l, f] %}", "{% set ns.l = [ns.l, list + list] %}", "{{ letters }}",
  } do
    it("ends within it: " .. source, function()
      local loops = "{% for i in range(100000) %}{% for j in range(100000) %}"
      local all = "{% set ns = namespace(l=0) %}" .. loops .. source .. "{% endfor %}{% endfor %}"
      local m = measure(all, SMALL, { steps = STEPS, memory = MEMORY })
      assert.equal("limit", m.code, m.message)
      assert.is_true(m.instructions <= STEPS * INSTRUCTIONS_PER_STEP + FIXED_INSTRUCTIONS, m.instructions)
      assert.is_true(m.bytes <= MEMORY * BYTES_PER_BYTE + STEPS * BYTES_PER_STEP, m.bytes)
    end)
  end

  -- What a pattern that backtracks would take hours for.
  for source, want in pairs {
    ["{{ ('1' * 1000000 ~ 'x')|float }}"] = "0.0",
    ["{{ ('1' * 1000000 ~ 'x')|int }}"] = "0",
    ["{{ ('.' ~ '1' * 1000000 ~ 'e')|float }}"] = "0.0",
    ["{{ ('&' ~ 'a' * 1000000)|striptags|length }}"] = "1000001",
    ["{{ ('-' * 100000)|wordwrap(100000) == '-' * 100000 }}"] = "True",
  } do
    it("is not needed for " .. source, function()
      local template = assert(jinja.compile(source))
      assert.equal(want, (assert(template:render {})))
    end)
  end

  it("refuses a format specifier of any length", function()
    for _, source in ipairs {
      "{{ ('{:' ~ '1' * 1000000 ~ '@}').format(1) }}", "{{ ('%' ~ '-' * 1000000 ~ 'd') % 1 }}", "{{ ('%' ~ '1' * 1000000) % 1 }}",
    } do
      local text, _, code = assert(jinja.compile(source)):render {}
      assert.is_nil(text)
      assert.equal("limit", code)
    end
  end)
end)

describe("compile", function()
  local function numbered(n, format)
    local out = {}
    for i = 1, n do out[i] = format:format(i) end
    return table.concat(out)
  end

  local function instructions(source)
    local n = 0
    debug.sethook(function() n = n + COUNT end, "", COUNT)
    local template, message = jinja.compile(source)
    debug.sethook()
    assert(template, message)
    return n
  end

  for what, make in pairs {
    ["names and then ifs"] = function(n) return numbered(n, "{{ a%d }}") .. ("{% if a %}{% endif %}"):rep(n) end,
    ["an if with many branches"] = function(n)
      return numbered(n, "{{ a%d }}") .. "{% if a %}" .. ("{% elif a %}"):rep(n) .. "{% endif %}"
    end,
    ["ifs that set names"] = function(n) return numbered(n, "{%% if a %%}{%% set a%d = 1 %%}{%% endif %%}") end,
    ["loops"] = function(n) return numbered(n, "{%% for a%d in b %%}{%% endfor %%}") end,
    ["macros"] = function(n) return numbered(n, "{%% macro a%d(x=1) %%}{{ x }}{%% endmacro %%}") end,
  } do
    it("takes time in proportion to " .. what, function()
      assert.is_true(instructions(make(2000)) <= 5 * instructions(make(500)))
    end)
  end
end)

-- Every option that types/ documents, of every function, with hostile values. What refuses a value names the option and leaves no file.
-- What is accepted is of the documented type and, unless a list below says so, no negative number, no zero and no infinite one. Limits that
-- messages name are documented.
local ane = require "ane"
local core = require "ane.core"
local documented = require "support.documented"
local filter = require "support.filter"
local http = require "support.http"
local tree = require "support.tree"
local wrong = require "support.wrong_values"

local MODEL = "spec/fixtures/gguf/llama-q8_0.gguf"
local ONNX = "spec/fixtures/onnx/mixed"
local PACKAGE = "spec/fixtures/mlpackage/attn_state_rangedim/model.mlpackage"
local PROMPT, TEXT = { 1, 5, 7 }, ("The quick brown fox jumps over the lazy dog. "):rep(3)
local MESSAGES = { { role = "user", content = "hi" } }
local SECONDS = 5 -- the longest that one call may take

local function set(names)
  local out = {}
  for name in names:gmatch "%S+" do out[name] = true end
  return out
end

-- Options that take negative numbers, zero and infinite numbers.
local SIGNED = set "seed priority scale"
local ZERO = set [[temperature top_k top_p min_p repeat_window max_tokens logprobs prompt_logprobs blanks threshold queue port max_errors
  grace prefix_memory]]
local INFINITE = set "time_limit rank_timeout timeout grace"
-- Options whose tables may have a metatable that gives more: errors of that metatable are the caller's.
local OPEN = set "recipe"

-- ---- Values ----------------------------------------------------------------------------------------------------------------

local raising = { __index = function() error("mine", 0) end, __len = function() error("mine", 0) end,
  __pairs = function() error("mine", 0) end }

local VALUES = {
  { "NaN", 0 / 0 }, { "inf", math.huge }, { "-inf", -math.huge }, { "-1", -1 }, { "0", 0 }, { "2^31", 1 << 31 }, { "2^53", 2.0 ^ 53 },
  { "2^63", 2.0 ^ 63 }, { "mininteger", math.mininteger }, { "maxinteger", math.maxinteger }, { "1.5", 1.5 }, { "1e300", 1e300 },
  { "''", "" }, { "'x'", "x" }, { "'\\0'", "\0" }, { "'\\xff'", "a\xff\xfe" }, { "'1e999'", "1e999" }, { "'0'", "0" },
  { "true", true }, { "{}", {} }, { "{{}}", { {} } }, { "raising table", setmetatable({}, raising) },
  { "raising list", setmetatable({ "a" }, raising) }, { "{raising table}", { setmetatable({}, raising) } },
  { "locked table", setmetatable({}, { __metatable = false }) },
  { "function", function() end }, { "coroutine", coroutine.create(print) }, { "file", io.stdout },
}

-- ---- Calls -----------------------------------------------------------------------------------------------------------------

local folder, exported, model, graph, packages, encoder, reranker, classifier, base, package_, session, chat, pool, tensor, report, server
setup(function()
  folder = tree.folder()
  model = assert(ane.load(MODEL, { context = 1024, threads = 1 }))
  encoder = assert(ane.load("spec/fixtures/hf/bert", { context = 64, threads = 1 }))
  reranker = assert(ane.load("spec/fixtures/hf/cross_encoder", { context = 64, threads = 1 }))
  classifier = filter.load { threads = 1 }
  base = assert(ane.load("spec/fixtures/hf/llama", { context = 64, activations = "fp32", threads = 1 }))
  graph = assert(ane.load(ONNX, { context = 32, engine = "graph", threads = 1 }))
  exported = os.tmpname()
  os.remove(exported)
  assert(model:export(exported, { weights = "int8", context = 32, max_t = 8, threads = 1 }))
  packages = assert(ane.load(exported, { engine = "graph", threads = 1 }))
  package_ = assert(ane.package(PACKAGE, { threads = 1 }))
  pool = assert(model:pool())
  tensor = ane.tensor { { 1, 2 }, { 3, 4 } }
  report = assert(ane.sensitivity(model, TEXT, { tokens = 8, types = { "q4_0" }, threads = 1 }))
end)

teardown(function()
  for _, m in ipairs { model, graph, packages, encoder, reranker, classifier, base, package_ } do m:close() end
  tree.remove(folder)
  tree.remove(exported)
end)

-- The options with others that keep the call short.
local function with(opts, more)
  if type(opts) ~= "table" or getmetatable(opts) ~= nil then return opts end
  local out = {}
  for key, value in pairs(more) do out[key] = value end
  for key, value in pairs(opts) do out[key] = value end
  return out
end

local function fresh()
  if session then session:close() end
  session = assert(model:session())
  assert(session:feed(PROMPT))
  return session
end

local function fresh_chat()
  if chat then chat:close() end
  chat = assert(model:chat())
  return chat
end

local function finished(pieces, message, code)
  if pieces then return pieces:finish() end
  return nil, message, code
end

-- Each documented function, called with options.
local CALLS = {
  ["ane.load"] = function(opts) return ane.load(MODEL, with(opts, { threads = 1 })) end,
  ["ane.pull"] = function(opts) return ane.pull("hf:a/b", with(opts, { offline = true })) end,
  ["ane.check"] = function(opts) return ane.check(base, "spec/fixtures/check/llama.golden.json", opts) end,
  ["ane.calibrate"] = function(opts) return ane.calibrate(model, PROMPT, opts) end,
  ["ane.sensitivity"] = function(opts) return ane.sensitivity(model, TEXT, with(opts, { tokens = 4, types = { "q4_0" }, threads = 1 })) end,
  ["ane.gate"] = function(opts) return ane.gate(model, model, PROMPT, opts) end,
  ["ane.serve"] = function(opts) return ane.serve(model, with(opts, { port = 0 })) end,
  ["ane.batch"] = function(opts)
    local own = with(opts, { input = function() end, output = function() end })
    local output = type(own) == "table" and rawget(own, "output")
    if type(output) == "string" and output:find "^[^%z]+$" then own.output = folder .. "/" .. output end
    return ane.batch(model, own)
  end,
  ["ane.package"] = function(opts) return ane.package(PACKAGE, with(opts, { threads = 1 })) end,
  ["ane.ranks_lib.join"] = function(opts) return ane.ranks.join(opts) end,
  ["ane.ranks_lib.work"] = function(opts) return ane.ranks.work(opts) end,
  ["ane.grammar_lib.json_schema"] = function(opts) return ane.grammar.json_schema("{}", opts) end,
  ["ane.grammar_lib.json"] = function(opts) return ane.grammar.json(opts) end,
  ["ane.grammar_lib.parts"] = function(opts) return ane.grammar.parts({ { 1, 2, "literal", "a" }, ends = { 2 } }, opts) end,
  ["ane.tools_lib.parse"] = function(opts) return ane.tools.parse("x", with(opts, { form = "hermes" })) end,
  ["sensitivity_report:mixed"] = function(opts) return report:mixed(opts) end,
  ["package_:predict"] = function(opts) return package_:predict({}, nil, opts) end,
  ["model:generate"] = function(opts) return model:generate(MESSAGES, with(opts, { max_tokens = 1 })) end,
  ["model:stream"] = function(opts) return finished(model:stream(PROMPT, with(opts, { max_tokens = 1 }))) end,
  ["model:chat"] = function(opts) return model:chat(opts) end,
  ["model:pool"] = function(opts) return model:pool(opts) end,
  ["model:generate_many"] = function(opts)
    local replies, failed, code = model:generate_many({ MESSAGES }, with(opts, { max_tokens = 1 }))
    if replies and failed then return nil, failed[1][1], failed[1][2] end
    return replies, failed, code
  end,
  ["model:adapter"] = function(opts) return base:adapter("spec/fixtures/hf/lora_llama", opts) end,
  ["model:session"] = function(opts) return model:session(opts) end,
  ["model:quantise"] = function(opts) return model:quantise(folder .. "/q.gguf", with(opts, { weights = "q8_0", threads = 1 })) end,
  ["model:plan"] = function(opts) return model:plan(opts) end,
  ["model:export"] = function(opts) return model:export(folder .. "/set", with(opts, { threads = 1 })) end,
  ["model:embed"] = function(opts) return encoder:embed("a", opts) end,
  ["model:similarity"] = function(opts) return encoder:similarity("a", "b", opts) end,
  ["model:rerank"] = function(opts) return reranker:rerank("a", { "b" }, opts) end,
  ["model:classify"] = function(opts) return classifier:classify("a", opts) end,
  ["model:classify_many"] = function(opts) return classifier:classify_many({ "a" }, opts) end,
  ["model:redact"] = function(opts) return classifier:redact("My name is Ada.", opts) end,
  ["chat:say"] = function(opts) return fresh_chat():say("a", with(opts, { max_tokens = 1 })) end,
  ["chat:stream"] = function(opts) return finished(fresh_chat():stream("a", with(opts, { max_tokens = 1 }))) end,
  ["chat:render"] = function(opts) return assert(model:chat { messages = MESSAGES }):render(opts) end,
  ["pool:add"] = function(opts) return finished(pool:add(MESSAGES, with(opts, { max_tokens = 1 }))) end,
  ["server:run"] = function(opts)
    server = server or assert(ane.serve(model, { port = 0 }))
    server:stop()
    return server:run(opts)
  end,
  ["session:feed"] = function(opts) return fresh():feed({ 1 }, opts) end,
  ["session:generate"] = function(opts) return fresh():generate(with(opts, { max_tokens = 1 })) end,
  ["session:stream"] = function(opts) return finished(fresh():stream(with(opts, { max_tokens = 1 }))) end,
  ["tokenizer:encode"] = function(opts) return model.tokenizer:encode("a", opts) end,
  ["tokenizer:sequence"] = function(opts) return encoder.tokenizer:sequence("a", opts) end,
  ["tokenizer:pair"] = function(opts) return encoder.tokenizer:pair("a", "b", opts) end,
  ["tokenizer:decode"] = function(opts) return model.tokenizer:decode({ 1 }, opts) end,
  ["tokenizer:stream"] = function(opts) return model.tokenizer:stream(opts) end,
  ["tensor:histogram"] = function(opts) return tensor:histogram(opts) end,
  ["tensor:heat"] = function(opts) return tensor:heat(opts) end,
}

-- Calls of the same functions where another engine reads the options.
local ENGINES = {}
for name, of in pairs {
  ["an ONNX model"] = function() return graph, ONNX end, ["a package set"] = function() return packages, exported end,
} do
  ENGINES[#ENGINES + 1] = { "ane.load", name, function(opts)
    local _, path = of()
    return ane.load(path, with(opts, { threads = 1, context = 32 }))
  end }
  ENGINES[#ENGINES + 1] = { "model:session", name, function(opts) return (of()):session(opts) end }
  ENGINES[#ENGINES + 1] = { "model:generate", name, function(opts) return (of()):generate(PROMPT, with(opts, { max_tokens = 1 })) end }
  ENGINES[#ENGINES + 1] = { "model:pool", name, function(opts) return (of()):pool(opts) end }
  ENGINES[#ENGINES + 1] = { "session:feed", name, function(opts)
    local own <close> = assert((of()):session())
    return own:feed({ 1, 2, 3 }, opts)
  end }
end

-- ---- Judgement -------------------------------------------------------------------------------------------------------------

-- Does the text name the option?
local function names(text, option)
  return (" " .. text .. " "):find("[^%w_]" .. option .. "[^%w_]") ~= nil
end

local function accepts_number(name, v)
  if v == math.huge then return INFINITE[name] end
  return v > 0 or v == 0 and ZERO[name] or SIGNED[name]
end

-- The message of the results of pcall; nil: they are no failure.
local function message_of(ok, value, message)
  return not ok and value or value == nil and message or nil
end

-- The limits that a message names, as types/ should give them; nil: none, or so wide that nobody needs to know.
local function limit_of(text)
  if text:find "as the model was loaded" then return nil end
  local low, high = text:match "must be (%S+) %.%. ([%w.+]+)"
  if low and tonumber(high) < 1000000 then return ("%s .. %s"):format(low, high) end
  local least = text:match "must be ([%d.]+) or more"
  return least and tonumber(least) ~= 0 and tonumber(least) ~= 1 and least .. " or more" or nil
end

-- What is wrong with the results of pcall; nil: nothing. names_of: names, one of which a message must contain. without: the message without
-- the option, or nil.
local function judge(option, v, names_of, without, ok, value, message, code)
  local fault = wrong.judge(ok, value, message, code)
  if fault then return fault end
  local text = message_of(ok, value, message)
  local limit = text and limit_of(text)
  if limit and not option.text:find(limit, 1, true) then return ("must be %s, as is not documented"):format(limit) end
  if text and text ~= without and not (OPEN[option.name] and text:find "mine$") then
    for _, name in ipairs(names_of) do
      if names(text, name) then return nil end
    end
    if type(v) == "string" and v ~= "" and (text:find(v, 1, true) or text:find(("%q"):format(v), 1, true)) then return nil end
    return "says without its name: " .. text
  end
  if not documented.allows(option.type, v) then return "is accepted, but is no " .. option.type end
  if type(v) == "number" and not accepts_number(option.name, v) then return "is accepted" end
end

-- The files that calls have written.
local function listing()
  local list = assert(core.list_dir(folder))
  table.sort(list)
  return table.concat(list, ", ")
end

local function close(made)
  if (type(made) == "table" or type(made) == "userdata") and made ~= model then
    local found, method = pcall(function() return made.close end)
    if found and method then pcall(method, made) end
  end
end

-- Calls with each value of an option; adds what is wrong to faults.
local function sweep(faults, call, where, option, wrap, names_of)
  local without, files = message_of(pcall(call, {})), listing()
  for _, v in ipairs(VALUES) do
    local started = os.clock()
    local results = table.pack(coroutine.wrap(function() return pcall(call, wrap(v[2])) end)())
    local fault = judge(option, v[2], names_of, without, table.unpack(results, 1, results.n))
    local left = listing()
    if not fault and message_of(table.unpack(results)) and left ~= files then fault = "leaves other files: " .. left end
    files = left
    if not fault and os.clock() - started > SECONDS then fault = ("takes %.1f s"):format(os.clock() - started) end
    if fault then faults[#faults + 1] = ("%s = %s %s"):format(where, v[1], fault) end
    close(results[1] and results[2])
  end
end

-- The names that the message for an unknown option lists.
local function listed(call)
  local ok, message = pcall(call, { temperatur = 1 })
  assert.is_false(ok)
  assert.matches('unknown option "temperatur"; the options are ', message)
  return set((message:match "the options are (.*)$":gsub(",", "")))
end

-- Calls with each value of each option; returns what is wrong.
local function faults_of(call, options)
  local faults = {}
  for _, option in ipairs(options) do
    sweep(faults, call, option.name, option, function(v) return { [option.name] = v } end, { option.name })
    for _, field in ipairs(option.nested) do
      sweep(faults, call, option.name .. "." .. field.name, field, function(v) return { [option.name] = field.wrap(v) } end,
        { option.name, field.name })
    end
  end
  return table.concat(faults, "\n")
end

for _, f in ipairs(documented.functions()) do
  describe("options of " .. f.name, function()
    local call = CALLS[f.name]

    if f.name:find "^server:" and not http.available then return pending "needs libmicrohttpd and lua-socket" end

    it("are refused where they are unknown, with a list of those that are documented", function()
      assert.is_truthy(call, "this spec does not call it")
      local names_of = listed(call)
      for _, option in ipairs(f.options) do
        assert.is_truthy(names_of[option.name], option.name .. " is documented, but unknown")
        names_of[option.name] = nil
      end
      assert.is_nil(next(names_of))
    end)

    it("are refused where they are no table of their own", function()
      for _, v in ipairs { 1, "x", true, print, setmetatable({}, raising), setmetatable({ progress = print }, raising),
        setmetatable({ progress = print }, { __metatable = false }) } do
        local results = table.pack(pcall(call, v))
        assert.is_false(results[1])
        assert.matches("options must be a table", results[2])
      end
    end)

    it("are refused with their name, or are of the documented type", function()
      assert.equal("", faults_of(call, f.options))
    end)

    for _, engine in ipairs(ENGINES) do
      if engine[1] == f.name then
        it("are so for " .. engine[2] .. " too", function() assert.equal("", faults_of(engine[3], f.options)) end)
      end
    end
  end)
end

describe("fields of the server's requests", function()
  it("have the limits of generate", function()
    local own, other = require("ane.serve.sampling").rules, require("ane.generate.sampler").rules
    for _, name in ipairs { "top_p", "top_k", "min_p", "repeat_penalty" } do
      assert.same({ other[name].type, other[name].min, other[name].max }, { own[name].type, own[name].min, own[name].max }, name)
    end
  end)
end)

--- Functions that several commands share: loading a model by the options, reading input, writing results and remarks.
-- Needs ane.core, ane.cli.sandbox, ane.util.byte_order, ane.util.progress and ane.util.units; ane.model and its modules if a model is
-- loaded; ane.cli.conversations, ane.evaluate.calibrate, ane.quantise.moments and ane.quantise.tune for calibrations; ane.coreml.plan for
-- --mixed; ane.hub for names on a hub; ane.jinja for texts of chat templates.
-- Usage: `local model <close>, message, code = common.load(args); if not model then return nil, message, code end`

local byte_order = require "ane.util.byte_order"
local core = require "ane.core"
local sandbox = require "ane.cli.sandbox"

local M = {}

--- Bytes as text for people (ane.util.units).
M.bytes = require("ane.util.units").bytes

--- Writes a remark of a command to standard error.
-- @param args the command's options
-- @param format as string.format takes it, with its arguments
function M.remark(args, format, ...)
  io.stdout:flush() -- before standard error is written
  io.stderr:write("ane ", args.command, ": ", format:format(...), "\n")
end

--- The progress function: a bar on a terminal, or nothing.
function M.progress(args)
  if args.no_progress or args.json then return function() end end
  return require("ane.util.progress").bar()
end

-- ---- Models --------------------------------------------------------------------------------------------------------------

-- Returns nil for an option that may be given several times and was not given.
local function given(list) return list and list[1] and list or nil end

-- Most bytes of a model that writes samples without being asked to: it is in memory as a whole for them.
local MOST_BYTES = 2 << 30

-- Returns the two parts of --calibrate FILE+samples:N; nil for a missing one.
local function calibration_parts(calibrate)
  local file, samples = calibrate:match "^(.+)%+samples:(.*)$"
  if file then return file, samples end
  samples = calibrate:match "^samples:(.*)$"
  return not samples and calibrate or nil, samples
end

-- Returns the number of tokens that the model is to generate, or nil.
local function sample_count(args)
  local _, samples = calibration_parts(args.calibrate)
  local n = samples and math.tointeger(tonumber(samples))
  return n and (n > 0 and math.max(2, n) or 0)
end

--- What is wrong with the number of samples of --calibrate; nil: nothing. FILE+samples:0 means none.
function M.samples_fault(calibrate)
  local file, samples = calibration_parts(calibrate)
  if not samples then return nil end
  local least, most = file and 0 or 1, require("ane.model.inputs").MOST_SAMPLES
  local n = samples:match "^%d+$" and tonumber(samples)
  if n and n >= least and n <= most then return nil end
  return ("is %s: the number of tokens must be %d .. %d"):format(calibrate, least, most)
end

-- The text of --calibrate, "" if it names no file; or nil, message, code.
local function calibration_text(args)
  local file = calibration_parts(args.calibrate)
  if not file then return "" end
  local text, message, code = M.read(file)
  if not text then return nil, message, code end
  if byte_order.is_utf16(text) then
    return nil, M.name_of(file) .. ": is UTF-16, as its byte order mark says, but must be UTF-8", "format"
  end
  text = byte_order.unmarked(text)
  if text == "" then return nil, M.name_of(file) .. ": is empty", "invalid" end
  local zero = text:find("\0", 1, true)
  if zero then return nil, ("%s: is no text: byte %d is zero"):format(M.name_of(file), zero), "format" end
  if file:find "%.json$" then M.remark(args, "%s is read as plain text; chats are the lines of a .jsonl file", file) end
  return text
end

-- Returns samples that a model generates for --calibrate, no more than are read; false: none are requested; or nil, message, code.
local function draw(args, model, most)
  local count = sample_count(args) or 0
  if count == 0 then return false end
  return require("ane.model.samples").draw(model, math.min(count, most), M.progress(args))
end

-- Returns the input of --calibrate: a text, or lists of ids (the conversations of a .jsonl file, samples, or text and samples
-- alternating); or nil, message, code.
-- @param samples as draw gives them
local function calibration_input(args, model, text, samples)
  local file = calibration_parts(args.calibrate)
  local input, message, code = text, nil, nil
  if not file then return samples end
  local conversations = require "ane.cli.conversations"
  if conversations.is_name(file) then input, message, code = conversations.encode(model.tokenizer, file, text) end
  if not input or not samples then return input, message, code end
  return require("ane.model.inputs").mix(model, input, samples)
end

-- Returns the input of --calibrate as calibration_input does, of which `most` tokens are read. Samples, if they are requested, come from
-- this model.
local function drawn_input(args, model, text, most)
  local samples, message, code = draw(args, model, most)
  if samples == nil then return nil, message, code end
  return calibration_input(args, model, text, samples)
end

--- Reads the file of --calibrate for a model that is loaded, or draws samples.
-- @param most tokens that are read of it
-- @return text or list of lists of ids; or nil, message, code
function M.calibration_input(args, model, most)
  local text, message, code = calibration_text(args)
  if not text then return nil, message, code end
  return drawn_input(args, model, text, most)
end

-- Options of a load for a calibration. Adapters are merged.
local function merging(args, transform)
  return {
    threads = args.threads, engine = args.engine, recipe = args.recipe, progress = M.progress(args), transform = transform,
    adapters = given(args.adapter), merge = given(args.adapter) and true,
  }
end

--- Computes the importance of the columns of a model's weights on the text of --calibrate.
-- @return importance (see ane.evaluate.calibrate); or nil, message, code
function M.calibrate(args)
  local text, message, code = calibration_text(args)
  if not text then return nil, message, code end
  local model
  model, message, code = require("ane.model").load(args.model, merging(args, args.transform))
  if not model then return nil, message, code end
  local _ <close> = model
  local input
  local calibrate = require "ane.evaluate.calibrate"
  input, message, code = drawn_input(args, model, text, args.tokens or calibrate.rules.tokens.default)
  if not input then return nil, message, code end
  return calibrate.run(model, input, { tokens = args.tokens, progress = M.progress(args) })
end

-- The number of tokens below which a text is short.
local function enough_tokens(args)
  local default = require("ane.quantise.moments").rules.tokens.default
  return math.min(args.tokens or default, default)
end

-- May a model write samples without being asked to? Chats are complete as they are, and so is a text of many bytes for each token.
local function completes(args, text)
  local file = calibration_parts(args.calibrate)
  if require("ane.cli.conversations").is_name(file) or #text >= 16 * enough_tokens(args) then return false end
  local source <close> = core.open(args.model)
  return source ~= nil and source:bytes() <= MOST_BYTES
end

-- The number of tokens that compensated rounding reads, with those that tune norms.
local function read_tokens(args)
  local tuned = require("ane.quantise.tune").tokens(args.tune or "auto")
  return (args.tokens or require("ane.quantise.moments").rules.tokens.default) + tuned
end

-- Returns samples of the stored model, which is loaded only for this; false: there are none; or nil, message, code. Those that were not
-- asked for complete a short text, and may fail.
local function draw_samples(args, text)
  local asked = sample_count(args)
  if asked == 0 or not asked and not completes(args, text) then return false end
  local kept = args.samples_of -- by an earlier recipe of a sweep, with the same text
  if kept and kept.lists ~= nil then return kept.lists end
  local model, message, code = require("ane.model").load(args.model, merging(args))
  if not model then
    if not asked then return false end
    return nil, message, code
  end
  local _ <close> = model
  local count = asked and math.min(asked, read_tokens(args))
    or require("ane.model.inputs").missing_samples(model, text, enough_tokens(args)) or 0
  local lists = false
  if count > 0 then lists, message, code = require("ane.model.samples").draw(model, count, M.progress(args)) end
  if not lists and not asked then lists = false end
  if kept then kept.lists = lists end
  return lists, message, code -- no tail call: the model is closed here
end

--- Prepares to read the text of --calibrate for compensated rounding. If the text is short and the model can write, its samples are
-- read too.
-- @param by_layer true: the model is rounded layer by layer, so its weights need not be in memory together
-- @return calibration of ane.quantise.moments, which closes its model, with field `samples`: the tokens that the model wrote; or nil,
-- message, code
function M.moments(args, by_layer)
  local text, message, code = calibration_text(args)
  if not text then return nil, message, code end
  local models = require "ane.model"
  local drawn
  drawn, message, code = draw_samples(args, text)
  if drawn == nil then return nil, message, code end
  local model
  model, message, code = (by_layer and models.unplanned or models.load)(args.model, merging(args, args.transform))
  if not model then return nil, message, code end
  local input, calibration
  input, message, code = calibration_input(args, model, text, drawn)
  if input then
    local moments = require "ane.quantise.moments"
    calibration, message, code = moments.open(model, input, {
      tokens = args.tokens, threads = args.threads, progress = M.progress(args), further = moments.further(args.tune),
    })
  end
  if not calibration then
    model:close()
    return nil, message, code
  end
  calibration.model, calibration.samples = model, 0
  for _, ids in ipairs(drawn or {}) do calibration.samples = calibration.samples + #ids end
  return calibration
end

--- Warns if a context is longer than the one that a model was trained for.
-- @param context requested tokens, or nil
-- @param own tokens of the model's own context, or nil
function M.check_context(args, context, own)
  local warning = require("ane.model.loader").context_warning(context, own)
  if warning then M.remark(args, "%s", warning) end
end

--- Prints the warnings of loading.
function M.show_warnings(args, model)
  for _, warning in ipairs(model.warnings) do M.remark(args, "%s", warning) end
end

--- For ane.hub: a function(why, seconds) that reports on standard error that the hub failed and is asked again after these seconds.
function M.waiting(args)
  return function(why, seconds) M.remark(args, "%s; next try in %g s", why, seconds) end
end

--- Returns the path of a model. The name of a model on a hub is downloaded first.
-- @return path; or nil, message, code
function M.path(args, name)
  local hub = require "ane.hub"
  if name == "" then return nil, "the name of the model is empty", "usage" end
  if not hub.is_name(name) then return name end
  local path, info, code = hub.pull(name, { progress = M.progress(args), waiting = M.waiting(args), fallback = true })
  if not path then return nil, info, code end
  if info.message then M.remark(args, "%s; taken from the cache", info.message) end
  return path
end

-- Names of files by which a folder is a package, an asset, a set or a model itself.
local OWN = { "^Manifest%.json$", "^main%.mlirb$", "^runtime_meta%.json$", "^config%.json$", "%.safetensors$", "%.onnx$" }

--- The package or asset that a path means: of a folder that only holds one, such as a bundle, that one; else the path itself.
-- @return path; or nil, message where the folder holds several
function M.package_path(path)
  local names, found = core.path_kind(path) == "folder" and core.list_dir(path) or {}, {}
  for _, name in ipairs(names) do
    for _, pattern in ipairs(OWN) do
      if name:find(pattern) then return path end
    end
    if name:find "%.mlpackage$" or name:find "%.aimodel$" then found[#found + 1] = name end
  end
  table.sort(found)
  if #found > 1 then return nil, ("%s: holds several packages or assets, name one of them: %s"):format(path, table.concat(found, ", ")) end
  return found[1] and (path:gsub("/+$", "")) .. "/" .. found[1] or path
end

--- What is wrong with the patterns of --mixed for a model, before a text is read with it; nil: nothing that can be seen without a load.
-- @return message, code; or nil
function M.mixed_fault(args)
  if not given(args.mixed) then return nil end
  local planner = require "ane.coreml.plan"
  local bundle = planner.open(args.model, { recipe = args.recipe })
  local graph <close> = bundle and planner.graph(bundle)
  local fault = graph and planner.fault_of_mixed(graph, args.mixed)
  if bundle then bundle.source:close() end
  return fault and ("%s: %s"):format(args.model, fault), fault and "invalid"
end

--- Loads the model of the command line.
-- @param extra options of load that override those of the command line
-- @param silent true: the caller calls show_warnings
-- @param prepare function(model) -> true or a table; or nil, message, code. It reads further files of the model, and is called only with
-- --sandbox, which then takes the right to read them
-- @return a model; or nil, message, code
function M.load(args, extra, silent, prepare)
  local importance, message, code
  if args.calibrate then
    local unread = require("ane.model.weights").unread_text(args, "file")
    if unread then M.remark(args, "--calibrate %s", unread) end
    local fault
    fault, code = M.mixed_fault(args)
    if fault then return nil, fault, code end
    importance, message, code = M.calibrate(args)
    if not importance then return nil, message, code end
  end
  local opts = {
    threads = args.threads, context = args.context, weights = args.weights, mixed = given(args.mixed), importance = importance,
    activations = args.activations, kv = args.kv, head = args.head, engine = args.engine, recipe = args.recipe,
    progress = M.progress(args), verify = args.verify, run_memory = args.run_memory, adapters = given(args.adapter), merge = args.merge,
    ranks = args.ranks, transform = args.transform,
  }
  for key, value in pairs(extra or {}) do opts[key] = value end
  local model
  model, message, code = require("ane.model").load(args.model, opts)
  if not model then return nil, message, code end
  local ready = true
  if prepare and args.sandbox then ready, message, code = prepare(model) end
  if ready then ready, message, code = sandbox.enter(args, false) end
  if not ready then
    model:close()
    return nil, message, code
  end
  if not silent then M.show_warnings(args, model) end
  return model
end

-- ---- Input and output ----------------------------------------------------------------------------------------------------

--- The name of a file for messages: "standard input" for "-".
function M.name_of(path) return path == "-" and "standard input" or path end

--- What is wrong with a text that goes through a chat template, which takes UTF-8; nil: nothing.
-- @param name of the option or file that it comes from
function M.utf8_fault(text, name) return require("ane.jinja").utf8_fault(text, name) end

--- Reads a whole file, or standard input if path is "-".
-- @return its bytes; or nil, message, code
function M.read(path)
  if path ~= "-" then return core.read_file(path) end
  local text, message = io.stdin:read "a"
  if not text then return nil, "standard input: cannot read: " .. message, "io" end
  return text
end

--- Reads a text without its last newline: editors and echo add one that no prompt or instance means.
-- @return the text; or nil, message, code
function M.read_text(path)
  local text, message, code = M.read(path)
  if not text then return nil, message, code end
  return (text:gsub("\r?\n$", ""))
end

--- Writes a value as one line of JSON, keys sorted.
function M.print_json(value)
  io.stdout:write(core.json_encode(value, { sort = true }), "\n")
  return true
end

--- Returns a list that is [] in JSON even if it is empty.
function M.list(values)
  return core.json_array(values)
end

--- Reads the lines of standard input. There must be at least one.
-- @return a list of texts without their line ends; or nil, message, code
function M.lines()
  local list = {}
  while true do
    local line, message = io.stdin:read "l"
    if message then return nil, "standard input: cannot read: " .. message, "io" end
    if not line and #list == 0 then return nil, "standard input: has no text, but must have one in each line", "invalid" end
    if not line then return list end
    list[#list + 1] = line
  end
end

--- Quotes a text, on one line.
function M.quote(text)
  return (("%q"):format(text):gsub("\\\n", "\\n"))
end

--- Prints how much of the calibration the model wrote, and what came of tuning norms.
-- @param report of a quantisation or an export
function M.show_calibration(args, report)
  if report.samples and report.samples > 0 then
    local hint = sample_count(args) and "" or " (FILE+samples:0 adds none)"
    io.stdout:write(("samples: the model wrote %d tokens of the calibration%s\n"):format(report.samples, hint))
  end
  local tuned = report.tuned
  if tuned then
    local what = "norms %s on %d windows; on held-out windows KL %.4f (before %.4f), perplexity %+.2f %% (before %+.2f %%) from the "
      .. "source's\n"
    local after, before = tuned.after, tuned.before
    if tuned.kept then io.stdout:write "the tuned norms of an earlier run were kept\n" end
    io.stdout:write(what:format(tuned.changed and "tuned" or "not changed", tuned.windows, after.kl, before.kl,
      100 * (after.perplexity - 1), 100 * (before.perplexity - 1)))
  elseif report.untuned then
    io.stdout:write("norms not tuned: ", report.untuned, "\n")
  end
end

--- Returns one line about the speed of a reply.
function M.speed(timings, stop)
  local fed = timings.prompt_tokens - timings.cached_tokens
  local function rate(n, s) return s > 0 and n / s or 0 end
  local text = ("prompt %d tokens, %.1f/s; reply %d tokens, %.1f/s; ended by %s"):format(timings.prompt_tokens,
    rate(fed, timings.prefill_s), timings.tokens, rate(timings.tokens, timings.decode_s), stop)
  local head, s = timings.head, timings.speculation
  if head then text = text .. ("; %.0f %% of the head read in %d steps"):format(100 * head.share, head.searched) end
  if not s then return text end
  return text .. ("; %d of %d drafted tokens accepted in %d calls, about %.2f times the speed without drafts"):format(s.accepted, s.drafted,
    s.calls, s.speedup)
end

--- Reports that the end of the context cut off a reply.
-- @param result of a reply
-- @param model a loaded one
-- @param what "3 of 4 replies are"; default "the reply is"
function M.check_cut(args, result, model, what)
  if result.stop ~= "context" then return end
  local held = require("ane.model").bundle(model).most_context -- by packages
  local context, own = model.context, held or model.config.context_length
  local more = own and context < own and ("--context gives up to %d"):format(own)
    or held and "the packages hold no more" or "the model's own is no longer"
  M.remark(args, "%s cut off: the context of %d tokens is full; %s", what or "the reply is", context, more)
end

return M

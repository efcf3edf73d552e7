--- How model families write calls of tools: a row for each form. Needs nothing.
-- A form matches a template by texts that the template contains: those with which it writes the calls of earlier turns, or asks for calls.
-- Usage: `local form, message = forms.of(template)`

local M = {}

-- Small models leave out the tags: Qwen2.5-Coder writes only the call.
local BARE = {
  first = "", call = '{"name": "{name}", "arguments": {arguments}}', between = "\n", last = "", triggers = { '{"name"' }, at_start = true,
  arguments = "json",
}

-- A form whose calls begin with the name of a tool.
local function recipients(form, names)
  local first, later = {}, {}
  for i, name in ipairs(names) do first[i], later[i] = name .. "\n", ">>>" .. name .. "\n" end
  local bare = setmetatable({ triggers = later }, { __index = form.bare })
  return setmetatable({ triggers = first, bare = bare }, { __index = form })
end

--- The rows, in the order in which they are tried.
--   name      of the form, for the option tool_form
--   has       texts that a template of the family contains, all of them; lacks: texts that it does not contain
--   first     text before the first call, after the opening of the reply; "" if there is none
--   call      a call: {name}, {id} (letters and digits, as many as id_length) and {arguments} stand for its parts
--   others    other ways in which models of the family begin a call, up to its name
--   between   text between two calls; nil: a reply has at most one call
--   last      text after the last call
--   triggers  texts from which on a reply must be a call; default: the beginning of a call up to the name's quotation mark
--   at_start  the triggers count at the beginning of a reply only
--   arguments how arguments are written: "json", "python" (name=value, as in a call of Python), "gemma" ({name:value}, texts between
--             `quote`), "tagged" (each between the texts of `member`: before the name, between name and value, after the value)
--   mark      the first byte of whatever may follow the name, in forms where several texts may follow it
--   bare      a second form that models of the family fall into, a row of its own
--   tools     function(form, names) -> a form with triggers made of the names of tools
--   says      text before a reply that is not a call
--   channels  replies are messages of channels, as ane.tools.channels reads them; the control tokens they are written with
--   writes    the template does not write calls of earlier turns: they are put into the content of their messages
--   texts     the template takes the arguments of earlier calls as JSON text
--   empty     "none": the template writes calls only of messages whose content is none
--   inject    the template takes the tools as JSON in the field `tools` of the system's message; "text": where the template has no
--             variable `tools`, they are described in the system's message
-- Sources: the models' own templates and cards; what llama.cpp and vLLM parse (common/chat.cpp, tool_parsers/).
M.rows = {
  { -- Qwen2.5, Qwen3, Hermes 2 Pro and 3, SmolLM3
    name = "hermes", has = { "<tool_call>", '"arguments"' }, lacks = { "<function=", "<arg_key>" },
    first = "", call = '<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>', between = "\n", last = "",
    triggers = { "<tool_call>" }, arguments = "json", bare = BARE,
  },
  { -- the same for templates that contain only the tags, as in <tool_call></tool_call>
    name = "hermes", has = { "<tool_call>", "arguments" }, lacks = { "<function=", "<arg_key>" },
    first = "", call = '<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>', between = "\n", last = "",
    triggers = { "<tool_call>" }, arguments = "json", bare = BARE,
  },
  { -- Qwen3-Coder, Qwen3.5
    name = "qwen3-coder", has = { "<tool_call>", "<function=", "<parameter=" },
    first = "", call = "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>", between = "\n", last = "",
    triggers = { "<tool_call>" }, arguments = "tagged", member = { "<parameter=", ">\n", "\n</parameter>\n" },
  },
  { -- GLM-4.7: as GLM-4.5, without line ends
    name = "glm-4.7", has = { "<tool_call>", "</arg_key><arg_value>" },
    first = "", call = "<tool_call>{name}{arguments}</tool_call>", between = "", last = "", mark = "<",
    triggers = { "<tool_call>" }, arguments = "tagged", member = { "<arg_key>", "</arg_key><arg_value>", "</arg_value>" },
  },
  { -- GLM-4.5, 4.6
    name = "glm-4.5", has = { "<tool_call>", "<arg_key>" },
    first = "", call = "<tool_call>{name}\n{arguments}</tool_call>", between = "\n", last = "",
    triggers = { "<tool_call>" }, arguments = "tagged", member = { "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n" },
  },
  { -- DeepSeek V3, R1 and its distillations
    name = "deepseek-v3", has = { "<｜tool▁sep｜>", "```json" },
    first = "<｜tool▁calls▁begin｜>",
    call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>", between = "\n",
    last = "<｜tool▁calls▁end｜>", triggers = { "<｜tool▁calls▁begin｜>" }, arguments = "json", texts = true, empty = "none",
    inject = "text",
  },
  { -- DeepSeek V3.1
    name = "deepseek-v3.1", has = { "<｜tool▁sep｜>" },
    first = "<｜tool▁calls▁begin｜>", call = "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>", between = "",
    last = "<｜tool▁calls▁end｜>", triggers = { "<｜tool▁calls▁begin｜>" }, arguments = "json", texts = true, inject = "text",
  },
  { -- gpt-oss (Harmony): one call, which ends the reply
    name = "harmony", has = { "<|channel|>commentary", "to=", "<|message|>" },
    first = "", call = "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}",
    others = { "<|channel|>analysis to=functions." }, last = "",
    triggers = { "<|channel|>commentary to=", "<|channel|>analysis to=" }, arguments = "json",
    channels = "<|start|><|channel|><|message|><|end|>",
    bare = { -- as the template writes it, after <|start|>assistant
      first = "", call = " to=functions.{name}<|channel|>commentary json<|message|>{arguments}", last = "",
      triggers = { " to=functions." }, arguments = "json",
    },
  },
  { -- Functionary 3.2: the prompt ends with the >>> of the first recipient
    name = "functionary-v3.2", has = { ">>>all" },
    first = "", call = "{name}\n{arguments}", between = ">>>", last = "", at_start = true, triggers = {}, arguments = "json",
    texts = true, says = "all\n", tools = recipients,
    bare = { first = ">>>", call = "{name}\n{arguments}", between = ">>>", last = "", triggers = {}, arguments = "json" },
  },
  { -- Functionary 3.1, Llama 3 with tags
    name = "functionary", has = { "<function=" }, lacks = { "<parameter=", "<tool_call>" },
    first = "", call = "<function={name}>{arguments}</function>", between = "\n", last = "",
    triggers = { "<function=" }, arguments = "json",
  },
  { -- Llama 3.1, 3.2, 3.3
    name = "llama3", has = { "ipython", '"parameters": ' },
    first = "", call = '{"name": "{name}", "parameters": {arguments}}',
    others = { '{"type": "function", "name": "', '<|python_tag|>{"name": "', '<|python_tag|>{"type": "function", "name": "' }, last = "",
    triggers = { '{"name"', '{"type": "function"', "<|python_tag|>" }, at_start = true, arguments = "json",
  },
  { -- Mistral Small 3.2, Devstral (tokenizer v11)
    name = "mistral-v11", has = { "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]" },
    first = "", call = "[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]{arguments}", id_length = 9, between = "", last = "",
    triggers = { "[TOOL_CALLS]" }, arguments = "json",
  },
  { -- Magistral, Ministral 3 (tokenizer v13)
    name = "mistral-v13", has = { "[TOOL_CALLS]", "[ARGS]" },
    first = "", call = "[TOOL_CALLS]{name}[ARGS]{arguments}", between = "", last = "",
    triggers = { "[TOOL_CALLS]" }, arguments = "json",
  },
  { -- Mistral 7B v0.3, Mixtral 8x22B (tokenizer v3)
    name = "mistral-v3", has = { "[TOOL_CALLS] [" },
    first = "[TOOL_CALLS] [", call = '{"name": "{name}", "arguments": {arguments}, "id": "{id}"}', id_length = 9, between = ", ",
    last = "]", triggers = { "[TOOL_CALLS]" }, arguments = "json",
  },
  { -- Mistral Nemo, Small 3.1 (tokenizer v7 and Tekken)
    name = "mistral-nemo", has = { "[TOOL_CALLS]" },
    first = "[TOOL_CALLS][", call = '{"name": "{name}", "arguments": {arguments}, "id": "{id}"}', id_length = 9, between = ", ",
    last = "]", triggers = { "[TOOL_CALLS]" }, arguments = "json",
  },
  { -- Phi-4-mini
    name = "phi4", has = { "<|tool|>" },
    first = "<|tool_call|>[", call = '{"name": "{name}", "arguments": {arguments}}', between = ", ", last = "]<|/tool_call|>",
    triggers = { "<|tool_call|>" }, arguments = "json", writes = true, inject = true,
  },
  { -- LFM2, LFM2.5
    name = "lfm2", has = { "<|tool_list_start|>" },
    first = "<|tool_call_start|>[", call = "{name}({arguments})", between = ", ", last = "]<|tool_call_end|>",
    triggers = { "<|tool_call_start|>" }, arguments = "python", writes = true,
  },
  { -- LFM2.5 with a template that does not mark the list of tools
    name = "lfm2", has = { "<|tool_call_start|>" },
    first = "<|tool_call_start|>[", call = "{name}({arguments})", between = ", ", last = "]<|tool_call_end|>",
    triggers = { "<|tool_call_start|>" }, arguments = "python", writes = true,
  },
  { -- FunctionGemma
    name = "functiongemma", has = { "<start_function_call>" },
    first = "", call = "<start_function_call>call:{name}{arguments}<end_function_call>", between = "", last = "",
    triggers = { "<start_function_call>" }, arguments = "gemma", mark = "{", quote = "<escape>",
  },
  { -- Gemma 4
    name = "gemma4", has = { "<|tool_call>" },
    first = "", call = "<|tool_call>call:{name}{arguments}<tool_call|>", between = "", last = "",
    triggers = { "<|tool_call>" }, arguments = "gemma", mark = "{", quote = '<|"|>',
  },
}

local function spells(text, list)
  for _, word in ipairs(list) do
    if not text:find(word, 1, true) then return false end
  end
  return true
end

local function spells_none(text, list)
  for _, word in ipairs(list or {}) do
    if text:find(word, 1, true) then return false end
  end
  return true
end

--- The names of all forms, once each, in the order of the rows.
function M.names()
  local names, seen = {}, {}
  for _, row in ipairs(M.rows) do
    if not seen[row.name] then names[#names + 1] = row.name end
    seen[row.name] = true
  end
  return names
end

--- The row of a name; nil if there is none.
function M.named(name)
  for _, row in ipairs(M.rows) do
    if row.name == name then return row end
  end
end

--- A form for given tools. It differs from `form` if the form's calls begin with the name of the tool.
-- @param names list
function M.with_names(form, names) return form.tools and form.tools(form, names) or form end

--- The form of a chat template.
-- @param template its text
-- @return a row; or nil, message, code ("unsupported")
function M.of(template)
  for _, row in ipairs(M.rows) do
    if spells(template, row.has) and spells_none(template, row.lacks) then return row end
  end
  if not template:find("tools", 1, true) then
    return nil, "the model's chat template does not support tools", "unsupported"
  end
  return nil, "the form of tool calls in the model's chat template is not known; name it with the option tool_form if it is one of these: "
    .. table.concat(M.names(), ", "), "unsupported"
end

return M

-- The official openai client and litellm against the server. ANE_CLIENTS_PYTHON names a Python that has them; default python3.
local ane = require "ane"
local core = require "ane.core"
local http = require "support.http"
local tiny = require "support.tiny"

local python = os.getenv "ANE_CLIENTS_PYTHON" or "python3"

-- A template that takes tools, in the form of Hermes.
local TEMPLATE = [[{% if tools %}{{ tools | tojson }}<tool_call>{"name": .., "arguments": ..}</tool_call>{% endif %}
{%- for m in messages %}
{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}
{%- endfor %}
assistant:]]

-- Runs a program of spec/support against a server, which takes its turns meanwhile.
-- @return what it printed
local function run(server, program)
  local out = os.tmpname()
  local done = out .. ".done"
  local command = ("(timeout 120 %s spec/support/%s http://127.0.0.1:%d > '%s' 2>&1; echo > '%s') &")
  assert(os.execute(command:format(python, program, server.port, out, done)))
  local deadline = core.clock() + 130
  while core.path_kind(done) == nil and core.clock() < deadline do server:turn(0.05) end
  local text = core.read_file(out)
  os.remove(out)
  os.remove(done)
  return text
end

describe("clients of OpenAI's API", function()
  for _, program in ipairs { "openai_client", "openai_embeddings", "litellm_client" } do
    it("work unchanged: " .. program, function()
      local name = program:match "^[^_]+"
      if not http.available then pending "needs libmicrohttpd and lua-socket" end
      local there = os.execute(("timeout 60 %s -c 'import %s' >/dev/null 2>&1"):format(python, name))
      if not there then pending(name .. " is not installed for " .. python) end
      local vectors = program == "openai_embeddings"
      local model <close> = vectors and assert(ane.load "spec/fixtures/hf/bert") or tiny.load()
      if not vectors then model.tokenizer.chat_templates = { default = TEMPLATE } end
      local server <close> = assert(ane.serve(model, { port = 0, api_key = "sesame" }))
      local text = run(server, program .. ".py")
      assert.matches('{"ok": true', text, 1, true)
    end)
  end
end)

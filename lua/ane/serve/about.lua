--- GET /health, /v1/models, /v1/models/ID, /props, and the chat page.
-- Needs ane.core, ane.serve.errors.

local core = require "ane.core"
local errors = require "ane.serve.errors"

local M = {}

--- GET /health
function M.health(server, call)
  local stopping = server.stopping
  call:json(stopping and 503 or 200, { status = stopping and "stopping" or "ok" })
end

local function model_of(server, id)
  return { id = id, object = "model", created = server.started, owned_by = "ane" }
end

--- GET /v1/models
function M.models(server, call)
  local list = {}
  for i, id in ipairs(server.ids) do list[i] = model_of(server, id) end
  call:json(200, { object = "list", data = core.json_array(list) })
end

--- GET /v1/models/ID
function M.model(server, call, _, id)
  server:check_model(id)
  call:json(200, model_of(server, id))
end

--- GET /props, in the form that clients of llama-server read.
function M.props(server, call)
  local tokenizer = server.model.tokenizer
  local templates = tokenizer and tokenizer.chat_templates or {}
  call:json(200, {
    default_generation_settings = { n_ctx = server.model.context, params = server.defaults },
    total_slots = server.opts.sessions, model_path = server.id, model_alias = server.id, chat_template = templates.default or "",
    bos_token = tokenizer and tokenizer.bos and tokenizer:token(tokenizer.bos) or "",
    eos_token = tokenizer and tokenizer.eos and tokenizer:token(tokenizer.eos) or "",
    build_info = "ane " .. server.version,
  })
end

local page -- its text, after the first read

-- The page lies beside this module.
local function read_page()
  local path, message = package.searchpath("ane.serve.page", (package.path:gsub("%.lua", ".html")))
  if not path then return nil, message end
  return core.read_file(path)
end

-- Headers of the page: it may use only its own scripts and styles, and send requests only to this server.
local POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
  .. "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

--- GET /
function M.page(_, call)
  local message
  if not page then page, message = read_page() end
  if not page then error(errors.new(404, "the chat page is not installed: " .. tostring(message)), 0) end
  call:text(200, "text/html; charset=utf-8", page, {
    ["Content-Security-Policy"] = POLICY, ["Referrer-Policy"] = "no-referrer", ["X-Frame-Options"] = "DENY",
  })
end

return M

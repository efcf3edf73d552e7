--- `ane serve`: a model over HTTP.
-- Needs ane.cli.common, ane.cli.options, ane.core and ane.serve.

local common = require "ane.cli.common"
local core = require "ane.core"
local options = require "ane.cli.options"
local serve = require "ane.serve"

local M = {}

M.summary = "Serve a model over HTTP, with OpenAI's API and a chat page."
M.ranks = true
M.needs = { { "tls_cert", "tls_key" }, { "tls_key", "tls_cert" } }

function M.options(parser)
  options.model(parser):hidden(true) -- --sandbox, which is refused: a server needs the network
  parser:option("--host", "Address to listen on; 0.0.0.0 means all addresses of the machine. Default 127.0.0.1: only this machine.")
    :argname "ADDRESS"
  options.add(parser, "--port", "Port to listen on; 0 chooses a free one. Default 8080.", serve.rules.port):argname "N"
  options.add(parser, "--sessions", "Maximum replies computed at once. Default 4.", serve.rules.sessions):argname "N"
  options.add(parser, "--queue", "Maximum requests that wait; further ones get status 503. Default 64.", serve.rules.queue)
    :argname "N"
  options.add(parser, "--memory", "Maximum memory for the state of all replies: 2G, 512M.", serve.rules.memory):argname "SIZE"
  parser:option("--api-key", "Key that requests must contain. @FILE reads it from a file, so that the list of processes does not show it.")
    :argname "KEY|@FILE"
  options.add(parser, "--tls-cert", "PEM file of a certificate, for HTTPS.", options.path):argname "FILE"
  options.add(parser, "--tls-key", "PEM file of its private key.", options.path):argname "FILE"
  options.add(parser, "--cors", "Origin whose pages may send requests, such as https://example.org; * means all. May be given several "
    .. "times.", serve.rules.cors):count "*":argname "ORIGIN"
  options.add(parser, "--alias", "Another name that requests may give as model. May be given several times.", options.text):count "*"
    :argname "NAME"
  options.add(parser, "--temperature", "temperature of requests that have none; default 1, as in OpenAI's API.",
    serve.defaults.temperature):argname "X"
  options.add(parser, "--top-p", "top_p of requests that have none.", serve.defaults.top_p):argname "X"
  options.add(parser, "--top-k", "top_k of requests that have none.", serve.defaults.top_k):argname "N"
  options.add(parser, "--min-p", "min_p of requests that have none.", serve.defaults.min_p):argname "X"
  options.add(parser, "--time-limit", "Maximum seconds of a reply, including the time in the queue.", serve.rules.time_limit):argname "S"
  options.add(parser, "--max-body", "Maximum bytes of a request's body. Default 8388608.", serve.rules.max_body):argname "N"
  options.add(parser, "--connections", "Maximum connections at once. Default 256.", serve.rules.connections):argname "N"
  options.add(parser, "--grace", "Seconds that replies may still take after SIGTERM or Ctrl-C; a second signal ends them. Default 30.",
    serve.rules.grace):argname "S"
  parser:flag("--metrics", "Serve /metrics, for Prometheus.")
  parser:flag("--quiet", "Do not log requests on standard error.")
end

-- The text of a PEM file; nil without a path; or nil, message, code.
local function read_pem(path)
  if not path then return nil end
  local text, message, code = core.read_file(path)
  if not text then return nil, message, code end
  if not text:find("-----BEGIN ", 1, true) then return nil, path .. ": is not a PEM file: it has no line -----BEGIN", "format" end
  return text
end

-- The key of --api-key.
local function key_of(given)
  if not given then return nil end
  if given:sub(1, 1) ~= "@" then
    local fault = serve.key_fault(given)
    if fault then return nil, "--api-key " .. fault, "invalid" end
    return given
  end
  if given == "@" then return nil, "--api-key @ names no file", "invalid" end
  local text, message, code = core.read_file(given:sub(2))
  if not text then return nil, message, code end
  text = text:gsub("%s+$", "")
  if text == "" then return nil, given:sub(2) .. " holds no key", "invalid" end
  local fault = serve.key_fault(text)
  if fault then return nil, ("the key in %s %s"):format(given:sub(2), fault), "invalid" end
  return text
end

local function stamp() return os.date "!%Y-%m-%dT%H:%M:%SZ" end

local function write_line(line) io.stderr:write(stamp(), " ", line, "\n") end

-- Options of ane.serve.
local function settings(args)
  local key, message, code = key_of(args.api_key)
  if args.api_key and not key then return nil, message, code end
  local out = {
    host = args.host, port = args.port, sessions = args.sessions, queue = args.queue, memory = args.memory, api_key = key, cors = args.cors,
    names = args.alias, time_limit = args.time_limit, max_body = args.max_body, connections = args.connections, grace = args.grace,
    metrics = args.metrics or false, log = not args.quiet and write_line or nil, complain = write_line,
    defaults = { temperature = args.temperature, top_p = args.top_p, top_k = args.top_k, min_p = args.min_p },
  }
  for name, path in pairs { cert = args.tls_cert, key = args.tls_key } do
    out[name], message, code = read_pem(path)
    if not out[name] then return nil, message, code end
  end
  return out
end

function M.run(args)
  local available, lacking, kind = core.http_available()
  if not available then return nil, lacking, kind end
  local opts, message, code = settings(args)
  if not opts then return nil, message, code end
  local model <close>, why = common.load(args)
  if not model then return nil, why end
  local server
  server, message, code = require("ane").serve(model, opts)
  if not server then return nil, message, code end
  local _ <close> = server
  local host = args.host or "127.0.0.1"
  local shown = host:find(":", 1, true) and "[" .. host .. "]" or host
  io.stdout:write(("%s listens on http%s://%s:%d\n"):format(server.id, opts.cert and "s" or "", shown, server.port))
  io.stdout:flush()
  if not opts.api_key and host ~= "127.0.0.1" and host ~= "localhost" and host ~= "::1" then
    common.remark(args, "anyone who reaches %s may use this server: --api-key asks for a key", host)
  end
  if not server:run { signals = "exit" } then common.remark(args, "stopped before all replies had ended") end
  return true
end

return M

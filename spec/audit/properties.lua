--- The properties of the audit, in order: {name, title, cases (in `make test`), case(d) that raises what is wrong, missing() or
-- nil: why it cannot be tried here}.
local M = {}

for _, p in ipairs {
  { "quantisers", "quantisers find again what they can say, and more bits leave smaller errors" },
  { "tokenizers", "tokenizers give any bytes back" },
  { "libraries", "tokenizers give the ids, offsets and texts of the libraries that define them" },
  { "templates", "random templates render as jinja2 renders them" },
  { "models", "random models of every architecture have the same bits however they are run, and the values of their packages" },
  { "encoders", "random encoders give the same bits however they are run" },
  { "sharder", "shards hold each node and row of a random model once, and config.json alone gives the same plan" },
  { "planner", "ranks hold each step once, within their memory, and no other cut is faster" },
  { "graphs", "random graphs have the same bits however they are run, and the values of their packages" },
} do
  local property = require("audit." .. p[1])
  M[#M + 1] = { name = p[1], title = p[2], cases = property.cases, case = property.case, missing = property.missing }
end

return M

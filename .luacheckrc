std = "lua54"
max_line_length = 140
files["spec"] = { std = "+busted" }
files["scripts/checks"] = { std = "+busted" }
files["types"] = { ignore = { "212", "241" }, max_line_length = false } -- declarations: nothing is used there

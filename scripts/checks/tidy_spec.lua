-- clang-tidy over each C file, with the flags of the tree.
local tree = require "support.tree"

describe("clang-tidy", function()
  it("reports nothing", function()
    local _, found = tree.run "ls $(echo $PATH | tr : ' ') 2>/dev/null | grep -E '^clang-tidy(-[0-9]+)?$' || true"
    if found == "" then pending "clang-tidy is not installed" end
    local ok, text = tree.run "(text=$(make --no-print-directory tidy); status=$?; echo \"$text\" | grep -v '^  [TC]'; exit $status)"
    assert.is_true(ok, text)
  end)
end)

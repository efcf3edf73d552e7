-- Arguments of calls as JSON.
local literals = require "ane.tools.literals"

local PYTHON = { arguments = "python" }

describe("arguments in Python's notation", function()
  it("become JSON", function()
    for _, row in ipairs {
      { 'city="Rom", days=[1, 2]', '{"city": "Rom", "days": [1, 2]}' },
      { "wet=True, at=None", '{"wet": true, "at": null}' },
      { [[a='it\'s', b='1\n2']], [[{"a": "it's", "b": "1\n2"}]] },
    } do
      assert.equal(row[2], literals.to_json(row[1], PYTHON))
    end
  end)

  it("may have escapes of characters in texts between single quotation marks", function()
    assert.equal('{"a": "caf\u{e9} \u{20ac}"}', literals.to_json([[a='caf\u00e9 \u20ac']], PYTHON))
    assert.equal([[{"a": "a \\u00e9 b"}]], literals.to_json([[a='a \\u00e9 b']], PYTHON))
    assert.equal([[{"a": "\n12"}]], literals.to_json([[a='\n12']], PYTHON))
    assert.equal('{"a": "\u{1f600} A \u{1f600} \u{fffd}x \u{fffd} \\\\xyz"}',
      literals.to_json([[a='\ud83d\ude00 \x41 \U0001f600 \ud83dx \U00110000 \xyz']], PYTHON))
    assert.equal([[{"a": "\\d+ C:\\dir A ' \\N{DASH}"}]], literals.to_json([[a='\d+ C:\dir \101 \' \N{DASH}']], PYTHON))
  end)
end)

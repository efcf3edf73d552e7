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

  it("are JSON with every argument, or are none", function()
    assert.equal('{"a": [1, 2], "b": {}}', literals.to_json("a=[1, 2,], b={ },", PYTHON))
    assert.equal("{}", literals.to_json(" ", PYTHON))
    local deep = ("["):rep(500) .. ("]"):rep(500)
    assert.equal('{"a": ' .. deep .. "}", literals.to_json("a=" .. deep, PYTHON))
    for _, text in ipairs { "a=1, b=0x10", "a=1, b=1_000, c=2", "a=[1,,2]", "a=[1, x]", "a={'b': 1, 2}", "a=1, 2",
      ",", "a=1,,", "a=[,]" } do
      assert.is_nil(literals.to_json(text, PYTHON), text)
    end
    assert.is_nil(literals.to_json("{a:1,b:}", { arguments = "gemma", quote = "|" }))
    assert.is_nil(literals.to_json("{a:1}{", { arguments = "gemma", quote = "|" }))
  end)

  it("may have names of any letters", function()
    assert.equal('{"caf\u{e9}": 1, "a/b": 2}', literals.to_json("caf\u{e9}=1, a/b=2", PYTHON))
    for _, name in ipairs { "caf\u{e9}", "a/b", "$x.y-z" } do assert.is_true(literals.can_name(name)) end
    for _, name in ipairs { "", "a b", "a=b", 'a"', "a:b", "(a", "a,b", "<a", "a\n" } do assert.is_false(literals.can_name(name)) end
  end)

  it("are made from objects only", function()
    assert.equal('a="x", b=True', literals.from_json('{"b": true, "a": "x"}', PYTHON))
    assert.equal("", literals.from_json("{}", PYTHON))
    for _, text in ipairs { "[1]", "1", "null", '"x"', "[]" } do
      assert.same({ nil, "arguments must be an object" }, { literals.from_json(text, PYTHON) })
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

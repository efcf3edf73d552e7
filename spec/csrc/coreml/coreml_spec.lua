-- The Core ML runtime, which no machine of the project can run: clang checks its syntax, its types, reference counting and the
-- system that each call needs, against stand-in headers (spec/support/darwin).
local tree = require "support.tree"

local clang
for _, name in ipairs { "clang", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15", "clang-14" } do
  clang = clang or tree.has(name) and name
end

-- @param system the oldest macOS that the code is built for
-- @return whether it passes, what clang says
local function check(path, system)
  if not clang then pending "clang is not installed" end
  return tree.run(clang .. " -fsyntax-only -x objective-c -std=c11 -Wall -Wextra -Wshadow -Wunguarded-availability -Werror -fobjc-arc"
    .. " --target=arm64-apple-macos" .. system .. " -ffreestanding -nostdlibinc -isystem spec/support/darwin -Icsrc " .. path)
end

-- A source with one stretch (no pattern) changed.
local function with_fault(name, old, new)
  local text = tree.read("csrc/coreml/" .. name)
  local from, to = text:find(old, 1, true)
  assert(from, name .. " holds no " .. old)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(text:sub(1, from - 1), new, text:sub(to + 1))
  file:close()
  return path
end

describe("csrc/coreml", function()
  for _, path in ipairs(tree.files("csrc/coreml", "m")) do
    it("passes clang: " .. path, function()
      for _, system in ipairs { "15", "13" } do -- 13: every call of 14 and 15 stands behind a question for the system
        local ok, text = check(path, system)
        assert.is_true(ok, text)
      end
    end)

    it("says that it was never run: " .. path, function()
      assert.matches("[Nn]ever run on hardware", tree.read(path):match "^/%*.-%*/")
    end)
  end

  for what, fault in pairs {
    ["an object that leaves reference counting"] = {
      "coreml.m", "(__bridge_retained void *)program", "(void *)program", "bridged cast",
    },
    ["a reference dropped by hand"] = {
      "coreml.m", "(void)program;", "[program release];", "ARC forbids explicit message send of 'release'",
    },
    ["a call of a newer system without a question"] = {
      "coreml_run.m", "if (@available(macOS 15.0, *)) {", "{", "only available on macOS 15",
    },
    ["a type of a newer system"] = {
      "coreml_plan.m", "API_AVAILABLE(macos(15.0)) {", "{", "only available on macOS 14",
    },
    ["a method that there is not"] = { "coreml_run.m", "[s.program.model newState]", "[s.program.model newStates]", "newStates" },
    ["an argument of another type"] = { "coreml_array.m", "initWithPixelBuffer:pixels", "initWithPixelBuffer:shape", "incompatible" },
    ["a block with other arguments"] = { "coreml.m", "^(NSURL *url, NSError *error)", "^(NSURL *url, NSString *error)", "incompatible" },
  } do
    it("would not pass with " .. what, function()
      local path = with_fault(fault[1], fault[2], fault[3])
      local ok, text = check(path, "13")
      os.remove(path)
      assert.is_false(ok)
      assert(text:find(fault[4], 1, true), text)
    end)
  end

  it("is an error where there is no Core ML", function()
    local core, package = require "ane.core", require "ane.coreml.package"
    if core.coreml_available() then pending "this machine has Core ML" end
    local path = "spec/fixtures/mlpackage/set/layer_00.mlpackage"
    local pkg <close> = assert(package.open(path, { backend = "coreml" }))
    local want = { n = 3, nil, path .. ": Core ML runs packages on macOS 15 or later only", "unsupported" }
    assert.same(want, table.pack(pkg:program()))
    assert.same(want, table.pack(pkg:state()))
    assert.has_error(function() package.open(path, { backend = "gpu" }) end)

    local ane = require "ane"
    local model, message, code = ane.load("spec/fixtures/mlpackage/set", { backend = "coreml" })
    assert.is_nil(model)
    assert.matches("layer_00%.mlpackage: Core ML runs packages on macOS 15 or later only$", message)
    assert.equal("unsupported", code)
    model, message = ane.load("spec/fixtures/gguf/gemma3-odd.gguf", { backend = "coreml" })
    assert.is_nil(model)
    assert.matches("option backend is for package sets", message)
  end)
end)

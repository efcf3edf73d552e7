-- Model folders of strangers: pickles, names that lead elsewhere, links, pipes, JSON nested without end, patterns without end, NUL
-- bytes. Nothing of it is run, followed or waited for. The formats' own specs have the malformed files of each format.
local ane = require "ane"
local command = require "support.command"
local core = require "ane.core"
local mlpackage = require "support.mlpackage"
local varint = require "support.varint"

local folder
before_each(function() folder = mlpackage.folder() end)
after_each(function() os.execute(("rm -rf '%s'"):format(folder)) end)

local function sh(text, ...) assert(os.execute(text:format(...))) end

-- A copy of a fixture.
local made = 0
local function copy(fixture)
  made = made + 1
  local path = ("%s/m%d"):format(folder, made)
  sh("cp -r 'spec/fixtures/%s' '%s'", fixture, path)
  return path
end

-- Changes a JSON file of a folder.
local function edit(path, name, change)
  local value = assert(core.json_decode(assert(core.read_file(path .. "/" .. name))))
  change(value)
  assert(core.write_file(path .. "/" .. name, core.json_encode(value)))
  return path
end

-- The first use of a model: an embedding or two tokens.
local function use(model)
  if model:info().architecture == "bert" then return model:embed { { 5, 6 } } end
  return model:generate({ 1, 5 }, { max_tokens = 2, ignore_eos = true })
end

-- The message and code of a folder that is refused, by load or by the first use.
local function fault(path, opts)
  opts = opts or {}
  opts.threads = 1
  local model, message, code = ane.load(path, opts)
  if model then
    local got
    got, message, code = use(model)
    model:close()
    assert.is_nil(got, path)
  end
  assert.is_string(message)
  assert.not_equal("internal", code, message)
  return message, code
end

-- Runs on if the folder is as it should be.
local function good(path, opts)
  opts = opts or {}
  opts.threads = 1
  local model <close> = assert(ane.load(path, opts))
  assert(use(model))
end

local LLAMA, LORA = "spec/fixtures/hf/llama", "hf/lora_llama"

describe("a pickle", function()
  -- posix.system("touch MARK"), as torch.save and pickle of protocols 2 and 4 would hold it; and without a protocol.
  local function pickles(mark)
    local code = ("cposix\nsystem\n(S'touch %s'\ntR."):format(mark)
    return {
      ["\x80\x02" .. code] = "is a Python pickle",
      ["\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03." .. code] = "is a Python pickle",
      ["\x80\x04\x95\x40\0\0\0\0\0\0\0" .. code] = "is a Python pickle", ["\x80\x05\x95" .. code] = "is a Python pickle",
      [code] = "is a text file", ["PK\3\4\0\0\8\8\0\0archive/data.pkl" .. code] = "is a zip archive (for example a PyTorch checkpoint)",
    }
  end

  it("is refused by its contents, whatever its name, by every way in", function()
    local mark = folder .. "/mark"
    for bytes, wanted in pairs(pickles(mark)) do
      for _, name in ipairs { "a.bin", "a.pt", "a.pth", "pytorch_model.bin", "a.gguf", "a.onnx", "a" } do
        local path = folder .. "/" .. name
        assert(core.write_file(path, bytes))
        for _, open in ipairs { ane.load, ane.tensors, core.open, function() return ane.load(LLAMA, { adapters = path }) end } do
          local got, message, code = open(path)
          assert.is_nil(got)
          assert.truthy(message:find(name .. ": " .. wanted, 1, true), message)
          assert.equal("unsupported", code)
        end
      end
      assert(core.write_file(folder .. "/a.safetensors", bytes))
      assert.matches("the header has %d+ bytes, the limit is", (fault(folder .. "/a.safetensors")))
      local status, _, err = command.run { "info", folder .. "/a.pt" }
      assert.equal(1, status)
      assert.truthy(err:find(wanted, 1, true), err)
    end
    assert.is_nil(core.path_kind(mark))
  end)

  it("in a folder is named, and not opened", function()
    for name, wanted in pairs {
      ["pytorch_model.bin"] = "is a folder with a PyTorch checkpoint, but must be",
        ["pytorch_model.bin.index.json"] = "PyTorch checkpoint",
      ["model.pt"] = "no model.safetensors", ["consolidated.00.pth"] = "no model.safetensors",
    } do
      local path = copy "hf/llama"
      sh("rm '%s'/*.safetensors*; mkfifo '%s/%s'", path, path, name) -- a pipe: whoever opens it waits
      local message, code = fault(path)
      assert.matches(wanted, message)
      assert.equal("unsupported", code)
      path = copy "hf/llama"
      sh("mkfifo '%s/%s'", path, name)
      good(path)
    end
    local path = copy(LORA)
    sh("mv '%s/adapter_model.safetensors' '%s/adapter_model.bin'", path, path)
    assert.matches("no adapter_model.safetensors beside it", (fault(LLAMA, { adapters = path })))
    path = copy(LORA)
    assert(core.write_file(path .. "/adapter_model.safetensors", (next(pickles(folder .. "/mark")))))
    assert.matches("the header has %d+ bytes", (fault(LLAMA, { adapters = path })))
  end)

  it("as a part of an index or a layer of modules.json is refused", function()
    local bytes = "\x80\x02cposix\nsystem\n(S'true'\ntR."
    local path = edit(copy "hf/llama", "model.safetensors.index.json", function(index)
      for name in pairs(index.weight_map) do index.weight_map[name] = "pytorch_model.bin" end
    end)
    assert(core.write_file(path .. "/pytorch_model.bin", bytes))
    assert.matches("pytorch_model.bin: the header has %d+ bytes, the limit", (fault(path)))
    path = edit(copy "hf/bert", "modules.json", function(list)
      list[#list + 1] = { idx = 3, name = "3", path = "3_Dense", type = "sentence_transformers.models.Dense" }
    end)
    sh("mkdir '%s/3_Dense'", path)
    assert(core.write_file(path .. "/3_Dense/pytorch_model.bin", bytes))
    assert(core.write_file(path .. "/3_Dense/config.json", '{"in_features":64,"out_features":64,"bias":false}'))
    assert.matches("3_Dense/model.safetensors: No such file", (fault(path)))
  end)
end)

describe("a name in a file", function()
  local OUTSIDE = { "../m", "/etc/passwd", "..", "a/../../x", "./../x", "../../../../../../etc/passwd", "x\0", "\0" }

  it("of weight_map is that of a file in the folder", function()
    for _, name in ipairs { "../m1/model-00001-of-00002.safetensors", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "x\0y" } do
      local path = edit(copy "hf/llama", "model.safetensors.index.json", function(index)
        index.weight_map[next(index.weight_map)] = name
      end)
      local message, code = fault(path)
      assert.truthy(message:find("must be the name of a file", 1, true) or message:find("NUL", 1, true), message)
      assert.equal("format", code)
    end
  end)

  it("of weight_map is no link, except to a cache of the hub", function()
    local path, part = copy "hf/llama", "model-00001-of-00002.safetensors"
    sh("mkdir -p '%s/other' '%s/models--a--b/blobs' '%s/models--a--b/other' '%s/blobs'", folder, folder, folder, folder)
    local function link(target)
      sh("mv '%s/%s' '%s'; ln -s '%s' '%s/%s'", path, part, target, target, path, part)
    end
    for _, target in ipairs { "/other/x", "/models--a--b/other/x", "/blobs/x" } do
      link(folder .. target)
      local message, code = fault(path)
      assert.truthy(message:find(part .. ": a symbolic link that leads out of the folder", 1, true), message)
      assert.equal("io", code)
      sh("rm '%s/%s'; mv '%s%s' '%s/%s'", path, part, folder, target, path, part)
    end
    link(folder .. "/models--a--b/blobs/0123") -- as hubs' libraries filled folders until 2024
    good(path)
    sh("mkdir '%s/n'; cd '%s/n'; for f in ../m%d/*; do cp -L $f ../models--a--b/blobs/; ln -s ../models--a--b/blobs/${f##*/} .; done",
      folder, folder, made) -- as its cache: all are links
    good(folder .. "/n")
    sh("mkdir '%s/l'; cd '%s/l'; ln -s ../m%d/*.json .; ln -s ../models--a--b/blobs/*.safetensors .", folder, folder, made)
    good(folder .. "/l")
  end)

  it("of a module is that of a folder in the folder", function()
    local function with(path, name)
      return edit(path, "modules.json", function(list)
        list[#list + 1] = { idx = 3, name = "3", path = name, type = "sentence_transformers.models.Dense" }
      end)
    end
    for _, name in ipairs(OUTSIDE) do
      local message, code = fault(with(copy "hf/bert", name))
      assert.matches("modules.json%[3%]: path '.*' leads out of the folder", message)
      assert.equal("format", code)
    end
    local path = with(copy "hf/bert", "3_Dense/a")
    sh("mkdir -p '%s/x/a'; ln -s '%s/x' '%s/3_Dense'", folder, folder, path)
    assert.matches("path '3_Dense/a' is a symbolic link", (fault(path)))
  end)

  it("of a package set is that of a file in the folder", function()
    for _, name in ipairs(OUTSIDE) do
      for _, change in ipairs {
        function(meta) meta.embed_bin = name end, function(meta) meta.packages[1].path = name end, function(meta) meta.tokenizer = name end,
      } do
        local message, code = fault(edit(copy "mlpackage/set", "runtime_meta.json", change))
        assert.matches("path .* leaves the folder", message)
        assert.equal("format", code)
      end
      local path = edit(copy "mlpackage/set", "runtime_meta.json", function(meta) meta.files = { [name] = { bytes = 1, sha256 = "x" } } end)
      assert.matches("path .* leaves the folder", (fault(path, { verify = true })))
    end
    for _, name in ipairs { "layer_00.mlpackage", "embed.bin" } do
      local path = copy "mlpackage/set"
      sh("mv '%s/%s' '%s/x'; ln -s '%s/x' '%s/%s'", path, name, folder, folder, path, name)
      local message = fault(path)
      assert.truthy(message:find(name .. ": ", 1, true) and message:find("a symbolic link", 1, true), message)
      sh("rm '%s/x' -r", folder)
    end
  end)

  it("of genai_config.json is that of a file in the folder", function()
    for _, name in ipairs { "../m1/model.onnx", "/etc/passwd", "..", "a/b.onnx", "a\\b", "c:x", "a\0b" } do
      local message, code = fault(edit(copy "onnx/odd", "genai_config.json", function(v) v.model.decoder.filename = name end))
      assert.truthy(message:find("must be the name of a file in the folder", 1, true) or message:find("NUL", 1, true), message)
      assert.equal("format", code)
    end
  end)

  it("of adapter_config.json is not looked at", function()
    for _, name in ipairs { "../../../etc/passwd", "/etc/passwd", "hf:owner/name", "http://127.0.0.1:1/x", "a\0b" } do
      local path = edit(copy(LORA), "adapter_config.json", function(config)
        config.base_model_name_or_path, config.revision = name, name
        config.auto_mapping = { base_model_class = name, parent_library = name }
      end)
      good(LLAMA, { adapters = path })
    end
  end)

  it("of config.json and tokenizer_config.json is not looked at", function()
    local path = edit(copy "hf/bert", "config.json", function(config)
      config._name_or_path, config.torch_dtype = "/etc/passwd\0", "../x"
    end)
    edit(path, "tokenizer_config.json", function(config)
      config.vocab_file, config.tokenizer_file, config.tokenizer_class, config.name_or_path = "/etc/passwd", "../../x", "../x", "hf:a/b"
    end)
    good(path)
  end)
end)

describe("a pipe in place of a file", function()
  -- A way of opening a folder, as a program of Lua, with the files that it reads.
  local WAYS = {
    { "hf/bert", "local m = ane.load(path, o); if m then m:embed { { 5, 6 } } end" },
    { "hf/llama", "local m = ane.load(path, o); if m then m:generate({ 1, 5 }, { max_tokens = 1 }) end" },
    { LORA, "ane.load('spec/fixtures/hf/llama', { threads = 1, adapters = path })" },
    { "mlpackage/set", "ane.load(path, o)" }, { "onnx/odd", "ane.load(path, o)", "tokenizer.json" },
    { "mlpackage/values.mlpackage", "ane.package(path)" },
    { "aimodel/apple.aimodel", "ane.package(path); local a = require 'ane.coreml.aimodel'; a.found(path); a.contents(path); a.hash(path)" },
  }

  it("is refused without waiting", function()
    local lua = arg and arg[-1] or "lua5.4"
    for _, way in ipairs(WAYS) do
      local pipe = assert(io.popen(("cd 'spec/fixtures/%s' && find . -type f ! -name 'golden*' ! -name texts.json"):format(way[1])))
      local names = { way[3] }
      for name in pipe:lines() do names[#names + 1] = name end
      pipe:close()
      assert.is_true(#names > 1)
      for _, name in ipairs(names) do
        local path = copy(way[1])
        sh("rm -f '%s/%s'; mkfifo '%s/%s'", path, name, path, name)
        local program = ("package.path, package.cpath = %q, %q\nlocal ane, path = require 'ane', %q\n"
          .. "local o = { threads = 1, context = 32 }\n%s"):format(package.path, package.cpath, path, way[2])
        assert(core.write_file(folder .. "/way.lua", program))
        local ok, _, status = os.execute(("timeout 60 %s '%s/way.lua' >'%s/out' 2>&1"):format(lua, folder, folder))
        assert.is_true(ok, ("%s of %s: status %s: %s"):format(name, way[1], status, core.read_file(folder .. "/out")))
      end
    end
  end)
end)

describe("nesting without end", function()
  local DEEP = { ("["):rep(200000), ('{"a":'):rep(200000), ("["):rep(600) .. ("]"):rep(600),
    '{"a":' .. ("["):rep(600) .. ("]"):rep(600) .. "}" }

  it("in each JSON file of a folder is refused", function()
    for fixture, names in pairs {
      ["hf/bert"] = { "config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "sentence_bert_config.json",
        "config_sentence_transformers.json", "1_Pooling/config.json" },
      ["hf/llama"] = { "config.json", "model.safetensors.index.json", "generation_config.json" },
      ["mlpackage/set"] = { "runtime_meta.json" }, ["onnx/odd"] = { "genai_config.json" },
    } do
      for _, name in ipairs(names) do
        for _, text in ipairs(DEEP) do
          local path = copy(fixture)
          assert(core.write_file(path .. "/" .. name, text))
          local since = os.clock()
          local message, code = fault(path)
          assert.is_true(os.clock() - since < 5, name)
          assert.equal("format", code, message)
          assert.truthy(message:find(name:match "[^/]*$", 1, true), message)
        end
      end
    end
    for _, text in ipairs(DEEP) do
      local path = copy(LORA)
      assert(core.write_file(path .. "/adapter_config.json", text))
      local message, code = fault(LLAMA, { adapters = path })
      assert.matches("adapter_config.json", message)
      assert.truthy(code == "format" or code == "unsupported", code)
    end
  end)

  it("of pre-tokenizers, normalizers and decoders ends in an error or a tokenizer", function()
    for _, depth in ipairs { 50, 200, 5000 } do
      for _, part in ipairs { { "pre_tokenizer", "pretokenizers", "Whitespace" }, { "normalizer", "normalizers", "NFC" },
        { "decoder", "decoders", "Fuse" }, { "post_processor", "processors", "ByteLevel" } } do
        local path = copy "hf/bert"
        local open, close = ('{"type":"Sequence","%s":['):format(part[2]), "]}"
        local text = assert(core.read_file(path .. "/tokenizer.json"))
        local value = assert(core.json_decode(text))
        value[part[1]] = "HERE"
        text = core.json_encode(value):gsub('"HERE"', function()
          return open:rep(depth) .. ('{"type":"%s"}'):format(part[3]) .. close:rep(depth)
        end)
        assert(core.write_file(path .. "/tokenizer.json", text))
        local model, message, code = ane.load(path, { threads = 1 })
        if model then
          if model.tokenizer then assert.is_table(model.tokenizer:encode "a b") end
          model:close()
        else
          assert.equal("format", code, message)
        end
      end
    end
  end)

  it("of graphs in attributes of ONNX is refused", function()
    local function bytes(field, s) return varint(field << 3 | 2) .. varint(#s) .. s end
    for _, depth in ipairs { 30, 200, 20000 } do
      -- From the inside out, in pieces: the whole, made anew for each level, would be copied gigabytes over.
      local front, back, size = {}, { bytes(2, "g") }, #bytes(2, "g")
      local function wrap(field, before, behind)
        local head = before .. varint(field << 3 | 2) .. varint(size)
        front[#front + 1], back[#back + 1], size = head, behind, #head + size + #behind
      end
      for _ = 1, depth do
        wrap(6, bytes(1, "then_branch"), varint(20 << 3) .. varint(5))
        wrap(5, bytes(1, "c") .. bytes(2, "y") .. bytes(4, "If"), "")
        wrap(1, "", bytes(2, "g"))
      end
      for i = 1, #front // 2 do front[i], front[#front + 1 - i] = front[#front + 1 - i], front[i] end
      local graph = table.concat(front) .. table.concat(back)
      local path = folder .. "/model.onnx"
      assert(core.write_file(path, "\8\10" .. bytes(7, graph) .. bytes(8, "\16\21")))
      for _, open in ipairs { ane.load, core.open } do
        local source, message, code = open(path)
        assert.is_nil(source)
        assert.truthy(code == "format" or code == "unsupported", message)
        if depth > 100 then assert.matches("nested deeper than 100", message) end
      end
    end
  end)
end)

describe("a pattern of adapter_config.json", function()
  it("takes time in proportion to the names", function()
    for _, key in ipairs { (".*"):rep(60) .. "x", (".*.+"):rep(60) .. "x", "(a+)+$", "(.*)*x", ("(.|.)"):rep(40),
      ("(a?){60}"):rep(20) .. "x", (".{1,9}"):rep(30), ("("):rep(60000), ("a"):rep(60000), "a\0b", "x{99999999}", "(?R)", "\\" } do
      for _, field in ipairs { "rank_pattern", "alpha_pattern" } do
        local path = edit(copy(LORA), "adapter_config.json", function(config) config[field] = { [key] = 3 } end)
        local since = os.clock()
        local model, message, code = ane.load(LLAMA, { threads = 1, adapters = path })
        assert.is_true(os.clock() - since < 10, key:sub(1, 40))
        if model then model:close()
        else
          assert.matches("adapter_", message)
          assert.truthy(code == "unsupported" or code == "range" or code == "shape", message)
        end
      end
    end
  end)
end)

describe("a token with a NUL", function()
  it("is found in a text and given back", function()
    for _, added in ipairs { "[X\0Y]", "\0", "\0\0" } do
      local path = edit(copy "hf/bert", "tokenizer.json", function(t)
        t.added_tokens[#t.added_tokens + 1] = { id = 267, content = added, single_word = false, lstrip = false, rstrip = false,
          normalized = false, special = false }
      end)
      local model <close> = assert(ane.load(path, { threads = 1 }))
      local ids = assert(model.tokenizer:encode("a" .. added .. "b"))
      local n = 0
      for _, id in ipairs(ids) do n = n + (id == 267 and 1 or 0) end
      assert.equal(1, n)
      assert.truthy(model.tokenizer:decode({ 267 }):find(added, 1, true))
    end
  end)

  it("is another one than the token without it", function()
    local path = edit(copy "hf/bert", "tokenizer.json", function(t) t.model.vocab["[PAD]\0"] = 267 end)
    local model <close> = assert(ane.load(path, { threads = 1 }))
    local other <close> = assert(ane.load("spec/fixtures/hf/bert", { threads = 1 }))
    for _, text in ipairs { "a [PAD] b", "a [PAD]\0 b", "\0" } do
      assert.same(other.tokenizer:encode(text), model.tokenizer:encode(text))
    end
  end)

  it("as the unknown token or in a pattern makes an error", function()
    local path = edit(copy "hf/bert", "tokenizer.json", function(t) t.model.unk_token = "[UNK]\0" end)
    local model <close> = assert(ane.load(path, { threads = 1 }))
    local ids, message, code = model.tokenizer:encode "\u{1F600}"
    assert.is_nil(ids)
    assert.matches("no unknown token", message)
    assert.equal("format", code)
    path = edit(copy "hf/bert", "tokenizer.json", function(t)
      t.pre_tokenizer = { type = "Split", pattern = { Regex = "a\0b" }, behavior = "Isolated", invert = false }
    end)
    local bare <close> = assert(ane.load(path, { threads = 1 }))
    ids, message = bare:embed "a"
    assert.is_nil(ids)
    assert.is_string(message)
  end)
end)

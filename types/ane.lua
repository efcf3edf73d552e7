---@meta ane
-- Types of the public API, for editors that use the Lua language server. Nothing here runs.

---@class ane.lib
---@field _VERSION string
---@field null lightuserdata JSON null, where a value is needed for it
---@field grammar ane.grammar_lib grammars for constrained replies
---@field tools ane.tools_lib calls of tools in replies
---@field ranks ane.ranks_lib ranks of an MPI program, over which the layers of a model lie
local ane = {}

---@alias ane.kv "fp16"|"fp32"|"int16"|"int8"
---@alias ane.transform "none"|"rotate"

---@alias ane.code "memory"|"io"|"format"|"unsupported"|"invalid"|"shape"|"notfound"|"range"|"state"|"stopped"|"template"
---@alias ane.stop_reason "eos"|"grammar"|"tool_calls"|"stop"|"length"|"context"|"repeat"|"stopped"|"closed"|"time"
---@alias ane.progress fun(stage: string, done: integer, total: integer)
---@alias ane.message { role: string, content: string, [string]: any }
---@alias ane.prompt string|integer[]|ane.message[]

---@alias ane.weights "file"|"int8"|"int8-channel"|"int8-block"|"int4-block"|"int4-block64"|"lut4"|"lut4-g8"|"lut4-g16"|"lut4-g32"|"lut2"|"lut2-g8"|"lut2-g16"|"lut2-g32"|"lut3"|"lut3-g8"|"lut3-g16"|"lut3-g32"|"lut6"|"lut6-g8"|"lut6-g16"|"lut6-g32"|"lut8"|"fp16"|"bf16"|"fp32"|"q8_0"|"q6_k"|"q5_1"|"q5_0"|"q5_k"|"q4_1"|"q4_0"|"q4_k"|"iq4_nl"|"iq4_xs"|"mxfp4"|"q3_k"|"q2_k"

---@class ane.load_options
---@field context? integer most tokens of a session; default: least of the model's own, 4096 (32768 where it embeds or reranks texts), what fits half of free memory
---@field threads? integer default: the physical cores
---@field weights? ane.weights default: "file", as stored
---@field mixed? table<string, ane.weights>|{ [1]: string, [2]: ane.weights }[] other weights by pattern of the tensor's name
---@field importance? table<string, ane.tensor|number[]> a weight for each column, by tensor name, for int4-block and lut4
---@field activations? "int8"|"fp32" int8 (default) is fast, fp32 the reference
---@field kv? ane.kv default: fp16, with fp32 activations fp32
---@field head? "auto"|"pruned"|"full" pruned: greedy decoding skips rows of an 8-bit LM head that cannot win; the same tokens. auto (default): pruned from 48 MB on
---@field engine? "recipe"|"graph" how an ONNX model or a Core ML package set runs: by a recipe, or op by op; default: recipe where one matches, else graph
---@field recipe? table|string a recipe or the path of one, for an architecture that is not known
---@field precision? "fp32"|"fp16" of Core ML package sets
---@field backend? "cpu"|"coreml" what runs Core ML package sets; coreml: on macOS 15, never run on hardware
---@field verify? boolean true: hash all files of a Core ML package set before it is opened; default: sizes only
---@field isa? string caps the kernels; default: ANE_ISA of the environment, else the best of the machine
---@field soft_experts? boolean true: all experts of a mixture run, with masked weights; default: the chosen ones
---@field adapters? string|ane.adapter_choice[] LoRA adapters of all sessions that are not given others
---@field ranks? boolean|ane.ranks_options the layers lie on all ranks of an MPI program, of which this is rank 0 (docs/scale.md)
---@field transform? ane.transform "rotate" folds rotations into the weights, which are then fp32 where `weights` names no other type; default "none"
---@field merge? boolean true: the adapters are merged into the weights, which are then fp32 where `weights` names no other type
---@field progress? ane.progress|boolean true: a bar where standard error is a terminal

---@class ane.ranks_options
---@field cut? integer[] the layers that ranks 1, 2, ... begin with; default: chosen by the speed and the memory of the ranks
---@field fp16? boolean activations go from rank to rank as fp16: half the bytes, other bits. Default false
---@field parallel? "pipeline"|"tensor" what the ranks divide: layers (default), or the rows of each matrix, for fast links; the other fields are for pipelines
---@field tail? number weight of what follows the last layer's attention in the choice of the cut, without a head that is divided: 0 where prompts are long, 1 where replies are; default 0.5

---@class ane.ranks_lib
---@field join fun(opts?: { timeout?: number }): integer?, integer|string, ane.code? joins the processes that mpirun has started; gives the number of this one from 0, and of all. timeout: seconds after which a silent rank counts as lost; default 300
---@field work fun(opts?: { threads?: integer }): boolean?, string?, ane.code? on all ranks but 0: holds its layers and computes, until rank 0 leaves
---@field size fun(): integer number of ranks; 1 where none were joined
---@field leave fun() on rank 0, at its end: ends the work of the others

---@class ane.grammar_options
---@field strict? boolean false: unknown annotations, such as a format's name, are passed over; default: they are errors
---@field blanks? integer most blanks wherever JSON allows them; default: one space behind commas and colons, or none

---@class ane.grammar
---@field kind string
---@field matches fun(self: ane.grammar, text: string): boolean?, string?, ane.code? whether a whole text fulfils the grammar

---@class ane.grammar_lib
---@field json_schema fun(schema: string|table|boolean, opts?: ane.grammar_options): ane.grammar?, string?, ane.code? JSON that fulfils a JSON Schema
---@field json fun(opts?: { blanks?: integer }): ane.grammar?, string?, ane.code? any JSON text
---@field parts fun(list: table, opts?: ane.grammar_options): ane.grammar?, string?, ane.code? literals, patterns and JSON values one behind the other: edges {from, to, kind, text} between places, with the field ends
---@field regex fun(pattern: string): ane.grammar?, string?, ane.code? texts that an ECMA-262 pattern matches from end to end
---@field choice fun(list: string[]): ane.grammar?, string?, ane.code? one of the strings
---@field gbnf fun(text: string): ane.grammar?, string?, ane.code? texts of a grammar in llama.cpp's EBNF; the first rule is root
---@field lark fun(text: string): ane.grammar?, string?, ane.code? texts of a grammar in Lark's form, of its rule `start`
---@field rules fun(pattern: ane.pattern|table): ane.grammar?, string?, ane.code? texts of a pattern, or of a table of rules whose first entry names the first one
---@field P fun(v: string|integer|ane.pattern|table): ane.pattern a text, n characters, or a table of rules
---@field S fun(set: string): ane.pattern one of these characters
---@field R fun(...: string): ane.pattern one character of the ranges
---@field V fun(name: string): ane.pattern the rule of that name
---@field is fun(value: any): boolean

---@class ane.pattern joins by * (one behind the other), + (either), ^ n (n or more; at most -n)

--- Loads a model. Its files are mapped while it is open. Where another program truncates one, the system ends this process with SIGBUS
--- when the missing part is read; replacing a file by renaming does no harm.
---@param path string a GGUF file, or the first of a split one; a folder with safetensors and config.json; an ONNX file or bundle
---@param opts? ane.load_options
---@return ane.model? model
---@return string? message
---@return ane.code? code
function ane.load(path, opts) end

--- Fetches a model of the Hugging Face hub into the hub's cache; nothing is fetched that is there.
---@param name string "hf:OWNER/NAME", with ":Q4_K_M" or ":FILE" for one of several models, "@REVISION" for another than main
---@param opts? { progress?: fun(name: string, done: integer, total: integer), offline?: boolean, fallback?: boolean } fallback: take what the cache has where the hub cannot be reached
---@return string? path for load
---@return { repo: string, commit: string?, files: string[]?, fetched: integer, bytes: integer?, cached: boolean }|string|nil info or the message of what failed
---@return ane.code? code
function ane.pull(name, opts) end

--- Makes a recipe known, for architectures that ane.models has no file for.
---@param recipe { architectures: string[], build: (fun(b: ane.builder, cfg: table): any), version?: integer, ignore?: string[], config?: table }
function ane.register(recipe) end

---Proposes the next tokens of a text from what it has said before.
---@param ids integer[]
---@param corpus? integer[]
---@return { push: fun(self, id: integer), draft: fun(self, most: integer): integer[]?, integer? }
function ane.drafter(ids, corpus) end

--- Makes a tensor of fp32 values.
---@param values number|table|string a number, lists in lists, or a string of little-endian float32
---@param shape? integer[]
---@return ane.tensor
function ane.tensor(values, shape) end

--- Compares a model with a golden, layer by layer.
---@param model ane.model activations = "fp32" is what goldens are made for
---@param golden string path of a golden.json, with its tensors in the safetensors file beside it
---@param opts? table prompt, hints
---@return table? report prints as a table
---@return string? message
---@return ane.code? code
function ane.check(model, golden, opts) end

--- What calibration reads: a text, token ids, a list of both, texts that the model writes itself, or chats through its template.
---@alias ane.calibration_input string|integer[]|table[]|{ [integer]: string, samples: integer }|{ chats: (ane.message[]|{ messages: ane.message[], tools?: table[] })[] }

--- Collects the mean square of each weight's input columns on a text: the importance (imatrix) that load and export take.
---@param model ane.model
---@param input ane.calibration_input
---@param opts? { tokens?: integer, chunk?: integer, progress?: ane.progress }
---@return table<string, ane.tensor>? importance by tensor name
---@return string? message
---@return ane.code? code
function ane.calibrate(model, input, opts) end

---@class ane.sensitivity_choice
---@field type string
---@field bytes number of the weight in this type
---@field error number its squared error as a share of its squares
---@field kl number nats that it is expected to cost

---@class ane.sensitivity_weight
---@field name string
---@field count integer elements
---@field stored string type in the file
---@field choices ane.sensitivity_choice[] the smallest first

---@class ane.sensitivity_report
---@field weights ane.sensitivity_weight[]
---@field rest integer bytes of the tensors that keep their types
---@field kept string[][] list of {name, type} of those that are no vectors
---@field count integer elements of all weights
---@field tokens integer that were read for each weight
local sensitivity_report = {}

--- Chooses types under a budget: the bytes that save the most divergence first.
---@param opts { size?: integer, bits?: number } bytes of all tensors, or bits of a weight on the mean
---@return string[][]? mixed list of {name, type}, for quantise
---@return table|string chosen bytes, bits and expected kl; or message
---@return ane.code? code
function sensitivity_report:mixed(opts) end

--- Measures what each weight costs when it alone is rounded: the KL divergence of the predictions.
---@param model ane.model
---@param input ane.calibration_input
---@param opts? { types?: string[], tokens?: integer, chunk?: integer, threads?: integer, progress?: ane.progress }
---@return ane.sensitivity_report?
---@return string? message
---@return ane.code? code
function ane.sensitivity(model, input, opts) end

---@class ane.gate_cosines
---@field cosine number mean over tokens
---@field least number
---@field least_at integer token, from 1
---@field max_abs number
---@field count integer

---@class ane.gate_report
---@field ok boolean cosines of hidden states and logits are 0.97 or more
---@field warning boolean one of them is below 0.999
---@field verdict "ok"|"warning"|"fail"
---@field cosine number the lower one
---@field hidden? ane.gate_cosines nil where a model shows none
---@field logits ane.gate_cosines
---@field argmax { agree: integer, of: integer, clear_agree: integer, clear: integer }
---@field tokens integer
---@field runs integer

--- Holds a model to the one that it was made of.
---@param a ane.model
---@param b ane.model loaded with other weights, or a package set
---@param input string|integer[]|table[] a text, token ids, or a list of both
---@param opts? { chunk?: integer, tokens?: integer, hidden?: fun(model: ane.model, ids: integer[]): ane.tensor?, progress?: ane.progress }
---@return ane.gate_report?
---@return string? message
---@return ane.code? code
function ane.gate(a, b, input, opts) end

--- Serves a model over HTTP: OpenAI's API.
---@param model ane.model
---@param opts? ane.serve_options
---@return ane.server? server it answers in run() or turn()
---@return string? message
---@return ane.code? code
function ane.serve(model, opts) end

--- Answers the rows of a file, folder or pipe: one line of JSON each (docs/batch.md).
---@param model ane.model
---@param opts ane.batch_options
---@return ane.batch_summary?
---@return string? message
---@return ane.code? code
function ane.batch(model, opts) end

--- Reads tensors: of a .npy file one, of a safetensors or GGUF file a table by name.
---@param path string
---@return ane.tensor|table<string, ane.tensor>|nil tensors
---@return string? message
---@return ane.code? code
function ane.tensors(path) end

--- Opens a Core ML package, or a Core AI asset.
---@param path string folder of the .mlpackage or .aimodel
---@param opts? { precision?: "fp32"|"fp16", threads?: integer, isa?: string, progress?: ane.progress, backend?: "cpu"|"coreml", anywhere?: boolean }
---@return ane.package? package prints as a summary
---@return string? message
---@return ane.code? code
function ane.package(path, opts) end

--- The machine: version, isa (the level in use), isa_list, cpu, cores, memory.
---@return { version: string, isa: string, isa_list: string[], cpu: string, cores: integer, memory: table }? info
---@return string? message
---@return ane.code? code
function ane.info() end

---@class ane.feature
---@field name string
---@field dtype string
---@field shape integer[] -1: not known before the run
---@field optional boolean
---@field default_value? number what an optional input is filled with
---@field default? integer[] the default of a flexible shape
---@field range? integer[][] {low, high} of each dimension; high nil: no bound
---@field enumerated? integer[][] all shapes

---@class ane.package_function
---@field name string
---@field opset string
---@field inputs ane.feature[]
---@field outputs ane.feature[]
---@field states ane.feature[]
---@field ops table<string, integer>
---@field n_ops integer

---@class ane.package_info
---@field path string
---@field kind "mlpackage"|"aimodel"
---@field version integer of the specification
---@field default_function string
---@field functions ane.package_function[]
---@field weights { number: integer, bytes: integer, files: integer }
---@field metadata { description: string, version: string, author: string, license: string, user: table<string, string> }

---@class ane.package
local package_ = {}

--- What the package holds: functions with inputs, outputs and states, weights, metadata.
---@return ane.package_info
function package_:info() end

--- The description and the program as text, an operation a line.
---@return string? text
---@return string? message
---@return ane.code? code
function package_:dump() end

--- The bytes of a constant.
---@param output string name of the constant's output; with `parameter` of any operation's
---@param parameter? string an attribute, or a parameter that is held in place; default: the constant itself
---@param func? string default: the default function
---@return string|string[]|nil bytes row-major, little-endian; strings as texts
---@return string? dtype or message
---@return integer[]|ane.code|nil shape or code
function package_:value(output, parameter, func) end

--- Writes the package once more; one that is there is replaced in one step.
---@param path string
---@return true? ok
---@return string? message
---@return ane.code? code
function package_:rewrite(path) end

--- Runs a function.
---@param inputs table<string, ane.tensor|number|table> tensors, numbers, lists in lists, or {shape, data}
---@param state? ane.package_state changed by the call; nil: all zeros, for this call only
---@param opts? { function?: string }
---@return table<string, ane.tensor|table>? outputs tensors; of other types than floats lists with shape and dtype
---@return string? message
---@return ane.code? code
function package_:predict(inputs, state, opts) end

--- States, zeros.
---@param name? string a function: the set serves it and the functions whose states have the same shapes; nil: all functions, if their states agree
---@return ane.package_state? state
---@return string? message
---@return ane.code? code
function package_:state(name) end

--- Frees the package. Closing twice is fine.
function package_:close() end

---@class ane.package_state
local package_state = {}

--- Names of the states.
---@return string[]
function package_state:names() end

--- The value of a state.
---@param name string
---@return ane.tensor copy
function package_state:get(name) end

--- Replaces the value of a state.
---@param name string
---@param tensor ane.tensor of the state's shape
function package_state:set(name, tensor) end

--- Sets all states to zero.
function package_state:reset() end

--- A copy that later calls do not change.
---@return ane.package_state
function package_state:copy() end

--- Frees the states.
function package_state:close() end

---@class ane.model
---@field tokenizer ane.tokenizer?
---@field path string
---@field kv ane.kv
---@field load_s number seconds
---@field context integer tokens
---@field vocab integer
---@field architecture string
---@field config table
---@field engine "recipe"|"graph"|"packages" "graph": an ONNX graph, run op by op; "packages": a package set, run op by op
---@field engine_reason string? why the graph or the packages run op by op
---@field warnings string[] what load has to say, empty where nothing: a context that is longer than the model's own
---@field closed boolean
local model = {}

--- A tool, as OpenAI's clients describe it.
---@class ane.tool
---@field type "function"
---@field function { name: string, description?: string, parameters?: table } parameters: JSON Schema of the arguments, an object

--- A call of a tool, in results and in messages.
---@class ane.tool_call
---@field id string
---@field type "function"
---@field function { name: string, arguments: string } arguments: JSON text that fulfils the tool's schema

--- A call begins with id and name; its arguments follow in parts.
---@class ane.tool_delta
---@field index integer of the call, from 1
---@field id? string
---@field name? string
---@field arguments? string the next part of the JSON text

---@class ane.tools_lib
---@field parse fun(text: string, opts: { form?: string, template?: string, tools?: ane.tool[]|string }): string?, ane.tool_call[]|string, ane.code? the text of a reply that is no call, and its calls
---@field arguments fun(call: ane.tool_call): table?, string?, ane.code? the arguments of a call as a table

---@class ane.template_options
---@field tools? ane.tool[]|string what the reply may call, a list or its JSON text (which keeps the order of keys for the template)
---@field tool_choice? "auto"|"none"|"required"|string|table text or calls (default), no calls, calls, or one call of the tool of this name
---@field parallel_tool_calls? boolean false: one call at most
---@field tool_form? string the form of calls, where the template does not tell it
---@field on_tool_call? fun(delta: ane.tool_delta) told of each call as it comes
---@field documents? table[]
---@field template? string name of one of the model's templates
---@field template_vars? table<string, any>
---@field special_in_messages? boolean control tokens spelled in the messages are those tokens

---@class ane.generate_options: ane.template_options
---@field max_tokens? integer
---@field temperature? number 0 (default) is greedy
---@field top_k? integer
---@field top_p? number
---@field min_p? number
---@field repeat_penalty? number
---@field repeat_window? integer tokens the penalty falls on; 64, 0: all
---@field logit_bias? table<integer, number>
---@field seed? integer
---@field stop? string|string[]
---@field stop_ngram? integer|{ size: integer, times?: integer }
---@field eos? integer[]
---@field ignore_eos? boolean
---@field logprobs? integer
---@field speculate? boolean|{ max?: integer, corpus?: string|integer[] }
---@field logits_processor? fun(logits: ane.tensor, ids: integer[]): ane.tensor?
---@field grammar? ane.grammar the reply is a text of it
---@field skip_special? boolean
---@field special? boolean control tokens spelled in the prompt are those tokens
---@field adapters? string|ane.adapter_choice[] of this reply, in place of the model's own; {}: none
---@field details? boolean generate gives a table
---@field session? ane.session of this model: the reply is computed in it, and it holds the reply afterwards (model:generate and model:stream)
---@field progress? ane.progress

--- Callbacks (`progress`, `logits_processor`) run between C calls: they may yield, and what they raise ends the call. A reply ends early
--- by pieces:stop(), model:stop(), by leaving the loop, or by what a callback raises; what was computed stays cached.
---@class ane.result
---@field text string?
---@field ids integer[]
---@field prompt_ids integer[]
---@field stop ane.stop_reason
---@field stop_string? string
---@field grammar_complete? boolean with a grammar or tools: whether the reply is a whole text of it, with all its calls
---@field tool_calls? ane.tool_call[] the calls that are whole; stop is "tool_calls" where the reply ended with one
---@field tool_call_cut? ane.tool_call the last call, where the reply was cut off in it
---@field eos_id? integer
---@field dropped? integer messages that a chat has forgotten to make room (overflow = "drop")
---@field seed integer
---@field logprobs? { id: integer, logprob: number, top: number[][] }[]
---@field timings { load_s: number, prefill_s: number, decode_s: number, first_token_s: number, prompt_tokens: integer, cached_tokens: integer, tokens: integer, head?: { searched: integer, share: number }, speculation?: { calls: integer, drafted: integer, accepted: integer, speedup: number } }

--- Continues a prompt. A reply without max_tokens goes on until an end token or the end of the context; `stop` of the details says which.
---
--- With option session the session holds prompt and reply afterwards; what it held before is kept as far as it is a start of the prompt.
--- ```lua
--- local s <close> = assert(model:session())
--- print(model:generate("Once upon", { session = s, max_tokens = 20 }))
--- print(s:generate { max_tokens = 20 }) -- goes on
--- ```
---@param prompt ane.prompt
---@param opts? ane.generate_options
---@return string|integer[]|ane.result|nil reply
---@return string? message
---@return ane.code? code
function model:generate(prompt, opts) end

--- Continues a prompt piece by piece: `for piece in model:stream("Once") do io.write(piece) end`. A reply may take turns with others, in
--- a coroutine or in a plain loop:
--- ```lua
--- local a, b = model:stream("One", { max_tokens = 9 }), model:stream("Two", { max_tokens = 9 })
--- repeat
---   local x, y = a:next(), b:next()
---   io.write(x or "", y or "")
--- until not x and not y
--- ```
---@param prompt ane.prompt
---@param opts? ane.generate_options
---@return ane.pieces? pieces
---@return string? message
---@return ane.code? code
function model:stream(prompt, opts) end

---@class ane.say_options: ane.generate_options
---@field overflow? "error"|"drop" where the messages do not fit the context: refuse (default), or forget the oldest turns. Leading messages of the system and the last turn stay; what is left fills three quarters of the context; `dropped` of the result counts the messages

---@class ane.chat_options: ane.say_options
---@field system? string
---@field messages? ane.message[] a conversation to go on with
---@field restore? string path of a file that chat:save wrote; brings the messages and the session
---@field adapters? string|ane.adapter_choice[] of the conversation

--- Opens a conversation. The options are the defaults of each reply.
--- ```lua
--- local chat <close> = assert(model:chat { system = "Be brief.", overflow = "drop", max_tokens = 20 })
--- print(chat:say "Who are you?")
--- assert(chat:save "talk.ane")
--- local again <close> = assert(model:chat { restore = "talk.ane" })
--- ```
---@param opts? ane.chat_options
---@return ane.chat? chat
---@return string? message
---@return ane.code? code
function model:chat(opts) end

---@class ane.pool_options
---@field sessions? integer replies that are computed at once, default 32; the others wait
---@field step_tokens? integer most tokens of a step, default 256
---@field memory? integer|string bytes of cached state of all sessions, "2G"; where it runs out the newest reply is computed again later
---@field prefix_memory? integer|string bytes of the prefixes that are kept of replies that have ended, within memory; default 1G, at most a quarter of free memory
---@field context? integer of each session
---@field kv? ane.kv
---@field on_work? fun(pool: ane.pool) called when an idle pool gets a request

--- Opens a pool: many replies at once, computed in shared steps. Each has the bits that it has alone.
---
--- ```lua
--- local pool <close> = assert(model:pool { sessions = 8 })
--- local one, two = pool:add("One", { max_tokens = 8 }), pool:add("Two", { max_tokens = 8 })
--- pool:run()
--- print(one.result.text, two.result.text)
--- ```
---@param opts? ane.pool_options
---@return ane.pool? pool
---@return string? message
---@return ane.code? code
function model:pool(opts) end

--- Continues many prompts in a pool. Each reply is the one that generate gives for its prompt.
---@param prompts ane.prompt[]
---@param opts? table those of generate, for all; sessions, step_tokens, memory, context, kv of the pool; on_reply = function(i, result)
---@return table? replies what generate gives for each; false where a prompt failed
---@return table<integer, { [1]: string, [2]: ane.code? }>|string|nil failed messages and codes by place; or the message
---@return ane.code? code
function model:generate_many(prompts, opts) end

--- Loads a LoRA adapter, for `adapters` of session, generate, chat and a pool's requests. The weights stay as they are, so sessions with
--- different adapters share them. A path in `adapters` loads it as well.
---@param path string a PEFT folder, or a GGUF adapter
---@param opts? { scale?: number } factor of all that the adapter adds; default 1, 0: nothing
---@return ane.adapter? adapter
---@return string? message names the tensor where it is for another base
---@return ane.code? code
function model:adapter(path, opts) end

--- Opens a session: the cached past of one sequence.
---@param opts? { context?: integer, kv?: ane.kv, adapters?: string|ane.adapter_choice[] }
---@return ane.session? session
---@return string? message
---@return ane.code? code
function model:session(opts) end

--- Names of all intermediate values, in the order in which they are computed.
---@return { name: string, channels: integer }[]? values
---@return string? message
---@return ane.code? code
function model:values() end

--- Intermediate values of a run from position 0.
---@param input ane.prompt
---@param patterns? string|string[] globs over the names of values()
---@return table<string, ane.tensor>? values each [tokens, channels]
---@return string? message
---@return ane.code? code
function model:trace(input, patterns) end

---@class ane.weight_row
---@field name string
---@field rows integer
---@field cols integer
---@field from string type as stored
---@field weights string as held
---@field form string layout of the kernel
---@field activations string that it meets
---@field bytes integer
---@field exact boolean
---@field max_abs number
---@field rms number
---@field snr_db? number nil where exact

--- What each weight is held as, and what that left of it.
---@return ane.weight_row[]
function model:weights_report() end

---@alias ane.gguf_type "fp32"|"fp16"|"bf16"|"q8_0"|"q6_k"|"q5_1"|"q5_0"|"q5_k"|"q4_1"|"q4_0"|"q4_k"|"iq4_nl"|"iq4_xs"|"mxfp4"|"q3_k"|"q2_k"

---@alias ane.weight_scheme "int8"|"int8-channel"|"int8-block"|"int4-block"|"int4-block64"|"lut4"|"lut4-g8"|"lut4-g16"|"lut4-g32"|"lut2"|"lut2-g8"|"lut2-g16"|"lut2-g32"|"lut3"|"lut3-g8"|"lut3-g16"|"lut3-g32"|"lut6"|"lut6-g8"|"lut6-g16"|"lut6-g32"|"lut8"

---@class ane.quantise_options
---@field weights ane.gguf_type|ane.weight_scheme the file stores the values of a scheme in a type that represents them exactly (int4-block: q4_0)
---@field method? "rtn"|"gptq" rtn (default): rounds each number to the nearest; gptq: later columns compensate the errors of earlier ones, on the text of `calibrate`
---@field calibrate? ane.calibration_input
---@field tokens? integer maximum tokens of the text; default 16384
---@field transform? "none"|"rotate" other weights before they are rounded; default that of the model. The model is loaded again with it, for this call
---@field inputs? "rounded"|"source" of gptq: the inputs that a weight is rounded for: those that it gets when the weights before it are rounded (default), or those that the source gives
---@field stages? integer earlier form of inputs: 1 is "source", more is "rounded"
---@field memory? integer bytes that the statistics of gptq may use at a time; default 2 GiB. With less memory the text is processed several times
---@field mixed? table pattern to type, or a list of {pattern, type}
---@field resume? boolean keep notes beside the file (`OUT.journal`, `OUT.part`), and go on from those of an earlier run of the same model, text and options that was stopped; default false
---@field fallback? ane.gguf_type for weights whose rows are not whole blocks; default the nearest type of similar size (q4_k: "q5_0")
---@field importance? table<string, ane.tensor|number[]> a weight for each column, by tensor name
---@field threads? integer
---@field progress? fun(stage: string, done: integer, total: integer)

--- Writes the model as GGUF with its weights in another type.
---@param out string path of the file; it appears when it is complete
---@param opts ane.quantise_options
---@return table? report what each tensor became, its error and bytes; kept: tensors that a stopped run had rounded
---@return string? message
---@return ane.code? code
function model:quantise(out, opts) end

---@class ane.plan_options
---@field weights? string int8 (default), int8-channel, int8-block, int4-block, int4-block64, lut4, lut4-g8, lut4-g16, lut4-g32, the same of lut2, lut3 and lut6, lut8, fp16
---@field mixed? table<string, string> glob over weights' names to scheme
---@field context? integer
---@field max_t? integer tokens of a call at most; default 4, or the context if that is less
---@field fixed_t? integer[] fixed numbers of tokens, each with packages of its own, or functions
---@field tiers? integer[] smaller contexts, each with packages of its own, or functions
---@field functions? "one"|"many" many: a function for each T and context in the same packages, on one copy of the weights
---@field chip? string "M1" .. "M4 Max"
---@field target? "coreml"|"coreai"|"coreai-sharded"|"both"|integer packages (default), one Core AI asset, a set of assets, both (plans only); or bytes of a package planned for
---@field size_limit? integer bytes above which a layer is partitioned: at its experts, or between its blocks
---@field law? integer the old name of size_limit
---@field rows? integer of a slice of the head
---@field slices? integer of the head
---@field layers? integer most in a package
---@field experts? "auto"|"whole"|"halves"|"each"
---@field layout? "ct1"|"c1t"
---@field norm? "doubled"|"fp32"
---@field rope? "inputs"|"constants"

--- Plans the model for the Neural Engine; the plan prints as a table.
---@param opts? ane.plan_options
---@return table? plan packages, residency, laws (residency rules that hold), bytes, largest, state_bytes, embed_bytes, reported; dot(), svg()
---@return string? message
---@return ane.code? code
function model:plan(opts) end

---@class ane.export_options : ane.plan_options
---@field argmax? boolean the head gives the best row and its value instead of logits
---@field importance? table<string, ane.tensor> a weight for the error of each column, by weight's name
---@field method? "rtn"|"gptq" gptq: roundings compensate each other's errors on the text of `calibrate`
---@field inputs? "rounded"|"source" of gptq: as for quantise
---@field calibrate? ane.calibration_input
---@field tokens? integer most tokens that are read; default 16384
---@field memory? integer bytes that the statistics of gptq may take at a time; default 2 GiB
---@field threads? integer
---@field progress? boolean|fun(stage: string, done: integer, total: integer)

--- Writes the model as Core ML packages for the Neural Engine; with target = "coreai", as one Core AI asset in a bundle; with
--- "coreai-sharded", as a set of assets.
---@param out string folder; it appears, or is replaced, when it is complete
---@param opts? ane.export_options
---@return table? report ok, path, shards, weights, kept, seconds; of an asset also functions (name, inputs, outputs, states) and warnings
---@return string? message
---@return ane.code? code
function model:export(out, opts) end

---@class ane.span
---@field label string
---@field start integer first byte, as in string.sub; nil where ids were classified
---@field stop integer last byte
---@field text string
---@field score number mean probability of its tokens' labels
---@field first integer first token, from 1
---@field last integer
---@field replacement? string of redact

---@class ane.embed_options
---@field prompt? string name of one of the model's prompts, which stands before each text
---@field prefix? string this text stands before each text instead
---@field dims? integer the first so many numbers only
---@field normalise? boolean vectors of length 1; default what the model says
---@field max_length? integer texts are cut to so many tokens; default the model's length. A text longer than the context is an error
---@field special? boolean control tokens spelled in a text are those tokens, as in sentence-transformers
---@field details? boolean
---@field progress? ane.progress called after each run; it may yield

--- Embeddings of texts, by an embedding model.
---@param input string|integer[]|string[]|integer[][]
---@param opts? ane.embed_options
---@return ane.tensor|table|nil embeddings [dims], of a list [n, dims]; with details a table: embeddings [n, dims], dim, tokens, truncated
---@return string? message
---@return ane.code? code
function model:embed(input, opts) end

--- How alike texts or embeddings are, by the measure that the model names; cosine where it names none.
---@param a string|string[]|ane.tensor
---@param b string|string[]|ane.tensor
---@param opts? ane.embed_options for texts
---@return number|ane.tensor|nil likeness where a or b is a list a tensor [#a, #b]
---@return string? message
---@return ane.code? code
function model:similarity(a, b, opts) end

--- Scores documents for a query, by a cross-encoder, a decoder with a classifier or Qwen3-Reranker.
---@param query string? nil: the documents are lists of token ids, query and document as the model takes them
---@param documents string[]|integer[][]
---@param opts? { instruction?: string, max_length?: integer, special?: boolean, raw?: boolean, details?: boolean, progress?: ane.progress }
---@return number[]|number[][]|table|nil scores lists where the classifier has several labels; with details a table: scores, order, tokens, truncated
---@return integer[]|string|nil order places of the documents, best first, nil where there are several labels; or the message
---@return ane.code? code
function model:rerank(query, documents, opts) end

--- Finds the spans that a token classifier labels.
---@param input string|integer[]
---@param opts? { threshold?: number, window?: integer, details?: boolean, progress?: ane.progress }
---@return ane.span[]|table|nil spans with details a table: spans, ids, labels, path, logits
---@return string? message
---@return ane.code? code
function model:classify(input, opts) end

--- Finds the spans of many inputs, several in a run. Each has the spans that classify gives.
---@param inputs (string|integer[])[]
---@param opts? { threshold?: number, window?: integer, details?: boolean, progress?: ane.progress }
---@return (ane.span[]|table|false)[]? spans of each; false where that failed
---@return table<integer, table>|string|nil failed {message, code} by places; or the message
---@return ane.code? code
function model:classify_many(inputs, opts) end

--- Replaces the spans that a token classifier labels.
---@param text string
---@param opts? { pseudonyms?: boolean, key?: string, replace?: (fun(span: ane.span): string), threshold?: number, window?: integer, segment?: integer, progress?: ane.progress }
---@return string? text
---@return ane.span[]|string|nil spans or the message
---@return ane.code? code
function model:redact(text, opts) end

--- Ends the replies in progress.
function model:stop() end

--- What the model is and how it runs here: path, format, bytes, parameters, tensors by type, architecture, config, isa, threads, activations, kv, context, vocab, engine, kernels, memory.
---@return table
function model:info() end

--- Frees the model and closes its pools and sessions: replies of a pool that are not complete end with `stop = "closed"`. Closing twice is fine; any other use of a closed model, pool or session raises.
function model:close() end

--- A reply in progress. Leaving a `for` loop over it closes it.
---@class ane.pieces
---@field result ane.result complete when the loop has ended
---@overload fun(): string|integer|nil
local pieces = {}

--- The next piece; nil at the end, or nil, message, code where the reply failed.
---@return string|integer|nil piece
---@return string? message
---@return ane.code? code
function pieces:next() end

--- Computes the rest of the reply.
---@return ane.result? result
---@return string? message
---@return ane.code? code
function pieces:finish() end

--- Ends the reply at its next token or prefill chunk, with stop = "stopped".
function pieces:stop() end

--- Ends the reply and gives its session back.
function pieces:close() end

---@class ane.chat
---@field messages ane.message[] free to be read and changed
---@field last ane.result? details of the last reply; stop = "context": the context's end has cut it
---@field session ane.session? its cached past, from the first reply, save or restore on
local chat = {}

--- Says something and gives the reply as text. On failure the messages are as before. Code "range": the conversation does not fit the
--- context (see overflow).
---@param said? string|ane.message|ane.message[] nil: replies to the messages as they are
---@param opts? ane.say_options
---@return string? text
---@return ane.tool_call[]|string|nil calls of tools, or the message of what failed
---@return ane.code? code
function chat:say(said, opts) end

--- Says something and gives the reply piece by piece. One reply at a time; a reply that is broken off is kept in the messages as far as it
--- went.
--- ```lua
--- for piece in chat:stream "Tell me more" do
---   io.write(piece)
---   if #chat.messages > 10 then break end
--- end
--- ```
---@param said? string|ane.message|ane.message[]
---@param opts? ane.say_options
---@return ane.pieces? pieces
---@return string? message
---@return ane.code? code
function chat:stream(said, opts) end

--- The prompt that the template makes of the messages.
---@param opts? ane.generate_options
---@return string? prompt
---@return string? message
---@return ane.code? code
function chat:render(opts) end

--- Writes messages and session to a file, whole or not at all. model:chat { restore = path } goes on without computing anything again.
---@param path string
---@return boolean? ok
---@return string? message
---@return ane.code? code
function chat:save(path) end

--- Closes the chat and its session.
function chat:close() end

return ane

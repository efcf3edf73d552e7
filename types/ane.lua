---@meta ane
-- Types of the public API, for editors that use the Lua language server. Nothing here runs.

---@class ane.lib
---@field _VERSION string
---@field null lightuserdata the value of JSON null
---@field grammar ane.grammar_lib grammars for constrained replies
---@field tools ane.tools_lib calls of tools in replies
---@field ranks ane.ranks_lib ranks of an MPI program, among which the layers of a model are divided
local ane = {}

---@alias ane.kv "fp16"|"fp32"|"int16"|"int8"
---@alias ane.transform "none"|"rotate"

---@alias ane.code "memory"|"io"|"format"|"unsupported"|"invalid"|"shape"|"notfound"|"range"|"state"|"stopped"|"template"
---@alias ane.stop_reason "eos"|"grammar"|"tool_calls"|"stop"|"length"|"context"|"repeat"|"stopped"|"closed"|"time"|"failed"
---@alias ane.progress fun(stage: string, done: integer, total: integer)
---@alias ane.message { role: string, content: string, [string]: any }
---@alias ane.prompt string|integer[]|ane.message[]

---@alias ane.weights "file"|"int8"|"int8-channel"|"int8-block"|"int4-block"|"int4-block64"|"uint4-block"|"lut4"|"lut4-g8"|"lut4-g16"|"lut4-g32"|"lut2"|"lut2-g8"|"lut2-g16"|"lut2-g32"|"lut3"|"lut3-g8"|"lut3-g16"|"lut3-g32"|"lut6"|"lut6-g8"|"lut6-g16"|"lut6-g32"|"lut8"|"fp16"|"bf16"|"fp32"|"q8_0"|"q6_k"|"q5_1"|"q5_0"|"q5_k"|"q4_1"|"q4_0"|"q4_k"|"iq4_nl"|"iq4_xs"|"mxfp4"|"q3_k"|"q2_k"

---@class ane.load_options
---@field context? integer maximum tokens of a session; default: the smallest of the model's own context, 4096 (32768 for embedding models and rerankers), and what fits in half of the free memory
---@field threads? integer 1 .. 1024; default: the physical cores
---@field weights? ane.weights default: "file", as stored
---@field mixed? table<string, ane.weights>|{ [1]: string, [2]: ane.weights }[] other values of `weights`, by pattern of the tensor's name in the file or in GGUF files
---@field importance? table<string, ane.tensor|number[]> importance of the input columns of each tensor (ane.calibrate), for int4-block, uint4-block and lut4
---@field activations? "int8"|"fp32" int8 (default) is fast, fp32 the reference
---@field kv? ane.kv type of cached keys and values; default: int16 (fp16 for models that do not generate), or fp32 with fp32 activations
---@field head? "auto"|"pruned"|"full" pruned: greedy decoding skips rows of an 8-bit LM head that cannot win; the same tokens. auto (default): pruned if the head has 48 MB or more
---@field engine? "recipe"|"graph" how an ONNX model or a Core ML package set runs: by a recipe, or op by op; default: recipe if one matches, else graph
---@field recipe? table|string a recipe or its path, for an architecture that has none in ane.models
---@field run_memory? integer|string ONNX models and package sets that run op by op: maximum bytes, such as "2G", of the states of all sessions and the values of a run, without the weights; default: half of the memory that is free when a run first needs more than 256 MiB
---@field precision? "fp32"|"fp16" arithmetic of Core ML package sets; default fp32
---@field backend? "cpu"|"coreml" what runs Core ML package sets; coreml: on macOS 15, never run on hardware
---@field verify? boolean true: hash all files of a Core ML package set before it is opened; default: sizes only
---@field isa? string maximum instruction set of the kernels; default: the environment variable ANE_ISA, else the best of the machine
---@field soft_experts? boolean true: all experts of a mixture run, with masked weights; default false: only the chosen ones
---@field adapters? string|ane.adapter_choice[] LoRA adapters of sessions that name no others
---@field ranks? boolean|ane.ranks_options divides the layers among all ranks of an MPI program; this process is rank 0 (docs/scale.md)
---@field transform? ane.transform "rotate" folds rotations into the weights, which are then fp32 unless `weights` names another type; default "none"
---@field merge? boolean true: the adapters are merged into the weights, which are then fp32 unless `weights` names another type; without adapters it changes nothing
---@field progress? ane.progress|boolean true: a progress bar if standard error is a terminal

---@class ane.ranks_options
---@field cut? integer[] the first layers of ranks 1, 2, ...; default: chosen for the speed and the memory of the ranks
---@field fp16? boolean true: ranks send activations as fp16, which halves the bytes and changes the results; default false
---@field parallel? "pipeline"|"tensor" pipeline (default) divides the layers among the ranks, tensor the rows of each matrix, for fast links; the other fields apply to pipelines
---@field tail? number 0 .. 16: weight of the steps after the last layer's attention when the cut is chosen, without a divided head: 0 for long prompts, 1 for long replies; default 0.5

---@class ane.ranks_lib
---@field join fun(opts?: { timeout?: number }): integer?, integer|string, ane.code? joins the processes that mpirun has started; returns the number of this rank, from 0, and the number of ranks. timeout: seconds after which a silent rank counts as lost; default 300
---@field work fun(opts?: { threads?: integer }): boolean?, string?, ane.code? on every rank except 0, after join: loads the rank's layers and computes until rank 0 leaves. threads: 1 .. 1024
---@field size fun(): integer number of ranks; 1 before join
---@field leave fun() on rank 0, at its end: ends the work of the other ranks

---@class ane.grammar_options
---@field strict? boolean false: unknown names of formats are ignored; default true: they are errors. Unknown keywords are always ignored
---@field blanks? integer 0 .. 1000: maximum white space at each place where JSON allows it; default: at most one space after commas and colons

---@class ane.grammar
---@field kind string
---@field matches fun(self: ane.grammar, text: string): boolean?, string?, ane.code? whether the grammar accepts the whole text

---@class ane.grammar_lib
---@field json_schema fun(schema: string|table|boolean, opts?: ane.grammar_options): ane.grammar?, string?, ane.code? JSON texts that are valid under a JSON Schema
---@field json fun(opts?: { blanks?: integer }): ane.grammar?, string?, ane.code? any JSON text; blanks: 0 .. 1000
---@field parts fun(list: table, opts?: ane.grammar_options): ane.grammar?, string?, ane.code? sequences of literals, patterns and JSON values: a list of edges {from, to, kind, text} of an automaton, with the field ends, a list of its accepting states
---@field regex fun(pattern: string): ane.grammar?, string?, ane.code? texts that an ECMA-262 pattern matches from end to end
---@field choice fun(list: string[]): ane.grammar?, string?, ane.code? one of the strings
---@field gbnf fun(text: string): ane.grammar?, string?, ane.code? texts of a grammar in llama.cpp's EBNF; the first rule is root
---@field lark fun(text: string): ane.grammar?, string?, ane.code? texts of a grammar in Lark's form, of its rule `start`
---@field rules fun(pattern: ane.pattern|table): ane.grammar?, string?, ane.code? texts of a pattern, or of a table of rules whose first entry names the first one
---@field P fun(v: string|integer|ane.pattern|table): ane.pattern a text, n characters, or a table of rules
---@field S fun(set: string): ane.pattern one of these characters
---@field R fun(...: string): ane.pattern one character of these ranges ("az")
---@field V fun(name: string): ane.pattern the rule of that name
---@field is fun(value: any): boolean whether the value is a grammar

---@class ane.pattern operators: a * b (a, then b), a + b (a or b), a ^ n (n or more times; with -n at most n times)

--- Loads a model. Its files are mapped while it is open. If another program truncates one of them, calls that read the missing
--- part fail with the code io (SECURITY.md). Replacing a file by renaming is safe.
---@param path string a GGUF file, or the first of a split one; a folder with safetensors and config.json; an ONNX file or bundle; a folder of Core ML packages
---@param opts? ane.load_options
---@return ane.model? model
---@return string? message
---@return ane.code? code
function ane.load(path, opts) end

--- Downloads a model from the Hugging Face hub to the hub's cache. Files that are in the cache are not downloaded again.
---@param name string "hf:OWNER/NAME", with ":Q4_K_M" or ":FILE" if there are several models, "@REVISION" for another revision than main
---@param opts? { progress?: fun(name: string, done: integer, total: integer), waiting?: fun(why: string, seconds: number), offline?: boolean, fallback?: boolean } waiting: called before a request to the hub is repeated; fallback: use the cache if the hub cannot be reached
---@return string? path of the file or folder, for ane.load
---@return { repo: string, commit: string?, files: string[]?, fetched: integer, bytes: integer?, cached: boolean }|string|nil info or the error message
---@return ane.code? code
function ane.pull(name, opts) end

--- Registers a recipe for architectures that have no file in ane.models.
---@param recipe { architectures: string[], build: (fun(b: ane.builder, cfg: table): any), version?: integer, ignore?: string[], config?: table }
function ane.register(recipe) end

--- Makes a drafter, which proposes the next tokens of a text from its earlier tokens and a corpus (prompt lookup).
---@param ids integer[]
---@param corpus? integer[]
---@return { push: fun(self, id: integer), draft: fun(self, max: integer): integer[]?, integer? } push adds a token; draft returns at most max tokens
function ane.drafter(ids, corpus) end

--- Makes a tensor of fp32 values.
---@param values number|table|string a number, nested lists, or a string of little-endian float32
---@param shape? integer[]
---@return ane.tensor
function ane.tensor(values, shape) end

--- Compares a model with a golden, layer by layer.
---@param model ane.model loaded with activations = "fp32", as goldens are computed in fp32
---@param golden string path of a golden.json, with its tensors in the safetensors file beside it
---@param opts? { prompt?: string, hints?: boolean } prompt: name of the only prompt to compare; hints = false: do not search for causes
---@return table? report tostring(report) is a table of the differences
---@return string? message
---@return ane.code? code
function ane.check(model, golden, opts) end

--- A calibration text: a text, token ids, a list of both, texts that the model generates, or chats for its template.
---@alias ane.calibration_input string|integer[]|table[]|{ [integer]: string, samples: integer }|{ chats: (ane.message[]|{ messages: ane.message[], tools?: table[] })[], samples?: integer }

--- Computes the mean square of each weight's input columns on a text: the importance (imatrix) that load and export take.
---@param model ane.model
---@param input ane.calibration_input
---@param opts? { tokens?: integer, chunk?: integer, progress?: ane.progress }
---@return table<string, ane.tensor>? importance by tensor name
---@return string? message
---@return ane.code? code
function ane.calibrate(model, input, opts) end

---@class ane.sensitivity_choice
---@field type string
---@field bytes number bytes of the weight in this type
---@field error number squared error divided by the sum of squares of the weight
---@field kl number expected increase of the KL divergence, in nats

---@class ane.sensitivity_weight
---@field name string
---@field tensors string[] its tensors in the source: several where quantise stacks experts
---@field count integer elements
---@field stored string type in the file
---@field choices ane.sensitivity_choice[] in order of size, smallest first

---@class ane.sensitivity_report
---@field weights ane.sensitivity_weight[]
---@field rest integer bytes of the tensors that keep their type
---@field kept string[][] {name, type} of each of these tensors that is not a vector
---@field count integer elements of all weights
---@field tokens integer tokens that were read for each weight
local sensitivity_report = {}

--- Chooses a type for each weight within a budget. Bytes go first where they reduce the divergence most.
---@param opts { size?: integer, bits?: number } maximum bytes of all tensors, or mean bits per weight, 0.5 .. 32
---@return string[][]? mixed list of {name, type}, for quantise
---@return table|string chosen bytes, bits and expected kl; or the error message
---@return ane.code? code
function sensitivity_report:mixed(opts) end

--- Chooses the smallest type for each weight.
---@return string[][] mixed, table chosen as of mixed()
function sensitivity_report:smallest() end

--- Measures the sensitivity of each weight: the KL divergence of the predictions when this weight alone is rounded.
---@param model ane.model
---@param input ane.calibration_input
---@param opts? { types?: string[], tokens?: integer, chunk?: integer, threads?: integer, progress?: ane.progress } tokens, chunk: 2 or more; threads: 1 .. 1024
---@return ane.sensitivity_report?
---@return string? message
---@return ane.code? code
function ane.sensitivity(model, input, opts) end

---@class ane.gate_cosines
---@field cosine number mean over tokens
---@field least number smallest cosine of a token
---@field least_at integer index of that token, from 1
---@field max_abs number largest absolute difference of an element
---@field count integer number of tokens

---@class ane.gate_report
---@field ok boolean the cosines of hidden states and logits are at least 0.97
---@field warning boolean one of them is below 0.999
---@field verdict "ok"|"warning"|"fail"
---@field cosine number the smaller one of the mean cosines of hidden states and logits
---@field hidden? ane.gate_cosines nil if a model does not provide hidden states, or if `rotated`
---@field rotated? boolean true: the weights of one model are rotated, so its hidden states are in another basis and are not compared
---@field logits ane.gate_cosines
---@field argmax { agree: integer, of: integer, clear_agree: integer, clear: integer } agree of `of` tokens have the same best token; clear_agree of `clear` are those whose best logit exceeds the next one by more than 0.5 in the source
---@field tokens integer tokens that were compared
---@field runs integer sequences that were compared

--- Applies the quality gate: compares hidden states, logits and best tokens of a model with those of its source.
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
---@return ane.server? server it answers requests in run() or turn()
---@return string? message
---@return ane.code? code
function ane.serve(model, opts) end

--- Answers the rows of a file, folder or pipe with one line of JSON each (docs/batch.md).
---@param model ane.model
---@param opts ane.batch_options
---@return ane.batch_summary?
---@return string? message
---@return ane.code? code
function ane.batch(model, opts) end

--- Reads the tensor of a .npy file, or all tensors of a safetensors or GGUF file as a table by name.
---@param path string
---@return ane.tensor|table<string, ane.tensor>|nil tensors
---@return string? message
---@return ane.code? code
function ane.tensors(path) end

--- Opens a Core ML package, or a Core AI asset.
---@param path string folder of the .mlpackage or .aimodel
---@param opts? { precision?: "fp32"|"fp16", threads?: integer, isa?: string, progress?: ane.progress, backend?: "cpu"|"coreml", anywhere?: boolean, run_memory?: integer|string } threads: 1 .. 1024; run_memory: maximum bytes, such as "2G", of states and of the values of runs, without the weights; default: half of the memory that is free when a run first needs more than 256 MiB
---@return ane.package? package tostring(package) is a summary
---@return string? message
---@return ane.code? code
function ane.package(path, opts) end

--- Describes the machine: version of ane, isa (the level in use), isa_list (available levels), cpu, cores, memory.
---@return { version: string, isa: string, isa_list: string[], cpu: string, cores: integer, memory: table }? info
---@return string? message
---@return ane.code? code
function ane.info() end

---@class ane.feature
---@field name string
---@field dtype string
---@field shape integer[] -1: not known before the run
---@field optional boolean
---@field default_value? number value of an optional input that is not given
---@field default? integer[] the default of a flexible shape
---@field range? integer[][] {low, high} of each dimension; high nil: no limit
---@field enumerated? integer[][] all allowed shapes

---@class ane.package_function
---@field name string
---@field opset string
---@field inputs ane.feature[]
---@field outputs ane.feature[]
---@field states ane.feature[]
---@field ops table<string, integer> number of operations by type
---@field n_ops integer

---@class ane.package_info
---@field path string
---@field kind "mlpackage"|"aimodel"
---@field version integer version of the specification
---@field default_function string
---@field functions ane.package_function[]
---@field weights { number: integer, bytes: integer, files: integer }
---@field metadata { description: string, version: string, author: string, license: string, user: table<string, string> }

---@class ane.package
local package_ = {}

--- Describes the package: functions with inputs, outputs and states, weights, metadata.
---@return ane.package_info
function package_:info() end

--- Returns the description and the program as text, one operation per line.
---@return string? text
---@return string? message
---@return ane.code? code
function package_:dump() end

--- Returns the bytes of a constant.
---@param output string name of the constant's output, or with `parameter` of an output of any operation
---@param parameter? string an attribute, or a parameter with an immediate value; default: the constant itself
---@param func? string default: the default function
---@return string|string[]|nil bytes row-major, little-endian; a constant of strings as a list
---@return string? dtype or the error message
---@return integer[]|ane.code|nil shape or the code
function package_:value(output, parameter, func) end

--- Writes the package to another path. An existing package is replaced in one step.
---@param path string
---@return true? ok
---@return string? message
---@return ane.code? code
function package_:rewrite(path) end

--- Runs a function.
---@param inputs table<string, ane.tensor|number|table> by name: tensors, numbers, nested lists, or {shape, data}
---@param state? ane.package_state the call changes it; nil: states of zeros for this call only
---@param opts? { function?: string }
---@return table<string, ane.tensor|table>? outputs by name: tensors, or lists with shape and dtype for other types than floats
---@return string? message
---@return ane.code? code
function package_:predict(inputs, state, opts) end

--- Makes states that are all zero.
---@param name? string a function: the states fit it and the functions whose states have the same shapes; nil: all functions, if their states have the same shapes
---@return ane.package_state? state
---@return string? message
---@return ane.code? code
function package_:state(name) end

--- Frees the package. Closing twice is allowed.
function package_:close() end

---@class ane.package_state
local package_state = {}

--- Returns the names of the states.
---@return string[]
function package_state:names() end

--- Returns the value of a state.
---@param name string
---@return ane.tensor value a copy
function package_state:get(name) end

--- Replaces the value of a state.
---@param name string
---@param tensor ane.tensor a tensor with the state's shape
function package_state:set(name, tensor) end

--- Sets all states to zero.
function package_state:reset() end

--- Returns a copy, which later calls do not change.
---@return ane.package_state
function package_state:copy() end

--- Frees the states.
function package_state:close() end

---@class ane.model
---@field tokenizer ane.tokenizer?
---@field path string
---@field kv ane.kv
---@field load_s number seconds that loading took
---@field context integer maximum tokens of a session
---@field vocab integer number of logits
---@field architecture string
---@field config table
---@field engine "recipe"|"graph"|"packages" "graph": an ONNX graph, run op by op; "packages": a package set, run op by op
---@field engine_reason string? why the graph or the packages run op by op
---@field warnings string[] warnings of load: a context above the model's own, matrices that cannot be held as `weights` says; empty if there are none
---@field closed boolean
local model = {}

--- A tool, in the form of OpenAI's API.
---@class ane.tool
---@field type "function"
---@field function { name: string, description?: string, parameters?: table } parameters: JSON Schema of the arguments, an object

--- A call of a tool, in results and in messages.
---@class ane.tool_call
---@field id string
---@field type "function"
---@field function { name: string, arguments: string } arguments: JSON text that is valid under the tool's schema

--- A part of a call in a stream. The first part of a call has id and name; its arguments follow in further parts.
---@class ane.tool_delta
---@field index integer index of the call, from 1
---@field id? string
---@field name? string
---@field arguments? string the next part of the JSON text

---@class ane.tools_lib
---@field parse fun(text: string, opts: { form?: string, template?: string, tools?: ane.tool[]|string }): string?, ane.tool_call[]|string, ane.code? splits a reply: the text outside calls, with that of incomplete and malformed calls, and the calls
---@field arguments fun(call: ane.tool_call): table?, string?, ane.code? the arguments of a call as a table

---@class ane.template_options: ane.reply_options
---@field tools? ane.tool[]|string tools that the reply may call: a list, or its JSON text, which keeps the order of keys for the template
---@field tool_choice? "auto"|"none"|"required"|string|table "auto" (default): text or calls; "none": no calls; "required": calls; a name: one call of this tool
---@field parallel_tool_calls? boolean false: at most one call
---@field tool_form? string the form of calls, if the template does not determine it
---@field on_tool_call? fun(delta: ane.tool_delta) called with each part of a call
---@field documents? table[]
---@field template? string name of one of the model's templates
---@field template_vars? table<string, any>
---@field special_in_messages? boolean true: spellings of control tokens in messages are read as those tokens

---@class ane.generate_options: ane.template_options
---@field special? boolean true: spellings of control tokens in the prompt are read as those tokens
---@field adapters? string|ane.adapter_choice[] LoRA adapters of this reply, in place of the model's own; {}: none
---@field details? boolean true: generate returns an ane.result
---@field session? ane.session a session of this model, which model:generate and model:stream use; it contains prompt and reply afterwards

--- Callbacks (`progress`, `logits_processor`) run between C calls: they may yield, and an error that they raise ends the call. A reply
--- ends early by pieces:stop(), by model:stop(), when the loop is left, or when a callback raises an error. The computed tokens stay
--- cached.
---@class ane.result
---@field text string?
---@field ids integer[]
---@field prompt_ids integer[]
---@field stop ane.stop_reason time, failed: only of requests of a pool
---@field stop_string? string
---@field grammar_complete? boolean with a grammar or tools: whether the reply is a complete text of the grammar, with complete calls
---@field tool_calls? ane.tool_call[] the complete calls; stop is "tool_calls" if the reply ended with one
---@field tool_call_cut? ane.tool_call what was read of the last call, if the reply ended in it; `text` ends with the text of this call, which is also in its field `text`
---@field eos_id? integer
---@field dropped? integer number of messages that a chat has dropped to make room (overflow = "drop")
---@field seed integer
---@field logprobs? { id: integer, logprob: number, top: number[][] }[]
---@field prompt_logprobs? { id: integer, logprob?: number, top?: number[][] }[] the first token has no log probability
---@field timings { load_s?: number, prefill_s: number, decode_s: number, first_token_s?: number, prompt_tokens: integer, cached_tokens: integer, tokens: integer, head?: { searched: integer, share: number }, speculation?: { calls: integer, drafted: integer, accepted: integer, speedup: number } }

--- Continues a prompt. A reply without max_tokens ends at an end token or at the end of the context; `stop` of the details says which.
---
--- With the option session, that session holds prompt and reply afterwards. Its cached tokens are reused as far as they equal the start
--- of the prompt.
--- ```lua
--- local s <close> = assert(model:session())
--- print(model:generate("Once upon", { session = s, max_tokens = 20 }))
--- print(s:generate { max_tokens = 20 }) -- continues
--- ```
---@param prompt ane.prompt
---@param opts? ane.generate_options
---@return string|integer[]|ane.result|nil reply
---@return string? message
---@return ane.code? code
function model:generate(prompt, opts) end

--- Continues a prompt piece by piece: `for piece in model:stream("Once") do io.write(piece) end`. Several replies may run in turns, in
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

---@class ane.say_options: ane.template_options
---@field overflow? "error"|"drop" if the messages do not fit in the context: fail (default), or drop the oldest turns until the rest fills at most three quarters of the context. Leading system messages and the last turn stay. `dropped` of the result is the number of dropped messages

---@class ane.chat_options: ane.say_options
---@field system? string
---@field messages? ane.message[] a conversation to continue
---@field restore? string path of a file that chat:save wrote, from which messages and session are restored
---@field adapters? string|ane.adapter_choice[] LoRA adapters of the conversation

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
---@field sessions? integer 1 .. 1024: maximum replies that are computed at once; the others wait; default 32
---@field step_tokens? integer 16 .. 512: maximum tokens of a step; default 256
---@field memory? integer|string maximum bytes of the cached state of all sessions, such as "2G"; at the limit the newest reply is preempted and computed again later
---@field prefix_memory? integer|string maximum bytes of the prefixes kept from finished replies, within memory; 0 keeps none; default 1G, at most a quarter of free memory
---@field context? integer maximum tokens of each session
---@field kv? ane.kv
---@field on_work? fun(pool: ane.pool) called when an idle pool gets a request

--- Opens a pool, which computes many replies in shared steps. Each reply is bit-identical to the same reply computed alone.
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

--- Continues many prompts in a pool. Each reply equals the one that generate returns for its prompt.
---@param prompts ane.prompt[]
---@param opts? ane.many_options for all prompts
---@return table? replies for each prompt the result of generate; false if it failed
---@return table<integer, { [1]: string, [2]: ane.code? }>|string|nil failed {message, code} by index of the prompt; or the error message
---@return ane.code? code
function model:generate_many(prompts, opts) end

--- Loads a LoRA adapter, for `adapters` of session, generate, chat and a pool's requests. The weights do not change, so sessions with
--- different adapters share them. A path in `adapters` loads an adapter too.
---@param path string a PEFT folder, or a GGUF adapter
---@param opts? { scale?: number } factor of the product that the adapter adds; default 1
---@return ane.adapter? adapter
---@return string? message names the tensor that does not fit the base
---@return ane.code? code
function model:adapter(path, opts) end

--- Opens a session: the cached past of one sequence.
---@param opts? { context?: integer, kv?: ane.kv, adapters?: string|ane.adapter_choice[] }
---@return ane.session? session
---@return string? message
---@return ane.code? code
function model:session(opts) end

--- Returns the names of all intermediate values, in the order of computation.
---@return { name: string, channels: integer }[]? values
---@return string? message
---@return ane.code? code
function model:values() end

--- Computes a prompt from position 0 and returns intermediate values.
---@param input ane.prompt
---@param patterns? string|string[] globs on the names that values() returns; default all
---@return table<string, ane.tensor>? values each [tokens, channels]
---@return string? message
---@return ane.code? code
function model:trace(input, patterns) end

---@class ane.weight_row
---@field name string
---@field rows integer
---@field cols integer
---@field from string stored type
---@field weights string type in memory
---@field form string layout of the kernel
---@field activations string activation type of its products
---@field bytes integer
---@field exact boolean the weight in memory equals the stored one
---@field max_abs number
---@field rms number
---@field snr_db? number signal-to-noise ratio; nil if exact

--- Lists the type of each weight in memory and its error against the stored weight.
---@return ane.weight_row[]
function model:weights_report() end

---@alias ane.gguf_type "fp32"|"fp16"|"bf16"|"q8_0"|"q6_k"|"q5_1"|"q5_0"|"q5_k"|"q4_1"|"q4_0"|"q4_k"|"iq4_nl"|"iq4_xs"|"mxfp4"|"q3_k"|"q2_k"
---@alias ane.weight_scheme "int8"|"int8-channel"|"int8-block"|"int4-block"|"int4-block64"|"uint4-block"|"lut4"|"lut4-g8"|"lut4-g16"|"lut4-g32"|"lut2"|"lut2-g8"|"lut2-g16"|"lut2-g32"|"lut3"|"lut3-g8"|"lut3-g16"|"lut3-g32"|"lut6"|"lut6-g8"|"lut6-g16"|"lut6-g32"|"lut8"

---@class ane.quantise_options
---@field weights ane.gguf_type|ane.weight_scheme the file stores the values of a scheme in a type that represents them exactly (int4-block: q4_0, uint4-block: q4_1)
---@field method? "rtn"|"gptq" rtn (default): rounds each number to the nearest; gptq: later columns compensate the errors of earlier ones, on the text of `calibrate`
---@field calibrate? ane.calibration_input the text of gptq; for rtn that on which the importance of columns is measured, instead of `importance`
---@field tokens? integer maximum tokens of the text; default 32768, for rtn 2048
---@field transform? "none"|"rotate" rotate: rotates the weights before they are rounded (docs/quantising.md); default: the transform of the loaded model. Another one loads the model again, for this call
---@field inputs? "rounded"|"source" for gptq, the inputs that a weight is rounded for. rounded (default): those of a model in which all earlier weights are rounded; source: those of the source
---@field tune? "auto"|"norms"|"none" for gptq: norms tunes the norm weights on the text of `calibrate` at the end, if all operations of the model have gradients; auto (default) does so if the matrices have at most 5 bits per weight, the text has at least 4096 tokens, and the model is small
---@field stages? integer 1 .. 1024: earlier form of inputs: 1 is "source", more is "rounded"
---@field memory? integer maximum bytes of the statistics of gptq; default 2 GiB. If they need more, the text is processed several times
---@field mixed? table pattern to type, or a list of {pattern, type}
---@field resume? boolean true: write progress to `OUT.journal` and `OUT.part`, and resume an interrupted run of the same model, text and options from them; default false
---@field table? ane.gguf_type for a scheme: type of the embedding table; default: its stored type, or q8_0 if the weights are rotated
---@field fallback? ane.gguf_type type of weights whose rows are not whole blocks, itself with blocks below 256; default: the nearest type of similar size (q4_k: "q5_0")
---@field importance? table<string, ane.tensor|number[]> importance of the input columns, by tensor name
---@field threads? integer 1 .. 1024
---@field progress? fun(stage: string, done: integer, total: integer)

--- Writes the model as GGUF with its weights in another type.
---@param out string path of the file; it appears when it is complete
---@param opts ane.quantise_options
---@return table? report type, error and bytes of each tensor; kept: number of tensors from an interrupted run
---@return string? message
---@return ane.code? code
function model:quantise(out, opts) end

---@class ane.plan_options
---@field weights? string int8 (default), int8-channel, int8-block, int4-block, int4-block64, uint4-block, lut4, lut4-g8, lut4-g16, lut4-g32, the same of lut2, lut3 and lut6, lut8, fp16
---@field mixed? table pattern of names in the file or in GGUF files to scheme, or a list of {pattern, scheme}, of which the last match counts
---@field context? integer
---@field max_t? integer maximum tokens of a call; default 4, or the context if that is less
---@field fixed_t? integer[] fixed numbers of tokens of a call; each gets its own packages, or functions
---@field tiers? integer[] smaller contexts; each gets its own packages, or functions
---@field functions? "one"|"many" many: the same packages have a function for each T and context, and one copy of the weights
---@field chip? string "M1" .. "M4 Max"
---@field target? "coreml"|"coreai"|"coreai-sharded"|"both"|integer coreml (default): packages; coreai: one Core AI asset; coreai-sharded: a set of assets; both: plans only; a number: bytes of weights to aim at for each package
---@field size_limit? integer bytes above which a layer is partitioned, by experts or between blocks
---@field law? integer the old name of size_limit
---@field rows? integer rows of a slice of the head
---@field slices? integer number of slices of the head
---@field layers? integer maximum layers of a package
---@field experts? "auto"|"whole"|"halves"|"each"
---@field layout? "ct1"|"c1t"
---@field norm? "doubled"|"fp32"
---@field rope? "inputs"|"constants"

--- Plans the partition of the model into packages for the Neural Engine. tostring(plan) is a table.
---@param opts? ane.plan_options
---@return table? plan packages, residency, laws (the residency rules that apply), bytes, largest, state_bytes, embed_bytes, reported; dot(), svg()
---@return string? message
---@return ane.code? code
function model:plan(opts) end

---@class ane.export_options: ane.plan_options
---@field argmax? boolean true: the head returns the best row and its value instead of logits
---@field importance? table<string, ane.tensor> importance of the input columns, by name of the weight
---@field method? "rtn"|"gptq" as for quantise
---@field inputs? "rounded"|"source" as for quantise
---@field tune? "auto"|"norms"|"none" as for quantise, with int4-block and tables (lut2 .. lut8), without `mixed`. norms fails otherwise; auto (default) tunes only numbers of at most 4 bits
---@field calibrate? ane.calibration_input as for quantise
---@field tokens? integer maximum tokens of the text; default 32768, for rtn 2048
---@field memory? integer maximum bytes of the statistics of gptq; default 2 GiB
---@field threads? integer 1 .. 1024
---@field progress? boolean|fun(stage: string, done: integer, total: integer)

--- Writes the model as Core ML packages for the Neural Engine. With target = "coreai" it writes one Core AI asset in a bundle, with
--- "coreai-sharded" a set of assets.
---@param out string path of the folder; it appears, or replaces an existing set, when it is complete
---@param opts? ane.export_options
---@return table? report ok, path, shards, weights, kept, seconds, tuned or untuned (as of quantise); for an asset also functions (name, inputs, outputs, states) and warnings
---@return string? message
---@return ane.code? code
function model:export(out, opts) end

---@class ane.span
---@field label string
---@field start integer first byte, as in string.sub; nil if the input was token ids
---@field stop integer last byte
---@field text string
---@field score number mean probability of the labels of its tokens
---@field first integer first token, from 1
---@field last integer last token
---@field replacement? string only from redact

---@class ane.embed_options
---@field prompt? string name of a prompt of the model, which is put before each text
---@field prefix? string a text that is put before each text
---@field dims? integer number of leading dimensions to keep
---@field normalise? boolean true: vectors have length 1; default: as the model's files say
---@field max_length? integer maximum tokens; longer texts are truncated; default: the model's limit. A text within it that is longer than the context is an error
---@field special? boolean true: spellings of control tokens in a text are read as those tokens, as in sentence-transformers
---@field details? boolean
---@field progress? ane.progress called after each run; it may yield

--- Computes embeddings of texts with an embedding model.
---@param input string|integer[]|string[]|integer[][] ids are whole sequences: prompt and prefix are refused with them, and nothing is truncated
---@param opts? ane.embed_options
---@return ane.tensor|table|nil embeddings [dims] for one text, [n, dims] for a list; with details a table: embeddings [n, dims], dim, tokens, truncated
---@return string? message
---@return ane.code? code
function model:embed(input, opts) end

--- Computes the similarity of texts or embeddings, with the function that the model's files name; default cosine.
---@param a string|string[]|ane.tensor
---@param b string|string[]|ane.tensor
---@param opts? { prompt?: string, prefix?: string, dims?: integer, normalise?: boolean, max_length?: integer, special?: boolean, progress?: ane.progress } for texts, as of embed
---@return number|ane.tensor|nil similarity a tensor [#a, #b] if a or b is a list
---@return string? message
---@return ane.code? code
function model:similarity(a, b, opts) end

--- Scores documents for a query with a cross-encoder, a decoder with a classifier, or Qwen3-Reranker.
---@param query string? nil: each document is a list of token ids that holds query and document; all have the token type 0
---@param documents string[]|integer[][]
---@param opts? { instruction?: string, max_length?: integer, special?: boolean, raw?: boolean, details?: boolean, progress?: ane.progress }
---@return number[]|number[][]|table|nil scores one per document (a list if the classifier has several labels); with details a table: scores, order, tokens, truncated
---@return integer[]|string|nil order indices of the documents, best first; nil if there are several labels; or the error message
---@return ane.code? code
function model:rerank(query, documents, opts) end

--- Finds the spans that a token classifier labels.
---@param input string|integer[]
---@param opts? { threshold?: number, window?: integer, details?: boolean, progress?: ane.progress } threshold: 0 .. 1, least score of a span; window: maximum tokens of a run. Twice the margin that a label depends on plus 65 or more give the bits of a single run; fewer may change the last bits of scores
---@return ane.span[]|table|nil spans with details a table: spans, ids, labels, path, logits
---@return string? message
---@return ane.code? code
function model:classify(input, opts) end

--- Finds the spans of many inputs, several in each run. The spans equal those of classify.
---@param inputs (string|integer[])[]
---@param opts? { threshold?: number, window?: integer, details?: boolean, progress?: ane.progress } threshold: 0 .. 1, least score of a span; window: maximum tokens of a run. Twice the margin that a label depends on plus 65 or more give the bits of a single run; fewer may change the last bits of scores
---@return (ane.span[]|table|false)[]? spans of each input; false if it failed
---@return table<integer, table>|string|nil failed {message, code} by index of the input; or the error message
---@return ane.code? code
function model:classify_many(inputs, opts) end

--- Replaces the spans that a token classifier labels.
---@param text string
---@param opts? { pseudonyms?: boolean, key?: string, replace?: (fun(span: ane.span): string), threshold?: number, window?: integer, segment?: integer, progress?: ane.progress } threshold: 0 .. 1; segment: 16 or more
---@return string? text
---@return ane.span[]|string|nil spans or the error message
---@return ane.code? code
function model:redact(text, opts) end

--- Ends the replies in progress, and all replies of pools, with stop = "stopped".
function model:stop() end

--- Describes the model and how it runs here: path, format, bytes, parameters, tensors by type, architecture, config, isa, threads,
--- activations, kv, context, vocab, engine, kernels, weight_bytes, scratch_bytes, matrices.
---@return table
function model:info() end

--- Frees the model and closes its pools and sessions: replies of a pool that are not complete end with `stop = "closed"`. Closing twice
--- is allowed; any other use of a closed model, pool or session raises an error.
function model:close() end

--- A reply in progress. `for piece in model:stream(prompt) do` closes it when the loop is left. Lua does not do so for a reply in a
--- variable (`for piece in reply do`): close it, or declare it as `local reply <close>`.
---@class ane.pieces
---@field result ane.result complete after the end of the loop
---@overload fun(): string|integer|nil
local pieces = {}

--- Returns the next piece; nil at the end; nil, message, code if the reply failed.
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

--- Ends the reply and releases its session.
function pieces:close() end

---@class ane.chat
---@field messages ane.message[] the program may read and change them
---@field last ane.result? details of the last reply; stop = "context": it ended at the end of the context
---@field session ane.session? the session of the conversation; nil before the first reply, save or restore
local chat = {}

--- Adds a message and returns the reply as text. After a failure the messages are unchanged. Code "range": the conversation does not fit
--- in the context (see overflow).
---@param said? string|ane.message|ane.message[] nil: replies to the existing messages
---@param opts? ane.say_options
---@return string? text
---@return ane.tool_call[]|string|nil calls of tools, or the error message
---@return ane.code? code
function chat:say(said, opts) end

--- Adds a message and returns the reply piece by piece. A chat has one reply at a time. A reply that ends early is kept in the messages
--- as far as it was computed.
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

--- Returns the prompt that the template makes from the messages.
---@param opts? ane.say_options
---@return string? prompt
---@return string? message
---@return ane.code? code
function chat:render(opts) end

--- Writes messages and session to a file, in one step. model:chat { restore = path } continues without computing them again.
---@param path string
---@return boolean? ok
---@return string? message
---@return ane.code? code
function chat:save(path) end

--- Closes the chat and its session.
function chat:close() end

return ane

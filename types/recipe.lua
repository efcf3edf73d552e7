---@meta
-- Types of the builder that recipes use (ane.register, models/). The other types are in types/ane.lua. Nothing here runs.

--- The builder of a recipe's graph. An activation is a value of shape [1, C, T, 1]: C channels, T tokens. After gather, T is the number W
--- of output rows. Weights are named by their role ("attn_q"); inside b:layer a role means the weight of that layer. A vector is a value
--- of shape [n].
---@class ane.builder
---@field cfg table the configuration: n_layer, d_model, n_head, rope, ...
---@field ids ane.value int32 [1, T]
---@field positions ane.value int32 [1, T]
---@field out_rows ane.value int32 [1, W]: indices of the tokens whose logits are requested
---@field index integer? index of the current layer (b:layer), 0-based
---@field soft_experts boolean? true: all experts of a mixture run, with masked weights
local builder = {}

---@alias ane.value any a tensor of the graph
---@alias ane.act "silu"|"gelu_tanh"|"gelu_erf"|"sigmoid"|"relu"

--- Runs a function in a scope: `name` is put before the names of its nodes and before its errors.
---@param name string part of the path: "attn"
---@param fn fun()
function builder:scope(name, fn) end

--- Runs a function in the scope "layers.i", in which roles are those of layer i.
---@param i integer layer, 0-based
---@param fn fun()
function builder:layer(i, fn) end

--- Returns whether the source has the tensor of this role.
---@param role string
---@param suffix? string of the name; default ".weight"
---@return boolean
function builder:has(role, suffix) end

--- Returns the number in a weight of one element; nil if the source has no such weight or no values.
---@param role string role of the weight [1]
---@param suffix? string
---@return number?
function builder:number(role, suffix) end

--- Returns the number of rows of each slice of a stacked weight.
---@param role string role of the weight [slices, rows, columns]
---@return integer
function builder:slices(role) end

--- Returns whether the weights of two roles hold the same numbers.
---@param role string role of a matrix that the source has
---@param other string role of another one
---@return boolean
function builder:same(role, other) end

--- Declares that the computation does not use the weight of this role, which the source may have.
---@param role string
---@param suffix? string end of its name, after that of the role; default ".weight"
function builder:ignore(role, suffix) end

--- Returns the number of output features of the stored weight of a role.
---@param role string
---@return integer
function builder:rows(role) end

--- Returns a weight by role, or a view of one.
---@param role string
---@param opts? { suffix?: string, optional?: boolean, expert?: integer, index?: integer, count?: integer, rows?: integer, from?: integer, to?: integer, step?: integer, part?: integer[], transposed?: boolean, matrix?: boolean, flat?: boolean } suffix: of the name (".weight"); expert: replaces %d in the role's name; index: slice of the outermost dimension; count, rows: what the outermost dimension must be, of a stacked tensor or another; from, to: rows of the slice, 0-based, to excluded; step: only the rows from, from + step, ...; part: {first, number} of stored rows; transposed: the weight is stored as [in, out]; matrix: a vector is returned as a matrix of one row; flat: the whole tensor as a vector
---@return ane.value|false value false if the weight is optional and absent
function builder:weight(role, opts) end

--- Returns the number of channels of a value.
---@param x ane.value [1, C, T, 1]
---@return integer
function builder:channels(x) end

--- Looks up rows of a table by token id, position or token type.
---@param role string role of the table [n, d_model]
---@param opts? { by?: "positions"|"types", from?: integer, rest?: boolean } by: default token ids; from: the first row of the table, 0-based; rest: ids beyond the table read row 0
---@return ane.value value [1, d_model, T, 1]
function builder:embed(role, opts) end

--- Projects by the weight of a role: W x + b.
---@param x ane.value [1, C, T, 1]
---@param role string role of the weight [N, C] and the bias [N]
---@param opts? { bias?: boolean, from?: integer, to?: integer, bias_of?: string, name?: string, rows?: integer } bias: default true if the source has one; from, to: only these rows, 0-based, to excluded; bias_of: role of the bias, if it is another; name: name of the value; rows: what N must be
---@return ane.value value [1, N, T, 1]
function builder:linear(x, role, opts) end

--- RMSNorm: x / sqrt(mean(x^2) + eps) * (weight + offset).
---@param x ane.value [1, C, T, 1]
---@param role string role of the weight [C / groups]
---@param opts? { groups?: integer, offset?: number, eps?: number, weight?: ane.value } groups: each group is normalised by itself; offset, eps: default from the configuration; weight: used instead of the role's
---@return ane.value value [1, C, T, 1]
function builder:rms_norm(x, role, opts) end

--- LayerNorm: (x - mean) / sqrt(variance + eps) * weight + bias.
---@param x ane.value [1, C, T, 1]
---@param role string role of the weight [C] and of the bias [C], which may be absent
---@param opts? { eps?: number, bias?: boolean, groups?: integer } eps: default from the configuration; bias: true: required; groups: each group is normalised by itself, without a bias
---@return ane.value value [1, C, T, 1]
function builder:layer_norm(x, role, opts) end

--- L2 norm by groups of n = C / groups channels: group * sqrt(n) / max(|group|, 1.2e-7) * weight[group].
---@param x ane.value [1, C, T, 1]
---@param weight ane.value|false vector [groups]
---@param groups integer
---@param name? string
---@return ane.value value [1, C, T, 1]
function builder:l2_norm(x, weight, groups, name) end

--- Makes the table of cosines and sines of all positions, for rope.
---@param r table cfg.rope, or one of cfg.ropes
---@param name? string
---@return ane.value value [1, dims, T, 1]
function builder:rope_table(r, name) end

--- Rotates the first `dims` channels of each head by the angles of a table.
---@param x ane.value [1, heads * head_dim, T, 1]
---@param tab ane.value result of rope_table
---@param name string
---@param opts { heads: integer, layout?: "half"|"interleaved" } layout: half pairs i and i + dims / 2 (neox), interleaved pairs 2i and 2i + 1; default from the configuration
---@return ane.value value [1, heads * head_dim, T, 1]
function builder:rope(x, tab, name, opts) end

--- Grouped-query attention with its own key and value cache.
---@param q ane.value [1, heads * head_dim, T, 1]
---@param k ane.value [1, kv_heads * head_dim, T, 1]
---@param v ane.value [1, kv_heads * head_dim, T, 1]
---@param opts { heads: integer, kv_heads: integer, head_dim: integer, scale: number, window?: integer, ahead?: integer, softcap?: number, sinks?: ane.value, sink_scale?: number } window: number of keys that a query sees, its own included; ahead: number of later keys that it sees; softcap: c in c tanh(score / c); sinks: vector [heads], scores without values
---@return ane.value value [1, heads * head_dim, T, 1]
function builder:attention(q, k, v, opts) end

--- Gated linear unit: act(gate) * up.
---@param gate ane.value [1, C, T, 1]
---@param up ane.value [1, C, T, 1]
---@param act ane.act
---@return ane.value value [1, C, T, 1]
function builder:glu(gate, up, act) end

--- Activation function, elementwise.
---@param x ane.value [1, C, T, 1]
---@param act ane.act
---@return ane.value value [1, C, T, 1]
function builder:act(x, act) end

--- Sum, elementwise.
---@param a ane.value [1, C, T, 1]
---@param b ane.value of the same shape
---@return ane.value
function builder:add(a, b) end

--- Product, elementwise.
---@param a ane.value [1, C, T, 1]
---@param b ane.value of the same shape
---@return ane.value
function builder:mul(a, b) end

--- Product with a number.
---@param x ane.value [1, C, T, 1]
---@param by number
---@return ane.value
function builder:scale(x, by) end

--- Soft cap, elementwise: cap * tanh(x / cap).
---@param x ane.value [1, C, T, 1]
---@param cap number
---@return ane.value
function builder:softcap(x, cap) end

--- Multiplies by a factor that grows with the position p: 1 + beta ln(1 + floor(p / original)).
---@param x ane.value [1, C, T, 1]
---@param beta number
---@param original integer number of positions with factor 1
---@return ane.value value [1, C, T, 1]
function builder:position_scale(x, beta, original) end

--- Channel-wise affine map: (x + bias) * scale.
---@param x ane.value [1, C, T, 1]
---@param bias ane.value|false vector [C]
---@param scale ane.value|false vector [C]
---@param name? string
---@return ane.value value [1, C, T, 1]
function builder:affine(x, bias, scale, name) end

--- Takes a range of channels of each head.
---@param x ane.value [1, heads * C, T, 1]
---@param from integer first channel, 0-based
---@param to integer end of the range, excluded
---@param heads? integer default 1
---@return ane.value value [1, heads * (to - from), T, 1]
function builder:slice(x, from, to, heads) end

--- Concatenates the channels of two values, head by head.
---@param a ane.value [1, heads * A, T, 1]
---@param b ane.value [1, heads * B, T, 1]
---@param heads? integer default 1
---@return ane.value value [1, heads * (A + B), T, 1]
function builder:concat(a, b, heads) end

--- Multiplies each head by its own matrix.
---@param x ane.value [1, heads * C, T, 1]
---@param weights ane.value[] a matrix [N, C] for each head
---@param name string
---@return ane.value value [1, heads * N, T, 1]
function builder:head_linear(x, weights, name) end

--- Repeats each head `times` times (transformers: repeat_kv).
---@param x ane.value [1, heads * n, T, 1]
---@param heads integer number of heads of x
---@param times integer
---@return ane.value value [1, heads * times * n, T, 1]
function builder:repeat_heads(x, heads, times) end

--- Computes the mean of each `times` consecutive heads.
---@param x ane.value [1, heads * n, T, 1]
---@param heads integer number of heads of x, a multiple of times
---@param times integer
---@return ane.value value [1, heads / times * n, T, 1]
function builder:mean_heads(x, heads, times) end

--- Causal convolution over tokens, with its own state: y[t] = bias + sum over k of weight[k] x[t - K + 1 + k].
---@param x ane.value [1, C, T, 1]
---@param opts { weight: ane.value, taps: integer, groups?: integer, bias?: ane.value, before?: ane.value, name?: string } weight: [N, C / groups, K], or [C, K] (depthwise); taps: K; bias: [N]; before: [C], the value of x before the first token
---@return ane.value value [1, N, T, 1]
function builder:conv_causal(x, opts) end

--- Returns the value of the previous token, with its own state; zeros for the first token.
---@param x ane.value [1, C, T, 1]
---@return ane.value value [1, C, T, 1]
function builder:delay(x) end

--- The selective scan of Mamba-2 (Dao and Gu 2024), with its own state.
---@param x ane.value [1, heads * width + 2 * groups * n, T, 1]: x, B and C
---@param dt ane.value [1, heads, T, 1]
---@param opts { heads: integer, width: integer, groups: integer, n: integer, decay: ane.value, d?: ane.value, dt_bias?: ane.value, log?: boolean, low?: number, high?: number } log: decay holds log(-A); low, high: limits of dt
---@return ane.value value [1, heads * width, T, 1]
function builder:ssm_scan(x, dt, opts) end

--- The gated delta rule (Yang et al. 2024), with its own state.
---@param x ane.value [1, 2 * key_heads * n + heads * width, T, 1]: q, k and v
---@param a ane.value [1, heads, T, 1]: the state decays by exp(A softplus(a + dt_bias)), where A is -exp(decay) with `log`, else decay
---@param b ane.value [1, heads, T, 1]: sigmoid(b) is the step of the update
---@param opts { heads: integer, key_heads: integer, n: integer, width: integer, decay: ane.value, dt_bias?: ane.value, log?: boolean, interleaved?: boolean } interleaved: head h has key head h modulo key_heads
---@return ane.value value [1, heads * width, T, 1]
function builder:delta_rule(x, a, b, opts) end

--- Keeps the tokens whose logits are requested. Later steps compute these only.
---@param x ane.value [1, C, T, 1]
---@return ane.value value [1, C, W, 1]
function builder:gather(x) end

---@meta
-- Types of what recipes build with (ane.register, models/); those of all else are in types/ane.lua. Nothing here runs.

--- What a recipe builds with. An activation is a value of shape [1, C, T, 1]: C channels, T tokens; behind gather T is the number W of
--- output rows. A weight is asked for by its role ("attn_q"); inside b:layer it is that layer's. A vector is a value of shape [n].
---@class ane.builder
---@field cfg table the configuration: n_layer, d_model, n_head, rope, ...
---@field ids ane.value int32 [1, T]
---@field positions ane.value int32 [1, T]
---@field out_rows ane.value int32 [1, W]: the tokens whose logits are asked for
---@field index integer? the layer of b:layer, 0-based
---@field soft_experts boolean? all experts of a mixture run, with masked weights
local builder = {}

---@alias ane.value any a tensor of the graph
---@alias ane.act "silu"|"gelu_tanh"|"gelu_erf"|"sigmoid"

--- Runs a function whose nodes and errors have `name` before theirs.
---@param name string part of the path: "attn"
---@param fn fun()
function builder:scope(name, fn) end

--- Runs a function in the scope "layers.i", in which roles are those of layer i.
---@param i integer layer, 0-based
---@param fn fun()
function builder:layer(i, fn) end

--- Does the source hold the tensor of this role?
---@param role string
---@param suffix? string of the name; default ".weight"
---@return boolean
function builder:has(role, suffix) end

--- The only number of a weight; nil where the file has no such weight or no values.
---@param role string of the weight [1]
---@param suffix? string
---@return number?
function builder:number(role, suffix) end

--- Rows of each slice of a stacked weight.
---@param role string of the weight [slices, rows, columns]
---@return integer
function builder:slices(role) end

--- Do the weights of two roles hold the same numbers?
---@param role string of a matrix that the source holds
---@param other string of another one
---@return boolean
function builder:same(role, other) end

--- Says that the computation does not need the weight of this role, which the file may hold.
---@param role string
function builder:ignore(role) end

--- Output features of the weight of a role, as the file holds it.
---@param role string
---@return integer
function builder:rows(role) end

--- A weight by role, or a view of one.
---@param role string
---@param opts? { suffix?: string, optional?: boolean, expert?: integer, index?: integer, from?: integer, to?: integer, transposed?: boolean, matrix?: boolean } suffix: of the name (".weight"); expert: replaces the %d of the role's name; index: slice of the outermost dimension; from, to: rows of the rest, 0-based, to excluded; transposed: stored [in, out]; matrix: a vector is a matrix of one row
---@return ane.value|false value false where it is optional and absent
function builder:weight(role, opts) end

--- Channels of a value.
---@param x ane.value [1, C, T, 1]
---@return integer
function builder:channels(x) end

--- Rows of a table by token id, position or token type.
---@param role string of the table [n, d_model]
---@param opts? { by?: "positions"|"types", from?: integer } by: nil takes token ids; from: the table begins at this row, 0-based
---@return ane.value value [1, d_model, T, 1]
function builder:embed(role, opts) end

--- Projection by the weight of a role: W x + b.
---@param x ane.value [1, C, T, 1]
---@param role string of the weight [N, C] and the bias [N]
---@param opts? { bias?: boolean, from?: integer, to?: integer, bias_of?: string, name?: string } bias: nil takes one where the file has one; from, to: only these rows, 0-based, to excluded; bias_of: role of the bias; name: of the value
---@return ane.value value [1, N, T, 1]
function builder:linear(x, role, opts) end

--- RMSNorm: x / sqrt(mean(x^2) + eps) * (weight + offset).
---@param x ane.value [1, C, T, 1]
---@param role string of the weight [C / groups]
---@param opts? { groups?: integer, offset?: number, eps?: number, weight?: ane.value } groups: each is normed by itself; offset, eps: default the configuration's; weight: instead of the role's
---@return ane.value value [1, C, T, 1]
function builder:rms_norm(x, role, opts) end

--- LayerNorm: (x - mean) / sqrt(variance + eps) * weight + bias.
---@param x ane.value [1, C, T, 1]
---@param role string of the weight [C] and the bias [C], which may be absent
---@param opts? { eps?: number, groups?: integer } eps: default the configuration's; groups: each is normed by itself, without a bias
---@return ane.value value [1, C, T, 1]
function builder:layer_norm(x, role, opts) end

--- L2 norm by groups: each group of n = C / groups channels times sqrt(n) / max(|group|, 1.2e-7), times the group's weight.
---@param x ane.value [1, C, T, 1]
---@param weight ane.value|false vector [groups]
---@param groups integer
---@param name? string
---@return ane.value value [1, C, T, 1]
function builder:l2_norm(x, weight, groups, name) end

--- Cosines and sines of all positions, for rope.
---@param r table cfg.rope, or one of cfg.ropes
---@param name? string
---@return ane.value value [1, dims, T, 1]
function builder:rope_table(r, name) end

--- Rotates the first `dims` channels of each head by the angles of a table.
---@param x ane.value [1, heads * head_dim, T, 1]
---@param tab ane.value of rope_table
---@param name string
---@param opts { heads: integer, layout?: "half"|"interleaved" } layout: pairs i, i + dims / 2, or 2i, 2i + 1; default the configuration's
---@return ane.value value [1, heads * head_dim, T, 1]
function builder:rope(x, tab, name, opts) end

--- Grouped-query attention with its own key and value cache.
---@param q ane.value [1, heads * head_dim, T, 1]
---@param k ane.value [1, kv_heads * head_dim, T, 1]
---@param v ane.value as k
---@param opts { heads: integer, kv_heads: integer, head_dim: integer, scale: number, window?: integer, ahead?: integer, softcap?: number, sinks?: ane.value, sink_scale?: number } window: keys that a query sees, its own included; ahead: keys behind its own that it sees; softcap: c tanh(score / c); sinks: vector [heads], scores without values
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

--- Product with a factor that grows with the position p: 1 + beta ln(1 + floor(p / original)).
---@param x ane.value [1, C, T, 1]
---@param beta number
---@param original integer positions of the factor 1
---@return ane.value value [1, C, T, 1]
function builder:position_scale(x, beta, original) end

--- Channel-wise affine map: (x + bias) * scale.
---@param x ane.value [1, C, T, 1]
---@param bias ane.value|false vector [C]
---@param scale ane.value|false vector [C]
---@param name? string
---@return ane.value value [1, C, T, 1]
function builder:affine(x, bias, scale, name) end

--- Some consecutive channels, of each head.
---@param x ane.value [1, heads * C, T, 1]
---@param from integer first channel, 0-based
---@param to integer channel behind the last one
---@param heads? integer default 1
---@return ane.value value [1, heads * (to - from), T, 1]
function builder:slice(x, from, to, heads) end

--- Channels of two values, one behind the other, head by head.
---@param a ane.value [1, heads * A, T, 1]
---@param b ane.value [1, heads * B, T, 1]
---@param heads? integer default 1
---@return ane.value value [1, heads * (A + B), T, 1]
function builder:concat(a, b, heads) end

--- Each head times a matrix of its own.
---@param x ane.value [1, heads * C, T, 1]
---@param weights ane.value[] [N, C], one a head
---@param name string
---@return ane.value value [1, heads * N, T, 1]
function builder:head_linear(x, weights, name) end

--- Each head `times` times in a row: key heads for their query heads.
---@param x ane.value [1, heads * n, T, 1]
---@param heads integer of x
---@param times integer
---@return ane.value value [1, heads * times * n, T, 1]
function builder:repeat_heads(x, heads, times) end

--- The mean of each run of `times` heads.
---@param x ane.value [1, heads * n, T, 1]
---@param heads integer of x, a multiple of times
---@param times integer
---@return ane.value value [1, heads / times * n, T, 1]
function builder:mean_heads(x, heads, times) end

--- Causal convolution over tokens, with its own state: y[t] = bias + sum over k of weight[k] x[t - K + 1 + k].
---@param x ane.value [1, C, T, 1]
---@param opts { weight: ane.value, taps: integer, groups?: integer, bias?: ane.value, before?: ane.value, name?: string } weight: [N, C / groups, K], or [C, K] (depthwise); taps: K; bias: [N]; before: [C], x before the first token
---@return ane.value value [1, N, T, 1]
function builder:conv_causal(x, opts) end

--- The value of the previous token, with its own state; zeros before the first token.
---@param x ane.value [1, C, T, 1]
---@return ane.value value [1, C, T, 1]
function builder:delay(x) end

--- The scan of Mamba-2, with its own state.
---@param x ane.value [1, heads * width + 2 * groups * n, T, 1]: x, B and C
---@param dt ane.value [1, heads, T, 1]
---@param opts { heads: integer, width: integer, groups: integer, n: integer, decay: ane.value, d?: ane.value, dt_bias?: ane.value, log?: boolean, low?: number, high?: number } log: decay holds log(-A); low, high: limits of the step
---@return ane.value value [1, heads * width, T, 1]
function builder:ssm_scan(x, dt, opts) end

--- The gated delta rule, with its own state.
---@param x ane.value [1, 2 * key_heads * n + heads * width, T, 1]: q, k and v
---@param a ane.value [1, heads, T, 1]
---@param b ane.value [1, heads, T, 1]
---@param opts { heads: integer, key_heads: integer, n: integer, width: integer, decay: ane.value, dt_bias?: ane.value, log?: boolean, interleaved?: boolean } interleaved: head h has key head h modulo key_heads
---@return ane.value value [1, heads * width, T, 1]
function builder:delta_rule(x, a, b, opts) end

--- The tokens whose logits are asked for. What follows is computed for those only.
---@param x ane.value [1, C, T, 1]
---@return ane.value value [1, C, W, 1]
function builder:gather(x) end

/* The list of primitives, and the checks around a call. */
#include "prim/prim_internal.h"

#include "base/alloc.h"

#include <string.h>

static const struct {
  const char *name, *params;
  int max_outputs;
  ane_status (*run)(struct ane_prim_call *c);
} ops[] = {
#define ANE_PRIM(name, params, outputs) {#name, params, outputs, prim_##name},
#include "prim/prim.def"
#undef ANE_PRIM
};

/* Ops with a prepare step, which reads constant inputs before the first run. `packs`: inputs that only this step reads. */
static const struct {
  ane_prim op;
  prim_prepare_fn prepare;
  uint32_t packs;
} prepared[] = {
    {ANE_PRIM_matmul, prim_prepare_matmul, 1u << 1},
    {ANE_PRIM_linear, prim_prepare_matmul, 1u << 1},
    {ANE_PRIM_conv, prim_prepare_conv, 1u << 1},
    {ANE_PRIM_matmul_integer, prim_prepare_matmul_integer, 1u << 1},
    {ANE_PRIM_matmul_dequantize, prim_prepare_matmul_dequantize, 0},
    {ANE_PRIM_matmul_nbits, prim_prepare_matmul_nbits, 0},
    {ANE_PRIM_group_query_attention, prim_prepare_group_query_attention, 0},
    {ANE_PRIM_lstm, prim_prepare_lstm, 1u << 3 | 1u << 4 | 1u << 7 | 1u << 8},
    {ANE_PRIM_gru, prim_prepare_gru, 1u << 2 | 1u << 3},
    {ANE_PRIM_rnn, prim_prepare_rnn, 1u << 2 | 1u << 3},
    {ANE_PRIM_moe, prim_prepare_moe, 1u << 2 | 1u << 4 | 1u << 6},
    {ANE_PRIM_qmoe, prim_prepare_qmoe, 0},
};

/* ---- Parameters of an op -------------------------------------------------------------------------------------------*/

/* Returns the next parameter of a list: its name, *len without the mark after it, and the mark; NULL at the end. */
static const char *next_param(const char **list, size_t *len, char *mark) {
  const char *p = *list;
  size_t n = strcspn(p, " ");
  if (!n) return NULL;
  *list = p + n + (p[n] == ' ');
  *mark = p[n - 1] == '?' || p[n - 1] == '*' ? p[n - 1] : 0;
  *len = n - (*mark != 0);
  return p;
}

int ane_prim_param(ane_prim op, const char *name) {
  const char *list = ops[op].params, *p;
  size_t len, want = strlen(name);
  char mark;
  for (int at = 0; (p = next_param(&list, &len, &mark)); at++)
    if (len == want && memcmp(p, name, len) == 0) return at;
  return -1;
}

struct ane_prim_info ane_prim_info(ane_prim op) {
  struct ane_prim_info info = {ops[op].name, ops[op].params, ops[op].max_outputs, 0, false};
  const char *list = info.params;
  size_t len;
  char mark = 0;
  while (next_param(&list, &len, &mark)) info.n_params++;
  info.variadic = mark == '*';
  info.n_params -= info.variadic;
  return info;
}

int prim_first(const struct ane_prim_call *c) { return ane_prim_info(c->op).n_params; }

const struct ane_dyn *prim_in(const struct ane_prim_call *c, const char *name) {
  int i = ane_prim_param(c->op, name);
  return i >= 0 && i < c->n_in ? c->in[i] : NULL;
}

/* Checks that every required input is present, and nothing beyond the parameters. */
static ane_status check_inputs(struct ane_prim_call *c) {
  const char *list = ops[c->op].params, *p;
  size_t len;
  char mark = 0;
  int at = 0;
  for (; (p = next_param(&list, &len, &mark)) && mark != '*'; at++)
    if (!mark && (at >= c->n_in || !c->in[at])) return prim_fail(c, ANE_INVALID, "the input %.*s is missing", (int)len, p);
  if (mark != '*' && c->n_in > at) return prim_fail(c, ANE_INVALID, "has %d inputs, but must have at most %d", c->n_in, at);
  for (; at < c->n_in; at++)
    if (!c->in[at]) return prim_fail(c, ANE_INVALID, "the input %d is missing", at + 1);
  if (c->n_out > ops[c->op].max_outputs)
    return prim_fail(c, ANE_INVALID, "has %d outputs, but must have at most %d", c->n_out, ops[c->op].max_outputs);
  return ANE_OK;
}

/* ---- Calling -------------------------------------------------------------------------------------------------------*/

ane_status ane_prim_run(struct ane_prim_call *c) {
  c->status = ANE_OK;
  c->temps = NULL;
  ane_status st = check_inputs(c);
  if (!st) st = ops[c->op].run(c);
  if (!st) st = c->status;
  prim_drop(c, NULL);
  return st;
}

ane_status ane_prim_prepare(struct ane_prim_call *c, struct ane_prim_state **state) {
  *state = NULL;
  c->status = ANE_OK;
  c->temps = NULL;
  ane_status st = ANE_OK;
  for (size_t i = 0; i < ANE_COUNT(prepared); i++)
    if (prepared[i].op == c->op) st = prepared[i].prepare(c, state);
  if (!st) st = c->status;
  prim_drop(c, NULL);
  if (st) ane_prim_state_free(*state), *state = NULL;
  return st;
}

bool ane_prim_packs(ane_prim op, int input) {
  for (size_t i = 0; i < ANE_COUNT(prepared); i++)
    if (prepared[i].op == op) return input < 32 && prepared[i].packs >> input & 1;
  return false;
}

/* ---- State ---------------------------------------------------------------------------------------------------------*/

struct ane_prim_state *prim_state_new(struct ane_prim_call *c, int n) {
  struct ane_prim_state *s = ane_calloc(1, sizeof *s + (size_t)n * sizeof s->m[0]);
  if (!s)
    prim_fail(c, ANE_NOMEM, "no memory for packed weights");
  else
    s->n = n;
  return s;
}

void ane_prim_state_free(struct ane_prim_state *s) {
  for (int i = 0; s && i < s->n; i++) prim_matrix_free(&s->m[i]);
  ane_free(s);
}

bool ane_prim_state_packed(const struct ane_prim_state *s) {
  bool all = true;
  for (int i = 0; i < s->n; i++) all = all && s->m[i].packed.layout != ANE_LAYOUT_ROWS;
  return all;
}

int64_t ane_prim_state_rows(const struct ane_prim_state *s) { return s->n ? s->m[0].rows : 0; }

uint64_t ane_prim_state_bytes(const struct ane_prim_state *s) {
  uint64_t sum = 0;
  for (int i = 0; s && i < s->n; i++) sum += s->m[i].bytes;
  return sum;
}

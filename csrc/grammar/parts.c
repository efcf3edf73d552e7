/* Grammars of parts: see parts.h. */
#include "base/alloc.h"
#include "grammar/engine.h"
#include "grammar/regex_internal.h"

#include <string.h>

enum { MAX_STATES = 1 << 16, MAX_NODES = 1 << 22 };

/* ---- Reading the description -------------------------------------------------------------------------------------*/

static struct parts_link *link_of(const struct parts_node *node, uint8_t byte) {
  struct parts_link *l = node->links;
  while (l && l->byte != byte) l = l->next;
  return l;
}

static ane_status add_nodes(struct parts *p, uint32_t n, struct ane_error *err) {
  if (p->n_nodes + n > MAX_NODES) return ane_fail(err, ANE_RANGE, "the grammar is too large");
  for (uint32_t i = 0; i < n; i++) {
    if (!re_grow((void **)&p->nodes, &p->room_nodes, p->n_nodes, sizeof *p->nodes))
      return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
    p->nodes[p->n_nodes++] = (struct parts_node){0};
  }
  return ANE_OK;
}

static ane_status add_link(struct parts *p, uint32_t from, uint8_t byte, uint32_t to, struct ane_error *err) {
  struct parts_link *l = ane_arena_array(&p->arena, 1, sizeof *l);
  if (!l) return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  *l = (struct parts_link){.next = p->nodes[from].links, .to = to, .byte = byte};
  p->nodes[from].links = l;
  return ANE_OK;
}

/* Adds a literal. Literals of one state share common prefixes, and none is a prefix of another. */
static ane_status add_literal(struct parts *p, const struct ane_part *x, struct ane_error *err) {
  uint32_t at = x->from;
  if (x->text.len == 0) return ane_fail(err, ANE_INVALID, "a literal part is empty");
  for (size_t i = 0; i < x->text.len; i++) {
    uint8_t byte = (uint8_t)x->text.data[i];
    const struct parts_link *l = link_of(&p->nodes[at], byte);
    bool last = i + 1 == x->text.len;
    if (l && (last || l->to < p->n_states))
      return ane_fail(err, ANE_INVALID, "one literal part is the start of another: %.*s", (int)ANE_MIN(x->text.len, (size_t)100),
                      x->text.data);
    if (l) {
      at = l->to;
      continue;
    }
    uint32_t to = last ? x->to : p->n_nodes;
    ane_status st = last ? ANE_OK : add_nodes(p, 1, err);
    if (st == ANE_OK) st = add_link(p, at, byte, to, err);
    if (st) return st;
    at = to;
  }
  return ANE_OK;
}

static ane_status add_value(struct ane_grammar *g, const struct ane_part *x, const struct ane_json_options *options,
                            struct ane_error *err) {
  struct json_values **list = ane_realloc(g->values, (g->n_values + 1) * sizeof *list);
  if (list) g->values = list;
  if (!list || !(list[g->n_values] = ane_calloc(1, sizeof **list))) return ane_fail(err, ANE_NOMEM, "no memory for a grammar");
  g->n_values++;
  g->parts.nodes[x->from].value = g->n_values;
  return json_values_make(list[g->n_values - 1], x->text.data, x->text.len, options, err);
}

static ane_status add_pattern(struct ane_grammar *g, const struct ane_part *x, struct ane_error *err) {
  ane_re re = RE_NONE;
  ane_status st = re_parse(&g->pool, x->text.data, x->text.len, 0, &re, err);
  if (st) return st;
  uint32_t state = g->parts.nodes[x->from].pattern = re_begin(&g->pool, re);
  st = engine_failed(g, err);
  if (st == ANE_OK && !state) st = ane_fail(err, ANE_INVALID, "no text fulfils a pattern of the grammar");
  if (st == ANE_OK && g->pool.states[state].accepts) st = ane_fail(err, ANE_UNSUPPORTED, "a pattern part accepts the empty text");
  return st;
}

static ane_status add_part(struct ane_grammar *g, const struct ane_part *x, const struct ane_json_options *options,
                           struct ane_error *err) {
  struct parts *p = &g->parts;
  if (x->from >= p->n_states || x->to >= p->n_states) return ane_fail(err, ANE_INVALID, "a part has a state that does not exist");
  struct parts_node *from = &p->nodes[x->from];
  if (from->value || from->pattern || (x->kind != ANE_PART_LITERAL && from->links))
    return ane_fail(err, ANE_INVALID, "a part that is not a literal must be the only one of its state");
  if (x->kind == ANE_PART_LITERAL) return add_literal(p, x, err);
  from->after = x->to;
  return x->kind == ANE_PART_JSON ? add_value(g, x, options, err) : add_pattern(g, x, err);
}

/* Returns the state at the beginning of a node. */
static struct parts_state enter(const struct ane_grammar *g, uint32_t node, uint32_t position) {
  const struct parts_node *x = &g->parts.nodes[node];
  struct parts_state st = {.node = node, .regex = x->pattern};
  if (x->value) st.json = g->values[x->value - 1]->start;
  st.json.position = position;
  return st;
}

ane_status parts_make(struct ane_grammar *g, const struct ane_part *list, size_t n, const uint32_t *ends, size_t n_ends,
                      const struct ane_json_options *options, struct ane_error *err) {
  struct parts *p = &g->parts;
  uint32_t n_states = 1;
  ane_status st = n > MAX_STATES ? ane_fail(err, ANE_RANGE, "the grammar is too large") : ANE_OK;
  for (size_t i = 0; i < n && st == ANE_OK; i++) {
    n_states = ANE_MAX(n_states, ANE_MAX(list[i].from, list[i].to) + 1);
    if (list[i].from >= MAX_STATES || list[i].to >= MAX_STATES) st = ane_fail(err, ANE_RANGE, "the grammar is too large");
  }
  if (st == ANE_OK) st = add_nodes(p, n_states, err);
  p->n_states = n_states;
  for (size_t i = 0; i < n && st == ANE_OK; i++) st = add_part(g, &list[i], options, err);
  for (size_t i = 0; i < n_ends && st == ANE_OK; i++) {
    if (ends[i] >= n_states) return ane_fail(err, ANE_INVALID, "an end is not a state");
    p->nodes[ends[i]].accepts = true;
  }
  if (st == ANE_OK) g->start.parts = enter(g, 0, 0);
  return st;
}

void parts_free(struct parts *p) {
  ane_arena_free(&p->arena);
  ane_free(p->nodes);
  memset(p, 0, sizeof *p);
}

/* ---- Steps -------------------------------------------------------------------------------------------------------*/

/* Returns whether the value or pattern of the state's node may end here. */
static bool may_leave(struct ane_grammar *g, const struct parts_state *st) {
  const struct parts_node *x = &g->parts.nodes[st->node];
  if (x->value) return json_accepts(&g->values[x->value - 1]->machine, &st->json);
  return x->pattern && g->pool.states[st->regex].accepts;
}

/* A value or pattern continues as long as it can, so the part after it must not begin with a byte that it could consume. */
bool parts_step(struct ane_grammar *g, const struct parts_state *in, uint8_t byte, struct parts_state *out) {
  const struct parts_node *nodes = g->parts.nodes;
  struct parts_state st = *in;
  for (;;) {
    const struct parts_node *x = &nodes[st.node];
    if (x->value) {
      struct json_state next;
      if (json_step(&g->values[x->value - 1]->machine, &st.json, byte, &next)) {
        st.json = next;
        *out = st;
        return true;
      }
    } else if (x->pattern) {
      uint32_t next = re_next(&g->pool, st.regex, byte);
      if (next && !g->pool.full) {
        st.regex = next;
        *out = st;
        return true;
      }
    } else {
      const struct parts_link *l = link_of(x, byte);
      if (!l) return false;
      *out = enter(g, l->to, st.json.position);
      return true;
    }
    if (!may_leave(g, &st)) return false;
    st = enter(g, x->after, st.json.position);
  }
}

bool parts_accepts(struct ane_grammar *g, const struct parts_state *in) {
  const struct parts_node *x = &g->parts.nodes[in->node];
  if (!x->value && !x->pattern) return x->accepts;
  return may_leave(g, in) && g->parts.nodes[x->after].accepts;
}

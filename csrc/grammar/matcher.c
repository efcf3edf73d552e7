/* Matchers: one text against a grammar, and the tokens that may come next. */
#include "base/alloc.h"
#include "grammar/engine.h"
#include "grammar/regex_internal.h"
#include "grammar/mask.h"

#include <string.h>

static void use(struct ane_matcher *m) {
  for (uint32_t i = 0; i < m->g->n_values; i++) m->g->values[i]->machine.tape = &m->tape;
}
static union engine_state *now(struct ane_matcher *m) { return &m->states[m->n].st; }

ane_status ane_matcher_make(struct ane_matcher **out, struct ane_grammar *g, struct ane_error *err) {
  struct ane_matcher *m = *out = ane_calloc(1, sizeof *m);
  if (m) {
    m->g = g;
    m->path = ane_malloc((TOKEN_LONGEST + 1) * sizeof *m->path);
    if (m->path && re_grow((void **)&m->states, &m->room, 0, sizeof *m->states)) {
      m->states[0] = (struct matcher_state){.st = g->start};
      return ANE_OK;
    }
  }
  ane_matcher_destroy(m);
  *out = NULL;
  return ane_fail(err, ANE_NOMEM, "no memory for a matcher");
}

void ane_matcher_destroy(struct ane_matcher *m) {
  for (uint32_t i = 0; m && i < m->g->n_values; i++)
    if (m->g->values[i]->machine.tape == &m->tape) m->g->values[i]->machine.tape = NULL;
  ane_matcher_abandon(m);
}

void ane_matcher_abandon(struct ane_matcher *m) {
  if (!m) return;
  json_tape_free(&m->tape);
  ane_free(m->states);
  ane_free(m->path);
  ane_free(m);
}

ane_status ane_matcher_push(struct ane_matcher *m, const char *bytes, size_t n, bool canonical, bool *accepted,
                            struct ane_error *err) {
  *accepted = false;
  if (!re_grow((void **)&m->states, &m->room, m->n + 1, sizeof *m->states))
    return ane_fail(err, ANE_NOMEM, "no memory for a matcher");
  use(m);
  union engine_state st = *now(m);
  m->tape.canonical = canonical;
  size_t i = 0;
  while (i < n && engine_step(m->g, &st, (uint8_t)bytes[i], &st)) i++;
  m->tape.canonical = false;
  if (i < n) {
    json_rewind(&m->tape, m->states[m->n].mark);
    return engine_failed(m->g, err);
  }
  m->states[++m->n] = (struct matcher_state){st, json_mark_of(&m->tape)};
  *accepted = true;
  return ANE_OK;
}

uint32_t ane_matcher_pushes(const struct ane_matcher *m) { return m->n; }

void ane_matcher_rewind(struct ane_matcher *m, uint32_t n) {
  m->n = ANE_MIN(n, m->n);
  json_rewind(&m->tape, m->states[m->n].mark);
}

bool ane_matcher_accepts(struct ane_matcher *m) {
  use(m);
  return engine_accepts(m->g, now(m));
}

ane_status ane_matcher_finished(struct ane_matcher *m, bool *finished, struct ane_error *err) {
  use(m);
  struct json_mark mark = json_mark_of(&m->tape);
  union engine_state next;
  *finished = engine_accepts(m->g, now(m));
  for (int b = 0; b < 256 && *finished; b++) *finished = !engine_step(m->g, now(m), (uint8_t)b, &next);
  json_rewind(&m->tape, mark);
  return engine_failed(m->g, err);
}

ane_status ane_matcher_forced(struct ane_matcher *m, char *bytes, size_t room, size_t *n, struct ane_error *err) {
  use(m);
  struct json_tape *tape = &m->tape;
  struct json_mark mark = json_mark_of(&m->tape);
  union engine_state st = *now(m);
  tape->canonical = true;
  for (*n = 0; *n < room && !engine_accepts(m->g, &st); (*n)++) {
    union engine_state next;
    int choices = 0;
    for (int b = 0; b < 256 && choices < 2; b++)
      if (engine_step(m->g, &st, (uint8_t)b, &next)) {
        choices++;
        bytes[*n] = (char)b;
      }
    if (choices != 1 || !engine_step(m->g, &st, (uint8_t)bytes[*n], &st))
      break; /* steps again: the tape holds the last byte that was tried */
  }
  json_rewind(&m->tape, mark);
  tape->canonical = false;
  return engine_failed(m->g, err);
}

/* Counts the bits of n words. The counts of pairs, fours and bytes are added within words (Warren, Hacker's Delight, 5-1); sums
 * of bytes are collected for as many words as a byte can count. */
static uint32_t count_bits(const uint32_t *words, uint32_t n) {
  uint32_t total = 0;
  for (uint32_t i = 0; i < n;) {
    uint32_t sums = 0;
    for (uint32_t end = ANE_MIN(n, i + 31); i < end; i++) {
      uint32_t x = words[i];
      x -= x >> 1 & 0x55555555;
      x = (x & 0x33333333) + (x >> 2 & 0x33333333);
      sums += (x + (x >> 4)) & 0x0f0f0f0f;
    }
    sums = (sums & 0x00ff00ff) + (sums >> 8 & 0x00ff00ff);
    total += (sums + (sums >> 16)) & 0xffff;
  }
  return total;
}

ane_status ane_matcher_mask(struct ane_matcher *m, const struct ane_token_tree *t, uint32_t *mask, uint32_t *n,
                            struct ane_error *err) {
  use(m);
  memset(mask, 0, t->words * sizeof *mask);
  struct json_mark mark = json_mark_of(&m->tape);
  struct masking k = {.m = m, .t = t, .mask = mask};
  m->path[0] = *now(m);
  m->tape.canonical = true;
  if (m->g->kind == ENGINE_REGEX || m->g->kind == ENGINE_RULES)
    mask_state(&k);
  else if (!mask_string(&k))
    mask_walk(&k, t->nodes, 0, t->n_nodes);
  m->tape.canonical = false;
  json_rewind(&m->tape, mark);
  *n = count_bits(mask, t->words);
  return engine_failed(m->g, err);
}

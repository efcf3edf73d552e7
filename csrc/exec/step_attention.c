/* attention and fused_attention: applies norm and rope to q and k in place, writes k and v to the state, then computes attention.
 * The threads first divide the keys and values of all tokens; after a barrier they divide blocks of queries. The thread that
 * takes a block of queries also applies their norm and rope, so that the block is read from memory only once. If each item has
 * one token, a task does all of this for a kv head of an item, and there is no barrier. The attention of one token over many
 * tiles is also divided by tiles; its parts are merged in the order in which one thread would have computed them. */
#include "base/prefetch.h"
#include "exec/planner.h"
#include "exec/session_internal.h"
#include "exec/thread_ctx.h"

enum { LEAST_ROWS = 24, BLOCKS_PER_THREAD = 8, TILES_PER_PART = 4, SPLIT_FROM_TILES = 8, KEY_RUN = 32 };

static const struct ane_kv *kv_of(const struct run *r, const struct step *s, int32_t item) {
  return &r->items[item].session->kv[s->attention.kv];
}

/* Applies norm and rope to n consecutive heads of token `tok`, in the order that the node specifies. */
static void norm_rope_heads(const struct thread_ctx *tc, const struct step *s, float *x, int64_t n, const float *weight,
                            int64_t tok) {
  int64_t d = s->attention.head_dim;
  const struct slot *table = s->in[2];
  if (s->attention.norm == 1) tc->k->rms_norm(x, d, weight, s->attention.eps, x, d, n, d);
  if (table) tc->k->rope(x, thread_data(tc, table) + tok * table->channels, n, d, table->channels, s->attention.half);
  if (s->attention.norm == 2) tc->k->rms_norm(x, d, weight, s->attention.eps, x, d, n, d);
}

/* The heads of this rank in token `tok`: heads_at in q or the output, kv_heads_at in k or v. */
static float *heads_at(const struct thread_ctx *tc, const struct step *s, const struct slot *slot, int64_t tok) {
  return thread_data(tc, slot) + tok * slot->channels + s->attention.first * s->attention.head_dim;
}
static float *kv_heads_at(const struct thread_ctx *tc, const struct step *s, const struct slot *slot, int64_t tok) {
  return thread_data(tc, slot) + tok * slot->channels + s->attention.first_kv * s->attention.head_dim;
}

/* Applies norm and rope to the query heads of kv head h, tokens [from, to). */
static void prepare_queries(const struct thread_ctx *tc, const struct step *s, int64_t h, int64_t from, int64_t to) {
  int64_t group = s->attention.heads / s->attention.kv_heads;
  for (int64_t tok = from; tok < to; tok++)
    norm_rope_heads(tc, s, heads_at(tc, s, s->in[0], tok) + h * group * s->attention.head_dim, group, s->attention.q_norm, tok);
}

/* Writes keys and values of kv head h to the state: n consecutive tokens of an item, starting at `tok`. */
static void write_keys(const struct thread_ctx *tc, const struct step *s, int32_t item, int64_t h, int64_t tok, int64_t n) {
  int64_t d = s->attention.head_dim, row = s->in[1]->channels;
  float *k = kv_heads_at(tc, s, s->in[1], tok);
  for (int64_t i = 0; i < n; i++) norm_rope_heads(tc, s, k + i * row + h * d, 1, s->attention.k_norm, tok + i);
  tc->k->kv_write(kv_of(tc->r, s, item), tc->r->positions[tok], n, k, kv_heads_at(tc, s, s->in[3], tok), row, h, h + 1);
}

/* The number of tokens of an item up to the next multiple of KEY_RUN positions, at most to `end`. */
static int64_t key_run(const struct run *r, int64_t tok, int64_t end) {
  return ANE_MIN(KEY_RUN - r->positions[tok] % KEY_RUN, end - tok);
}

/* Must the key at position 0 of item i be written before its other keys in this run, because they are stored relative to it?
 * first: the item's first token. */
static bool base_first(const struct run *r, const struct step *s, int32_t i, int64_t first) {
  return s->attention.writes && r->positions[first] == 0 && r->items[i].n > 1 && kv_of(r, s, i)->relative;
}

/* Writes the keys that must be first, divided by heads. All threads must call it: they wait if there are any. */
static void write_bases(const struct thread_ctx *tc, const struct step *s) {
  const struct run *r = tc->r;
  int64_t first = 0, task = 0;
  for (int32_t i = 0; i < r->n_items; first += r->items[i++].n)
    for (int64_t h = 0; h < s->attention.kv_heads && base_first(r, s, i, first); h++)
      if (task++ % tc->threads == tc->thread) write_keys(tc, s, i, h, first, 1);
  if (task > 0) thread_barrier(tc);
}

/* Writes all keys and values, divided by runs of tokens and by heads. queries: also prepares the queries; for single tokens. q,
 * k, table and v are in[0] .. in[3]. */
static void prepare_heads(const struct thread_ctx *tc, const struct step *s, bool queries) {
  const struct run *r = tc->r;
  int64_t kvh = s->attention.kv_heads, task = 0, units = 0, from, to, tok = 0, end = 0;
  write_bases(tc, s);
  for (int32_t i = 0; i < r->n_items; i++) {
    tok = end + base_first(r, s, i, end);
    for (end += r->items[i].n; tok < end; tok += key_run(r, tok, end)) units += kvh;
  }
  ane_split(units, tc->thread, tc->threads, &from, &to);
  end = 0;
  for (int32_t i = 0; i < r->n_items && task < to; i++) {
    tok = end + base_first(r, s, i, end);
    for (end += r->items[i].n; tok < end; tok += key_run(r, tok, end), task += kvh)
      for (int64_t u = ANE_MAX(from, task); u < ANE_MIN(to, task + kvh); u++) {
        if (s->attention.writes) write_keys(tc, s, i, u - task, tok, key_run(r, tok, end));
        if (queries) prepare_queries(tc, s, u - task, tok, tok + 1);
      }
  }
}

static struct ane_attention attention_of(const struct thread_ctx *tc, const struct step *s, int32_t item, int64_t first) {
  int64_t width = s->in[0]->channels;
  return (struct ane_attention){.kv = kv_of(tc->r, s, item),
                                .q = heads_at(tc, s, s->in[0], first),
                                .out = heads_at(tc, s, s->out[0], first),
                                .ld_q = width,
                                .ld_out = width,
                                .t = tc->r->items[item].n,
                                .n_heads = s->attention.heads,
                                .pos = tc->r->positions[first],
                                .window = s->attention.window,
                                .ahead = s->attention.ahead,
                                .sinks = s->attention.sinks,
                                .scale = s->attention.scale,
                                .softcap = s->attention.softcap};
}

/* Tiles that hold a key visible to the query at position p. */
static void visible_tiles(const struct step *s, int64_t p, int64_t *from, int64_t *to) {
  int64_t w = s->attention.window, first = w > 0 && p >= w ? p - w + 1 : 0;
  *from = first / ANE_TILE;
  *to = p / ANE_TILE + 1;
}

static int64_t part_runs(int64_t tiles) { return (tiles + TILES_PER_PART - 1) / TILES_PER_PART; }

/* Sets the hint (next_k, next_v) to the tile that the thread reads next, for a query at position p. */
static void hint_tile(struct ane_attention *a, const struct ane_kv *kv, int64_t h, int64_t tile, int64_t p) {
  a->next_k = ane_kv_k(kv, h, tile);
  a->next_v = ane_kv_v(kv, h, tile);
  a->next_keys = ANE_MIN(p + 1 - tile * ANE_TILE, ANE_TILE);
}

/* Sets the hint to the first tile of unit `unit` of item `item`. The units of an item are its kv heads. first: the item's first
 * token. */
static void hint_next(const struct thread_ctx *tc, const struct step *s, int64_t unit, int32_t item, int64_t first,
                      struct ane_attention *a) {
  const struct run *r = tc->r;
  for (; item < r->n_items && unit >= s->attention.kv_heads; unit -= s->attention.kv_heads) first += r->items[item++].n;
  if (item == r->n_items) return;
  int64_t tile, unused;
  visible_tiles(s, r->positions[first], &tile, &unused);
  hint_tile(a, kv_of(r, s, item), unit, tile, r->positions[first]);
}

/* One token of one session: parts by kv head and run of tiles, a barrier, then a merge per kv head. The next run is most likely
 * the thread's next task, so its first tile is prefetched. */
static void attention_split(struct thread_ctx *tc, const struct step *s, struct ane_attention *a, int64_t tile_from,
                            int64_t tile_to) {
  int64_t kvh = s->attention.kv_heads, size = ane_part_floats(a), tiles = tile_to - tile_from;
  int64_t runs = part_runs(tiles);
  int stolen = 0;
  for (int64_t u; (u = thread_claim(tc, s, 0, kvh * runs, &stolen)) >= 0;) {
    int64_t h = u / runs, from = tile_from + u % runs * TILES_PER_PART, next = u + 1;
    a->next_k = a->next_v = NULL;
    if (next < kvh * runs) hint_tile(a, a->kv, next / runs, tile_from + next % runs * TILES_PER_PART, a->pos);
    tc->k->attention_part(a, h, 0, from, ANE_MIN(from + TILES_PER_PART, tile_to),
                          tc->p->parts + (h * tiles + from - tile_from) * size, tc->mem + tc->p->thread_kernel);
  }
  thread_barrier(tc);
  for (int64_t h; (h = thread_next(tc, s, 1)) < kvh;)
    tc->k->attention_merge(a, h, 0, tile_from, tile_to, tc->p->parts + h * tiles * size);
}

/* Does a single token see enough tiles to divide the work by tiles? */
static bool is_split(const struct thread_ctx *tc, const struct step *s, int64_t *from, int64_t *to) {
  if (tc->r->n_items > 1 || tc->r->items[0].n > 1 || tc->threads == 1) return false;
  visible_tiles(s, tc->r->positions[0], from, to);
  return *to - *from >= SPLIT_FROM_TILES;
}

/* The number of queries in a block, for an item of n tokens: as many as one pass over the tiles can take, or fewer if the threads
 * would then have too few blocks for an even load. */
static int64_t query_block(const struct thread_ctx *tc, const struct step *s, int64_t n) {
  int64_t group = s->attention.heads / s->attention.kv_heads, most = ANE_MAX(ANE_ATT_ROWS / group, (int64_t)1);
  int64_t share = n * s->attention.kv_heads / (BLOCKS_PER_THREAD * tc->threads), least = (LEAST_ROWS + group - 1) / group;
  return ANE_MIN(ANE_MAX(share, least), most);
}

/* Prefetches the cache lines of a key and a value that will be written: kv head unit % heads of item unit / heads, where heads is
 * the number of kv heads. The key has one line per dimension. Not if their tile is the first that the query sees, which hint_next
 * has announced. A prefetch for writing is slower: attention of 32 sequences of 4, 64 and 200 tokens takes 3.2, 6.7 and 12.6 ms
 * with it, and 2.5, 5.1 and 10.4 ms without (SmolLM2, Xeon with AMX, two threads). */
static void prefetch_key(const struct thread_ctx *tc, const struct step *s, int64_t unit) {
  const int32_t item = (int32_t)(unit / s->attention.kv_heads);
  if (item >= tc->r->n_items) return;
  const int64_t h = unit % s->attention.kv_heads, p = tc->r->positions[item], tile = p / ANE_TILE, j = p % ANE_TILE;
  int64_t first, unused;
  visible_tiles(s, p, &first, &unused);
  if (tile == first) return;
  const struct ane_kv *kv = kv_of(tc->r, s, item);
  const int64_t size = (int64_t)ane_dtype_info(kv->dtype)->bytes, pair = kv->dtype == ANE_I16 ? 2 : 1;
  const char *k = ane_kv_k(kv, h, tile), *v = ane_kv_v(kv, h, tile);
  for (int64_t d = 0; d < kv->head_dim; d += pair) ane_prefetch(k + ane_att_k(kv, d, j) * size, size);
  ane_prefetch(v + ane_att_v(kv, j, 0) * size, pair * kv->head_dim * size);
}

/* Does each item have one token? */
static bool is_single(const struct run *r) { return r->tokens == r->n_items; }

/* One token of each item: a task writes the key and value of one kv head, which no other task reads, and computes its attention.
 * So no thread waits for another, and a thread reads the heads of an item, which lie side by side, one after the other. */
static void attention_single(struct thread_ctx *tc, const struct step *s) {
  const int64_t kvh = s->attention.kv_heads, total = tc->r->n_items * kvh;
  int stolen = 0;
  for (int64_t u; (u = thread_claim(tc, s, 0, total, &stolen)) >= 0;) {
    const int32_t item = (int32_t)(u / kvh);
    const int64_t h = u % kvh;
    struct ane_attention a = attention_of(tc, s, item, item);
    hint_next(tc, s, h + 1, item, item, &a);
    if (s->attention.writes) {
      prefetch_key(tc, s, u + 1);
      write_keys(tc, s, item, h, item, 1);
    }
    prepare_queries(tc, s, h, item, item + 1);
    tc->k->attention(&a, h, 0, 1, tc->mem + tc->p->thread_kernel);
  }
}

static void run_attention(struct thread_ctx *tc, const struct step *s) {
  const struct run *r = tc->r;
  int64_t from, to;
  bool split = is_split(tc, s, &from, &to);
  if (!split && is_single(r)) {
    attention_single(tc, s);
    return;
  }
  prepare_heads(tc, s, split);
  thread_barrier(tc);
  if (split) {
    struct ane_attention a = attention_of(tc, s, 0, 0);
    attention_split(tc, s, &a, from, to);
    return;
  }
  /* Blocks of queries by kv head. The last block of an item sees the most keys, so it goes first. */
  int64_t next = thread_next(tc, s, 0), before = 0, first = 0;
  for (int32_t i = 0; i < r->n_items; first += r->items[i++].n) {
    int64_t n = r->items[i].n, block = query_block(tc, s, n), blocks = (n + block - 1) / block,
            units = blocks * s->attention.kv_heads;
    for (; next < before + units; next = thread_next(tc, s, 0)) {
      int64_t h = (next - before) % s->attention.kv_heads, b = blocks - 1 - (next - before) / s->attention.kv_heads;
      int64_t q0 = b * block, q1 = ANE_MIN(q0 + block, n);
      struct ane_attention a = attention_of(tc, s, i, first);
      if (n == 1) hint_next(tc, s, next - before + tc->threads, i, first, &a);
      prepare_queries(tc, s, h, first + q0, first + q1);
      tc->k->attention(&a, h, q0, q1, tc->mem + tc->p->thread_kernel);
    }
    before += units;
  }
}

/* For one token over many tiles: prefetches the first tile of the thread's tasks. */
static void attention_prefetch(const struct thread_ctx *tc, const struct step *s, struct prefetch *a) {
  int64_t from, to, begin, end;
  if (!is_split(tc, s, &from, &to)) return;
  const struct ane_kv *kv = kv_of(tc->r, s, 0);
  int64_t runs = part_runs(to - from);
  ane_split(kv->heads * runs, tc->thread, tc->threads, &begin, &end);
  int64_t h = begin / runs, tile = from + begin % runs * TILES_PER_PART;
  if (h >= kv->heads) return; /* the thread has no task */
  prefetch_add(a, ane_kv_k(kv, h, tile), ANE_MIN(kv->tile_bytes, (size_t)PREFETCH_BYTES / 2));
  prefetch_add(a, ane_kv_v(kv, h, tile), ANE_MIN(kv->stride - kv->tile_bytes, (size_t)PREFETCH_BYTES / 2));
}

/* Counts keys and values of each visible tile once. A query and a key take 2 * head_dim operations for the score, and as many for
 * the weighted sum of values. */
static void attention_cost(const struct thread_ctx *tc, const struct step *s, struct ane_step_profile *p) {
  for (int32_t i = 0; i < tc->r->n_items; i++) {
    const struct ane_run_item *it = &tc->r->items[i];
    const struct ane_kv *kv = kv_of(tc->r, s, i);
    int64_t first = it->session->length, last = first + it->n - 1, from, to, unused;
    visible_tiles(s, first, &from, &unused);
    visible_tiles(s, last, &unused, &to);
    p->bytes += (double)((to - from) * ANE_TILE * kv->heads * kv->head_dim) * 2 * ane_dtype_info(kv->dtype)->bytes;
    for (int64_t q = first; q <= last; q++) {
      int64_t end = ANE_MIN(q + s->attention.ahead, last) + 1,
              begin = s->attention.window > 0 ? ANE_MAX(end - s->attention.ahead - s->attention.window, (int64_t)0) : 0;
      p->ops += 4.0 * (double)((end - begin) * s->attention.head_dim * s->attention.heads);
    }
  }
}

static ane_status plan_sinks(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  ane_status st = planner_vector(pl, ane_node_input(n, 5), 0, &s->attention.sinks, err);
  float by = (float)ane_node_float(n, "sink_scale");
  if (st || !s->attention.sinks) return st;
  s->attention.sinks += s->attention.first;
  if (by == 1) return ANE_OK;
  float *scaled = ane_arena_array(&pl->p->arena, (size_t)s->attention.heads, sizeof *scaled);
  if (!scaled) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  for (int64_t h = 0; h < s->attention.heads; h++) scaled[h] = s->attention.sinks[h] * by;
  s->attention.sinks = scaled;
  return ANE_OK;
}

/* Sets the heads of this rank: all, unless exchange_divides_heads. */
static void plan_heads(struct planner *pl, const struct ane_node *n, struct step *s) {
  int64_t kv_heads = ane_node_int(n, "kv_heads"), heads = ane_node_int(n, "heads"), group = heads / kv_heads;
  s->attention.head_dim = s->in[0]->channels / heads;
  s->attention.kv_heads = pl->p->kv[s->attention.kv].heads;
  s->attention.heads = s->attention.kv_heads * group;
  if (s->attention.kv_heads == kv_heads) return;
  s->attention.first_kv = s->attention.kv_heads * pl->p->o.tensor->rank;
  s->attention.first = s->attention.first_kv * group;
  for (int i = 0; i < 3; i++) pl->p->slots[n->inputs[i]].by_heads = true;
}

ane_status plan_attention(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  s->run = run_attention;
  s->cost = attention_cost;
  s->prefetch = attention_prefetch;
  s->in[0] = planner_slot(pl, n->inputs[0]);
  s->in[1] = planner_slot(pl, n->inputs[1]);
  s->in[3] = planner_slot(pl, n->inputs[2]);
  s->attention.kv = pl->kv_of[n->inputs[3]];
  s->attention.writes = !pl->kv_written[s->attention.kv];
  pl->kv_written[s->attention.kv] = true;
  plan_heads(pl, n, s);
  s->attention.window = ane_node_int(n, "window");
  s->attention.scale = (float)ane_node_float(n, "scale");
  s->attention.softcap = (float)ane_node_float(n, "softcap");
  s->attention.ahead = ane_node_int(n, "ahead");
  pl->p->bidirectional |= s->attention.ahead > 0;
  ane_status st = plan_sinks(pl, n, s, err);
  if (s->attention.sinks || s->attention.softcap > 0 || s->attention.ahead > 0) pl->p->kv[s->attention.kv].relative = false;
  if (st || n->op == ANE_OP_ATTENTION) return st;
  s->in[2] = planner_slot(pl, ane_node_input(n, 6));
  s->attention.half = ane_node_string(n, "layout")[0] == 'h';
  s->attention.norm = (int)ane_node_int(n, "norm");
  s->attention.eps = (float)ane_node_float(n, "eps");
  float offset = (float)ane_node_float(n, "offset");
  st = planner_vector(pl, ane_node_input(n, 7), offset, &s->attention.q_norm, err);
  return st ? st : planner_vector(pl, ane_node_input(n, 8), offset, &s->attention.k_norm, err);
}

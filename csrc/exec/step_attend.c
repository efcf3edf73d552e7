/* attend: norm and rope of q and k in place, k and v into the state, then attention. First all heads of all tokens are
 * shared out, then the threads meet, then queries are. One token over many tiles is cut by tiles as well: the parts are
 * merged in the order in which one thread would have walked them. */
#include "exec/exec_internal.h"

enum { QUERY_BLOCK = 32, TILES_A_PART = 4, SPLIT_FROM_TILES = 8 };

static const struct ane_kv *kv_of(const struct run *r, const struct step *s, int32_t item) { return &r->items[item].session->kv[s->attend.kv].kv; }

/* Norm and rope of one head, as the node asks. */
static void turn_head(const struct lane *l, const struct step *s, float *head, const float *weight, const float *table) {
  int64_t d = s->attend.head_dim;
  if (s->attend.norm == 1) l->k->rms_norm(head, d, weight, s->attend.eps, head, d, 1, d);
  if (table) l->k->rope(head, table, 1, d, s->in[2]->channels, s->attend.half);
  if (s->attend.norm == 2) l->k->rms_norm(head, d, weight, s->attend.eps, head, d, 1, d);
}

/* q, k, table and v are in[0] .. in[3]. */
static void prepare_heads(const struct lane *l, const struct step *s) {
  const struct run *r = l->r;
  int64_t d = s->attend.head_dim, heads = s->attend.heads, kvh = s->attend.kv_heads, from, to;
  float *q = lane_data(l, s->in[0]), *k = lane_data(l, s->in[1]);
  const float *v = lane_data(l, s->in[3]), *table = s->in[2] ? lane_data(l, s->in[2]) : NULL;
  ane_split(l->cols * (heads + kvh), l->thread, l->threads, &from, &to);
  int32_t item = 0;
  int64_t first = 0; /* column at which the item begins */
  for (int64_t u = from; u < to; u++) {
    int64_t col = u / (heads + kvh), h = u % (heads + kvh);
    while (col >= first + r->items[item].n) first += r->items[item++].n;
    const float *cs = table ? table + col * s->in[2]->channels : NULL;
    if (h < heads) {
      turn_head(l, s, q + (col * heads + h) * d, s->attend.q_norm, cs);
    } else {
      h -= heads;
      turn_head(l, s, k + (col * kvh + h) * d, s->attend.k_norm, cs);
      l->k->kv_write(kv_of(r, s, item), r->positions[col], k + col * kvh * d, v + col * kvh * d, h, h + 1);
    }
  }
}

static struct ane_attention attention_of(const struct lane *l, const struct step *s, int32_t item, int64_t first) {
  int64_t width = s->attend.heads * s->attend.head_dim;
  return (struct ane_attention){.kv = kv_of(l->r, s, item), .q = lane_data(l, s->in[0]) + first * width, .out = lane_data(l, s->out[0]) + first * width,
                                .ld_q = width, .ld_out = width, .t = l->r->items[item].n, .n_heads = s->attend.heads, .pos = l->r->positions[first],
                                .window = s->attend.window, .ahead = s->attend.ahead, .sinks = s->attend.sinks, .scale = s->attend.scale, .softcap = s->attend.softcap};
}

/* Tiles that hold a key visible to the query at p. */
static void visible_tiles(const struct step *s, int64_t p, int64_t *from, int64_t *to) {
  int64_t w = s->attend.window, first = w > 0 && p >= w ? p - w + 1 : 0;
  *from = first / ANE_TILE;
  *to = p / ANE_TILE + 1;
}

static int64_t part_runs(int64_t tiles) { return (tiles + TILES_A_PART - 1) / TILES_A_PART; }

/* One token of one session: parts by (kv head, run of tiles), meet, merge by kv head. */
static void attend_split(struct lane *l, const struct step *s, const struct ane_attention *a, int64_t tile_from, int64_t tile_to) {
  int64_t kvh = s->attend.kv_heads, size = ane_part_floats(a), tiles = tile_to - tile_from;
  int64_t runs = part_runs(tiles);
  int away = 0;
  for (int64_t u; (u = lane_claim(l, s, kvh * runs, &away)) >= 0;) {
    int64_t h = u / runs, t0 = tile_from + u % runs * TILES_A_PART;
    for (int64_t tile = t0; tile < ANE_MIN(t0 + TILES_A_PART, tile_to); tile++)
      l->k->attention_part(a, h, 0, tile, l->p->parts + (h * tiles + tile - tile_from) * size, l->mem + l->p->lane_kernel);
  }
  lane_barrier(l);
  for (int64_t h; (h = lane_next(l, s, 1)) < kvh;) l->k->attention_merge(a, h, 0, tile_from, tile_to, l->p->parts + h * tiles * size);
}

static void run_attend(struct lane *l, const struct step *s) {
  const struct run *r = l->r;
  prepare_heads(l, s);
  lane_barrier(l);
  if (r->n_items == 1 && l->cols == 1 && l->threads > 1) {
    int64_t from, to;
    visible_tiles(s, r->positions[0], &from, &to);
    if (to - from >= SPLIT_FROM_TILES) {
      struct ane_attention a = attention_of(l, s, 0, 0);
      attend_split(l, s, &a, from, to);
      return;
    }
  }
  /* Blocks of queries by kv head; the last block of an item sees most keys, so it is handed out first. */
  int64_t next = lane_next(l, s, 0), before = 0, first = 0;
  for (int32_t i = 0; i < r->n_items; first += r->items[i++].n) {
    int64_t n = r->items[i].n, blocks = (n + QUERY_BLOCK - 1) / QUERY_BLOCK, units = blocks * s->attend.kv_heads;
    for (; next < before + units; next = lane_next(l, s, 0)) {
      int64_t u = next - before, b = blocks - 1 - u / s->attend.kv_heads;
      struct ane_attention a = attention_of(l, s, i, first);
      l->k->attention(&a, u % s->attend.kv_heads, b * QUERY_BLOCK, ANE_MIN((b + 1) * QUERY_BLOCK, n), l->mem + l->p->lane_kernel);
    }
    before += units;
  }
}

/* One token over many tiles: the first tile of the thread's share. Heads lie one behind the other, keys apart from values. */
static void attend_ahead(const struct lane *l, const struct step *s, struct ahead *a) {
  int64_t from, to, begin, end;
  if (l->r->n_items > 1 || l->threads == 1) return;
  visible_tiles(s, l->r->positions[0], &from, &to);
  if (to - from < SPLIT_FROM_TILES) return;
  const struct ane_kv *kv = kv_of(l->r, s, 0);
  int64_t runs = part_runs(to - from);
  ane_split(kv->heads * runs, l->thread, l->threads, &begin, &end);
  size_t tile = (size_t)(ANE_TILE * kv->head_dim) * ane_dtype_info(kv->dtype)->bytes;
  size_t at = (size_t)(begin / runs * kv->tiles + from + begin % runs * TILES_A_PART) * tile;
  ahead_add(a, (const uint8_t *)kv->k + at, ANE_MIN(tile, (size_t)AHEAD_BYTES / 2));
  ahead_add(a, (const uint8_t *)kv->v + at, ANE_MIN(tile, (size_t)AHEAD_BYTES / 2));
}

/* Keys and values of all tiles that some query sees, once; 2 * head_dim multiplications and additions a query and key for
 * the scores, the same for the sum of values. */
static void attend_cost(const struct lane *l, const struct step *s, struct ane_step_profile *p) {
  for (int32_t i = 0; i < l->r->n_items; i++) {
    const struct ane_run_item *it = &l->r->items[i];
    const struct ane_kv *kv = kv_of(l->r, s, i);
    int64_t first = it->session->length, last = first + it->n - 1, from, to, unused;
    visible_tiles(s, first, &from, &unused);
    visible_tiles(s, last, &unused, &to);
    p->bytes += (double)((to - from) * ANE_TILE * kv->heads * kv->head_dim) * 2 * ane_dtype_info(kv->dtype)->bytes;
    for (int64_t q = first; q <= last; q++) {
      int64_t end = ANE_MIN(q + s->attend.ahead, last) + 1, begin = s->attend.window > 0 ? ANE_MAX(end - s->attend.ahead - s->attend.window, (int64_t)0) : 0;
      p->ops += 4.0 * (double)((end - begin) * s->attend.head_dim * s->attend.heads);
    }
  }
}

static ane_status plan_sinks(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  ane_status st = planner_vector(pl, ane_node_input(n, 5), 0, &s->attend.sinks, err);
  float by = (float)ane_node_float(n, "sink_scale");
  if (st || !s->attend.sinks || by == 1) return st;
  float *scaled = ane_arena_array(&pl->p->arena, (size_t)s->attend.heads, sizeof *scaled);
  if (!scaled) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  for (int64_t h = 0; h < s->attend.heads; h++) scaled[h] = s->attend.sinks[h] * by;
  s->attend.sinks = scaled;
  return ANE_OK;
}

ane_status plan_attend(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  s->run = run_attend;
  s->cost = attend_cost;
  s->ahead = attend_ahead;
  s->in[0] = planner_place(pl, n->inputs[0]);
  s->in[1] = planner_place(pl, n->inputs[1]);
  s->in[3] = planner_place(pl, n->inputs[2]);
  s->attend.kv = pl->kv_of[n->inputs[3]];
  s->attend.heads = ane_node_int(n, "heads");
  s->attend.kv_heads = ane_node_int(n, "kv_heads");
  s->attend.head_dim = s->in[0]->channels / s->attend.heads;
  s->attend.window = ane_node_int(n, "window");
  s->attend.scale = (float)ane_node_float(n, "scale");
  s->attend.softcap = (float)ane_node_float(n, "softcap");
  s->attend.ahead = ane_node_int(n, "ahead");
  pl->p->bidirectional |= s->attend.ahead > 0;
  ane_status st = plan_sinks(pl, n, s, err);
  if (st || n->op == ANE_OP_ATTENTION) return st;
  s->in[2] = planner_place(pl, ane_node_input(n, 6));
  s->attend.half = ane_node_string(n, "layout")[0] == 'h';
  s->attend.norm = (int)ane_node_int(n, "norm");
  s->attend.eps = (float)ane_node_float(n, "eps");
  float offset = (float)ane_node_float(n, "offset");
  st = planner_vector(pl, ane_node_input(n, 7), offset, &s->attend.q_norm, err);
  return st ? st : planner_vector(pl, ane_node_input(n, 8), offset, &s->attend.k_norm, err);
}

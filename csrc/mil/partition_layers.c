/* Layers: each shard takes as many whole layers as the target holds. A layer above the size limit is split at its mixtures, or
 * else between nodes. */
#include "mil/partition_internal.h"

#include <inttypes.h>

/* ---- Whole layers -------------------------------------------------------------------------------------------------*/

/* Returns the number of shards that n layers of these bytes make if no shard exceeds `cap`, except one of a single layer. ends
 * (may be NULL) receives the number of layers before the end of each shard. */
static int32_t pack_layers(const struct partitioner *c, const uint64_t *bytes, int32_t n, uint64_t cap, int32_t *ends) {
  int32_t shards = 0, held = 0;
  uint64_t sum = 0;
  for (int32_t i = 0; i < n; i++) {
    bool full = held && (sum + bytes[i] > cap || (c->limits->layers && held == c->limits->layers));
    if (full) {
      if (ends) ends[shards] = i;
      shards++;
      held = 0;
      sum = 0;
    }
    sum += bytes[i];
    held++;
  }
  if (held && ends) ends[shards] = n;
  return shards + (held > 0);
}

/* Adds layers [from, to), each whole: as few shards as the target allows. Of the divisions into so many shards, takes one whose
 * largest shard is smallest. */
static ane_status pack_whole_layers(struct partitioner *c, int32_t from, int32_t to, struct ane_error *err) {
  int32_t n = to - from;
  if (n == 0) return ANE_OK;
  uint64_t *bytes = ane_arena_array(&c->partition->arena, (size_t)n, sizeof *bytes);
  int32_t *ends = ane_arena_array(&c->partition->arena, (size_t)n, sizeof *ends);
  if (!bytes || !ends) return ane_fail(err, ANE_NOMEM, "no memory to partition %" PRId32 " layers", n);
  for (int32_t i = 0; i < n; i++) bytes[i] = partition_span_bytes(c, partition_layer_span(c, from + i));
  uint64_t low = 0, high = c->limits->target;
  int32_t fewest = pack_layers(c, bytes, n, high, NULL);
  while (low < high) { /* a lower cap never makes fewer shards: search for the lowest cap that gives as few */
    uint64_t mid = low + (high - low) / 2;
    if (pack_layers(c, bytes, n, mid, NULL) == fewest)
      high = mid;
    else
      low = mid + 1;
  }
  pack_layers(c, bytes, n, high, ends);
  for (int32_t i = 0; i < fewest; i++) {
    int32_t first = from + (i ? ends[i - 1] : 0), last = from + ends[i] - 1;
    struct span s = {partition_layer_span(c, first).lo, partition_layer_span(c, last).hi};
    struct ane_shard p = {.kind = ANE_SHARD_LAYERS, .first = first, .last = last, .split = ANE_NONE};
    ane_status st = partition_add(c, p, s, err);
    if (st) return st;
  }
  return ANE_OK;
}

/* ---- One layer in parts -------------------------------------------------------------------------------------------*/

/* Positions between the nodes of a span: position 0 is before the first node, position n after the last. Dynamic programming: the
 * best division of the nodes before a position follows from the best ones of all earlier positions. */
struct parts {
  struct partitioner *c;
  struct span s;
  int64_t *channels; /* of the values that cross the position; -1: no shard may end here */
  int32_t *shards;   /* number of shards in the best division; ANE_NONE: there is none */
  int32_t *from;     /* ... the position where its last shard begins */
  int64_t *crossing; /* ... the channels that cross all its positions */
};

static int64_t channels_of(const struct ane_value *v) {
  int64_t n = v->shape.rank > 1 ? v->shape.dim[1] : 1;
  return n > 0 ? n : 1;
}

/* Returns the channels of the values that are made before node `at` and used at or after it; -1 if a state is used on both
 * sides. */
static int64_t channels_across(struct partitioner *c, struct span s, int32_t at) {
  const struct ane_graph *g = c->g;
  int64_t sum = 0;
  c->stamp++;
  for (int32_t i = s.lo; i < at; i++)
    for (int32_t j = 0; j < g->nodes[i].n_inputs; j++) {
      int32_t v = g->nodes[i].inputs[j];
      if (v != ANE_NONE && g->values[v].kind == ANE_VALUE_STATE) c->mark[v] = c->stamp;
    }
  for (int32_t i = at; i < s.hi; i++)
    for (int32_t j = 0; !partition_is_host(g, &g->nodes[i]) && j < g->nodes[i].n_inputs; j++) {
      int32_t v = g->nodes[i].inputs[j];
      if (v == ANE_NONE || (c->mark[v] == c->stamp && g->values[v].kind == ANE_VALUE_RESULT)) continue;
      if (g->values[v].kind == ANE_VALUE_STATE && c->mark[v] == c->stamp) return -1;
      bool made =
          g->values[v].kind == ANE_VALUE_RESULT && g->values[v].node < at && g->nodes[g->values[v].node].op != ANE_OP_ROPE_TABLE;
      if (made) c->mark[v] = c->stamp, sum += channels_of(&g->values[v]);
    }
  return sum;
}

/* May these nodes form one shard? Above the size limit, only a single matrix may, with only vectors beside it. */
static bool keeps_limit(struct partitioner *c, struct span s) {
  enum { VECTORS = 64 }; /* vectors are smaller than 1/64 of the limit */
  uint64_t sum = partition_span_bytes(c, s), most = 0;
  for (int32_t i = s.lo; i < s.hi && sum > c->limits->size_limit; i++) {
    uint64_t own = partition_span_bytes(c, (struct span){i, i + 1});
    most = ANE_MAX(most, own);
  }
  return sum <= c->limits->size_limit || (most > 0 && sum - most <= c->limits->size_limit / VECTORS);
}

/* Finds the division with the fewest shards and, among those, the fewest channels across their edges. false: no division keeps
 * the limit. */
static bool find_best_parts(struct parts *p) {
  int32_t n = p->s.hi - p->s.lo;
  p->shards[0] = 0;
  p->crossing[0] = 0;
  for (int32_t j = 1; j <= n; j++) {
    p->channels[j] = j < n ? channels_across(p->c, p->s, p->s.lo + j) : 0;
    p->shards[j] = ANE_NONE;
    for (int32_t i = j - 1; i >= 0 && p->channels[j] >= 0; i--) {
      if (p->shards[i] == ANE_NONE) continue;
      int64_t crossing = p->crossing[i] + p->channels[j];
      bool better = p->shards[j] == ANE_NONE || p->shards[i] + 1 < p->shards[j] ||
                    (p->shards[i] + 1 == p->shards[j] && crossing < p->crossing[j]);
      if (!better || !keeps_limit(p->c, (struct span){p->s.lo + i, p->s.lo + j})) continue;
      p->shards[j] = p->shards[i] + 1;
      p->from[j] = i;
      p->crossing[j] = crossing;
    }
  }
  return p->shards[n] != ANE_NONE;
}

ane_status partition_split_layer(struct partitioner *c, int32_t layer, struct span s, struct ane_error *err) {
  size_t n = (size_t)(s.hi - s.lo) + 1;
  struct ane_arena *a = &c->partition->arena;
  struct parts p = {c,
                    s,
                    ane_arena_array(a, n, sizeof *p.channels),
                    ane_arena_array(a, n, sizeof *p.shards),
                    ane_arena_array(a, n, sizeof *p.from),
                    ane_arena_array(a, n, sizeof *p.crossing)};
  struct ane_shard shard = {.kind = ANE_SHARD_LAYERS, .first = layer, .last = layer, .split = ANE_NONE};
  if (!p.channels || !p.shards || !p.from || !p.crossing)
    return ane_fail(err, ANE_NOMEM, "no memory to partition layer %" PRId32, layer);
  int32_t count = find_best_parts(&p) ? p.shards[n - 1] : 1;
  if (count == 1) return partition_add(c, shard, s, err);
  int32_t *ends = p.shards; /* ends of the parts, written from the last on; entries overwritten have been read */
  for (int32_t i = count, at = (int32_t)n - 1; i-- > 0; at = p.from[at]) ends[i] = at;
  ane_status st = ANE_OK;
  shard.parts = count;
  for (int32_t i = 0; i < count && !st; i++) {
    shard.part = i;
    st = partition_add(c, shard, (struct span){s.lo + (i ? ends[i - 1] : 0), s.lo + ends[i]}, err);
  }
  return st;
}

/* ---- All layers ---------------------------------------------------------------------------------------------------*/

/* Is it a layer without experts above the size limit? */
static bool is_dense_above_limit(struct partitioner *c, struct span s) {
  return !partition_has_mixture(c->g, s) && partition_span_bytes(c, s) > c->limits->size_limit;
}

ane_status partition_layers(struct partitioner *c, struct ane_error *err) {
  int32_t from = 0;
  for (int32_t l = 0; l < c->partition->n_layers; l++) {
    struct span s = partition_layer_span(c, l);
    bool experts = partition_has_split_mixture(c, s);
    if (!experts && !is_dense_above_limit(c, s)) continue;
    ane_status st = pack_whole_layers(c, from, l, err);
    if (!st) st = experts ? partition_mixtures(c, l, s, err) : partition_split_layer(c, l, s, err);
    if (st) return st;
    from = l + 1;
  }
  return pack_whole_layers(c, from, c->partition->n_layers, err);
}

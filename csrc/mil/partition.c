/* Every shard is an interval of node indices [lo, hi), of which the host's nodes are left out; slices of a head or a mixture
 * share theirs. So what a shard takes in and gives out follows from where values are made and last used. */
#include "mil/partition.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *ane_shard_kind_name(ane_shard_kind kind) {
  static const char *const names[] = {"layers", "experts", "head", "whole"};
  return names[kind];
}

struct ane_partition_limits ane_partition_default_limits(void) {
  return (struct ane_partition_limits){.target = 200000000, .size_limit = 250000000, .rows = 65536};
}

struct interval {
  int32_t lo, hi;
};

struct cutter {
  struct ane_partition *partition;
  const struct ane_graph *g;
  const struct ane_partition_limits *limits;
  ane_partition_bytes_fn bytes;
  void *arg;
  int32_t *section;       /* of each node: its layer; n_layers: behind them */
  int32_t *last_use;      /* of each value: index of the last node that uses it, INT32_MAX for results, ANE_NONE */
  int32_t *mark;          /* of each value: the last shard that has listed it */
  int32_t *list;          /* scratch for one list of values or nodes */
  struct interval *spans; /* of each shard */
  int32_t room, stamp;
};

/* ---- Sections ------------------------------------------------------------------------------------------------------*/

/* The layer of a node, from its name; ANE_NONE outside layers. */
static int32_t layer_of(const struct ane_node *n) {
  static const char prefix[] = "layers.";
  if (strncmp(n->name, prefix, sizeof prefix - 1) != 0) return ANE_NONE;
  const char *digits = n->name + sizeof prefix - 1;
  char *end;
  if (*digits < '0' || *digits > '9') return ANE_NONE;
  long layer = strtol(digits, &end, 10);
  return *end == '.' && layer >= 0 && layer < INT32_MAX ? (int32_t)layer : ANE_NONE;
}

/* The host looks up tokens and makes rope tables. */
static bool is_host(const struct ane_node *n) { return n->dead || n->op == ANE_OP_EMBED || n->op == ANE_OP_ROPE_TABLE; }

static ane_status find_embedding(struct cutter *c, struct ane_error *err) {
  const struct ane_graph *g = c->g;
  c->partition->embedding = c->partition->table = ANE_NONE;
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[i];
    if (n->dead || n->op != ANE_OP_EMBED) continue;
    if (c->partition->embedding != ANE_NONE)
      return ane_fail(err, ANE_UNSUPPORTED, "%s: a second embedding cannot be exported", n->name);
    c->partition->embedding = n->outputs[0];
    c->partition->table = n->inputs[1];
  }
  return ANE_OK;
}

static ane_status find_sections(struct cutter *c, struct ane_error *err) {
  const struct ane_graph *g = c->g;
  int32_t layer = ANE_NONE, next;
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[i];
    if (n->dead) continue;
    if (ane_op_info(n->op)->kind == ANE_OPKIND_FUSED)
      return ane_fail(err, ANE_UNSUPPORTED, "%s: the fused op %s has no place in a package", n->name, ane_op_info(n->op)->name);
    int32_t l = layer_of(n);
    if (l == ANE_NONE) continue;
    if (l < layer)
      return ane_fail(err, ANE_UNSUPPORTED,
                      "%s stands behind nodes of layer %" PRId32 ": layers that are not in order cannot be cut", n->name, layer);
    layer = l;
  }
  next = c->partition->n_layers = layer + 1;
  for (int32_t i = g->n_nodes - 1; i >= 0; i--) {
    int32_t l = g->nodes[i].dead ? ANE_NONE : layer_of(&g->nodes[i]);
    if (l != ANE_NONE) next = l;
    c->section[i] = next;
  }
  return ANE_OK;
}

static void find_uses(struct cutter *c) {
  const struct ane_graph *g = c->g;
  for (int32_t v = 0; v < g->n_values; v++) c->last_use[v] = ANE_NONE;
  for (int32_t i = 0; i < g->n_nodes; i++)
    for (int32_t j = 0; !g->nodes[i].dead && j < g->nodes[i].n_inputs; j++)
      if (g->nodes[i].inputs[j] != ANE_NONE) c->last_use[g->nodes[i].inputs[j]] = i;
  for (int32_t r = 0; r < g->n_results; r++) c->last_use[g->results[r]] = INT32_MAX;
}

/* ---- Pieces --------------------------------------------------------------------------------------------------------*/

/* Is input j of node i needed in the shard? A slice of a mixture has only its own experts. */
static bool takes(const struct ane_shard *p, int32_t i, int32_t j) {
  return p->kind != ANE_SHARD_EXPERTS || i != p->split || j < 2 || ((j - 2) / 6 >= p->from && (j - 2) / 6 < p->to);
}

/* Rows of the outermost dimension of constant `v`, input j of node i, that the shard has. */
static int64_t rows_of(const struct ane_shard *p, const struct ane_value *v, int32_t i, int32_t j) {
  bool sliced = p->kind == ANE_SHARD_HEAD && i == p->split && j >= 1;
  return sliced ? p->to - p->from : v->shape.rank ? v->shape.dim[0] : 1;
}

static uint64_t count_bytes(struct cutter *c, const struct ane_shard *p, struct interval s) {
  const struct ane_graph *g = c->g;
  uint64_t sum = 0;
  c->stamp++;
  for (int32_t i = s.lo; i < s.hi; i++)
    for (int32_t j = 0; !is_host(&g->nodes[i]) && j < g->nodes[i].n_inputs; j++) {
      int32_t v = g->nodes[i].inputs[j];
      if (v == ANE_NONE || g->values[v].kind != ANE_VALUE_CONST || c->mark[v] == c->stamp || !takes(p, i, j)) continue;
      c->mark[v] = c->stamp;
      sum += c->bytes(c->arg, g, i, j, rows_of(p, &g->values[v], i, j));
    }
  return sum;
}

static uint64_t bytes_of(struct cutter *c, struct interval s) {
  struct ane_shard whole = {.kind = ANE_SHARD_LAYERS};
  return count_bytes(c, &whole, s);
}

static ane_status add_shard(struct cutter *c, struct ane_shard p, struct interval s, struct ane_error *err) {
  struct ane_partition *partition = c->partition;
  if (partition->n_shards == c->room) {
    int32_t room = c->room ? 2 * c->room : 16;
    void *shards = ane_realloc(partition->shards, (size_t)room * sizeof *partition->shards);
    if (shards) partition->shards = shards;
    void *spans = shards ? ane_realloc(c->spans, (size_t)room * sizeof *c->spans) : NULL;
    if (!spans) return ane_fail(err, ANE_NOMEM, "no memory for %" PRId32 " pieces", room);
    c->spans = spans;
    c->room = room;
  }
  p.bytes = count_bytes(c, &p, s);
  c->spans[partition->n_shards] = s;
  partition->shards[partition->n_shards++] = p;
  return ANE_OK;
}

/* Nodes of layer l. */
static struct interval layer_span(const struct cutter *c, int32_t l) {
  struct interval s = {0, 0};
  while (s.lo < c->g->n_nodes && c->section[s.lo] < l) s.lo++;
  for (s.hi = s.lo; s.hi < c->g->n_nodes && c->section[s.hi] == l;) s.hi++;
  return s;
}

/* ---- Layers --------------------------------------------------------------------------------------------------------*/

/* Pieces that n layers of these bytes make where none may be above `cap` but a single layer; `ends` (may be NULL) gets how
 * many layers stand before the end of each. */
static int32_t pack(const struct cutter *c, const uint64_t *bytes, int32_t n, uint64_t cap, int32_t *ends) {
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

/* Layers [from, to), each whole: as few shards as the target allows, and among those the least bytes in the largest. */
static ane_status partition_run(struct cutter *c, int32_t from, int32_t to, struct ane_error *err) {
  int32_t n = to - from;
  if (n == 0) return ANE_OK;
  uint64_t *bytes = ane_arena_array(&c->partition->arena, (size_t)n, sizeof *bytes);
  int32_t *ends = ane_arena_array(&c->partition->arena, (size_t)n, sizeof *ends);
  if (!bytes || !ends) return ane_fail(err, ANE_NOMEM, "no memory to cut %" PRId32 " layers", n);
  for (int32_t i = 0; i < n; i++) bytes[i] = bytes_of(c, layer_span(c, from + i));
  uint64_t low = 0, high = c->limits->target;
  int32_t fewest = pack(c, bytes, n, high, NULL);
  while (low < high) { /* pack is monotone in cap: the smallest one that gives as few */
    uint64_t mid = low + (high - low) / 2;
    if (pack(c, bytes, n, mid, NULL) == fewest)
      high = mid;
    else
      low = mid + 1;
  }
  pack(c, bytes, n, high, ends);
  for (int32_t i = 0; i < fewest; i++) {
    int32_t first = from + (i ? ends[i - 1] : 0), last = from + ends[i] - 1;
    struct interval s = {layer_span(c, first).lo, layer_span(c, last).hi};
    struct ane_shard p = {.kind = ANE_SHARD_LAYERS, .first = first, .last = last, .split = ANE_NONE};
    ane_status st = add_shard(c, p, s, err);
    if (st) return st;
  }
  return ANE_OK;
}

/* The first mixture in [lo, hi), or hi. */
static int32_t next_mixture(const struct ane_graph *g, struct interval s) {
  while (s.lo < s.hi && (g->nodes[s.lo].dead || g->nodes[s.lo].op != ANE_OP_EXPERTS)) s.lo++;
  return s.lo;
}

/* ---- A layer in parts ------------------------------------------------------------------------------------------------*/

/* Cuts of nodes [lo, hi), by position: lo stands before the first node. */
struct parts {
  struct cutter *c;
  struct interval s;
  int64_t *channels;      /* that go over the position; -1: no cut there */
  int32_t *shards, *from; /* of the best way up to it: how many, where the last one begins */
  int64_t *crossing;
};

static int64_t channels_of(const struct ane_value *v) {
  int64_t n = v->shape.rank > 1 ? v->shape.dim[1] : 1;
  return n > 0 ? n : 1;
}

/* Results made before `at` that are used from there on. No cut there where a state is used on both sides. */
static int64_t channels_over(struct cutter *c, struct interval s, int32_t at) {
  const struct ane_graph *g = c->g;
  int64_t sum = 0;
  c->stamp++;
  for (int32_t i = s.lo; i < at; i++)
    for (int32_t j = 0; j < g->nodes[i].n_inputs; j++) {
      int32_t v = g->nodes[i].inputs[j];
      if (v != ANE_NONE && g->values[v].kind == ANE_VALUE_STATE) c->mark[v] = c->stamp;
    }
  for (int32_t i = at; i < s.hi; i++)
    for (int32_t j = 0; !is_host(&g->nodes[i]) && j < g->nodes[i].n_inputs; j++) {
      int32_t v = g->nodes[i].inputs[j];
      if (v == ANE_NONE || (c->mark[v] == c->stamp && g->values[v].kind == ANE_VALUE_RESULT)) continue;
      if (g->values[v].kind == ANE_VALUE_STATE && c->mark[v] == c->stamp) return -1;
      bool made =
          g->values[v].kind == ANE_VALUE_RESULT && g->values[v].node < at && g->nodes[g->values[v].node].op != ANE_OP_ROPE_TABLE;
      if (made) c->mark[v] = c->stamp, sum += channels_of(&g->values[v]);
    }
  return sum;
}

/* May these nodes be one shard? Above the law only a matrix by itself, with no more than vectors beside it. */
static bool keeps_law(struct cutter *c, struct interval s) {
  enum { VECTORS = 64 }; /* they are below this part of the law */
  uint64_t sum = bytes_of(c, s), most = 0;
  for (int32_t i = s.lo; i < s.hi && sum > c->limits->size_limit; i++) {
    uint64_t own = bytes_of(c, (struct interval){i, i + 1});
    most = ANE_MAX(most, own);
  }
  return sum <= c->limits->size_limit || (most > 0 && sum - most <= c->limits->size_limit / VECTORS);
}

static bool find_parts(struct parts *p) {
  int32_t n = p->s.hi - p->s.lo;
  p->shards[0] = 0;
  p->crossing[0] = 0;
  for (int32_t j = 1; j <= n; j++) {
    p->channels[j] = j < n ? channels_over(p->c, p->s, p->s.lo + j) : 0;
    p->shards[j] = ANE_NONE;
    for (int32_t i = j - 1; i >= 0 && p->channels[j] >= 0; i--) {
      if (p->shards[i] == ANE_NONE) continue;
      int64_t crossing = p->crossing[i] + p->channels[j];
      bool better = p->shards[j] == ANE_NONE || p->shards[i] + 1 < p->shards[j] ||
                    (p->shards[i] + 1 == p->shards[j] && crossing < p->crossing[j]);
      if (!better || !keeps_law(p->c, (struct interval){p->s.lo + i, p->s.lo + j})) continue;
      p->shards[j] = p->shards[i] + 1;
      p->from[j] = i;
      p->crossing[j] = crossing;
    }
  }
  return p->shards[n] != ANE_NONE;
}

/* Nodes of one layer that are above the law; in one shard where there is no way to cut them. */
static ane_status partition_parts(struct cutter *c, int32_t layer, struct interval s, struct ane_error *err) {
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
    return ane_fail(err, ANE_NOMEM, "no memory to cut layer %" PRId32, layer);
  int32_t count = find_parts(&p) ? p.shards[n - 1] : 1;
  if (count == 1) return add_shard(c, shard, s, err);
  int32_t *ends = p.shards; /* from the last part on; what stood there has been read */
  for (int32_t i = count, at = (int32_t)n - 1; i-- > 0; at = p.from[at]) ends[i] = at;
  ane_status st = ANE_OK;
  shard.parts = count;
  for (int32_t i = 0; i < count && !st; i++) {
    shard.part = i;
    st = add_shard(c, shard, (struct interval){s.lo + (i ? ends[i - 1] : 0), s.lo + ends[i]}, err);
  }
  return st;
}

/* ---- Mixtures --------------------------------------------------------------------------------------------------------*/

static struct ane_shard expert_slice(int32_t layer, int32_t node, int64_t count, int32_t part, int32_t parts) {
  return (struct ane_shard){.kind = ANE_SHARD_EXPERTS,
                            .first = layer,
                            .last = layer,
                            .split = node,
                            .from = count * part / parts,
                            .to = count * (part + 1) / parts};
}

/* In how many slices the mixture at `node` is cut; `end`: of what the last slice goes on with. */
static int32_t expert_parts(struct cutter *c, int32_t layer, int32_t node, int32_t end) {
  int64_t count = ane_node_int(&c->g->nodes[node], "count");
  if (c->limits->expert_parts) return (int32_t)ANE_MIN(count, (int64_t)c->limits->expert_parts);
  for (int64_t parts = 1;; parts *= 2) {
    if (parts >= count) return (int32_t)count;
    uint64_t most = 0;
    for (int32_t i = 0; i < parts; i++) {
      struct ane_shard p = expert_slice(layer, node, count, i, (int32_t)parts);
      uint64_t b = count_bytes(c, &p, (struct interval){node, i + 1 < parts ? node + 1 : end});
      most = ANE_MAX(most, b);
    }
    if (most <= c->limits->size_limit) return (int32_t)parts;
  }
}

/* A layer whose mixtures are packages of their own. */
static ane_status cut_mixtures(struct cutter *c, int32_t layer, struct interval s, struct ane_error *err) {
  int32_t node = next_mixture(c->g, s);
  struct ane_shard before = {.kind = ANE_SHARD_LAYERS, .first = layer, .last = layer, .split = ANE_NONE};
  struct interval head = {s.lo, node};
  ane_status st =
      bytes_of(c, head) > c->limits->size_limit ? partition_parts(c, layer, head, err) : add_shard(c, before, head, err);
  while (!st && node < s.hi) {
    int32_t end = next_mixture(c->g, (struct interval){node + 1, s.hi}), parts = expert_parts(c, layer, node, end);
    int64_t count = ane_node_int(&c->g->nodes[node], "count");
    for (int32_t i = 0; i < parts && !st; i++)
      st = add_shard(c, expert_slice(layer, node, count, i, parts), (struct interval){node, i + 1 < parts ? node + 1 : end}, err);
    node = end;
  }
  return st;
}

static bool splits(struct cutter *c, struct interval s) {
  int32_t node = next_mixture(c->g, s);
  if (node == s.hi || ane_node_int(&c->g->nodes[node], "count") < 2) return false;
  return c->limits->expert_parts ? c->limits->expert_parts > 1 : bytes_of(c, s) > c->limits->size_limit;
}

/* A layer without experts that is above the law. */
static bool is_dense_above(struct cutter *c, struct interval s) {
  int32_t node = next_mixture(c->g, s);
  bool dense = node == s.hi || ane_node_int(&c->g->nodes[node], "count") < 2;
  return dense && bytes_of(c, s) > c->limits->size_limit;
}

static ane_status cut_layers(struct cutter *c, struct ane_error *err) {
  int32_t from = 0;
  for (int32_t l = 0; l < c->partition->n_layers; l++) {
    struct interval s = layer_span(c, l);
    bool experts = splits(c, s);
    if (!experts && !is_dense_above(c, s)) continue;
    ane_status st = partition_run(c, from, l, err);
    if (!st) st = experts ? cut_mixtures(c, l, s, err) : partition_parts(c, l, s, err);
    if (st) return st;
    from = l + 1;
  }
  return partition_run(c, from, c->partition->n_layers, err);
}

/* ---- Head ----------------------------------------------------------------------------------------------------------*/

/* The projection whose rows are the channels of the result: behind it only what works on each channel by itself. */
static int32_t find_head(const struct ane_graph *g) {
  if (g->n_results != 1) return ANE_NONE;
  int32_t v = g->results[0];
  while (v != ANE_NONE && g->values[v].kind == ANE_VALUE_RESULT) {
    const struct ane_node *n = &g->nodes[g->values[v].node];
    if (n->op == ANE_OP_CONV1X1) return g->values[v].node;
    if (n->op != ANE_OP_SOFTCAP && n->op != ANE_OP_SCALE && n->op != ANE_OP_ACT) return ANE_NONE;
    v = n->inputs[0];
  }
  return ANE_NONE;
}

static int64_t head_rows(const struct ane_graph *g, int32_t head) {
  return head == ANE_NONE ? 0 : g->values[g->nodes[head].inputs[1]].shape.dim[0];
}

/* Slice i of so many, evenly, rounded down to where slices may begin. */
static struct ane_shard head_slice(const struct ane_partition_limits *l, int32_t head, int64_t rows, int64_t i, int64_t slices) {
  struct ane_shard p = {.kind = ANE_SHARD_HEAD,
                        .first = ANE_NONE,
                        .last = ANE_NONE,
                        .split = head,
                        .from = rows * i / slices,
                        .to = rows * (i + 1) / slices};
  if (l->row_align > 1) {
    p.from -= p.from % l->row_align;
    if (i + 1 < slices) p.to -= p.to % l->row_align;
  }
  return p;
}

/* Do all slices keep to rows and target? A slice of one row is as small as can be. */
static bool slices_fit(struct cutter *c, struct interval s, int32_t head, int64_t rows, int64_t slices) {
  bool bytes_count = c->limits->head_slices == 0;
  for (int64_t i = 0; i < slices; i++) {
    struct ane_shard p = head_slice(c->limits, head, rows, i, slices);
    if (p.to - p.from > c->limits->rows || (bytes_count && count_bytes(c, &p, s) > c->limits->target)) return false;
  }
  return true;
}

static int64_t head_slices(struct cutter *c, struct interval s, int32_t head, int64_t rows) {
  int64_t n = ANE_MAX((rows + c->limits->rows - 1) / c->limits->rows, (int64_t)ANE_MAX(c->limits->head_slices, 1));
  if (!c->limits->head_slices) n = ANE_MAX(n, (int64_t)(bytes_of(c, s) / c->limits->target));
  while (n < rows && !slices_fit(c, s, head, rows, n)) n++;
  return ANE_MAX((int64_t)1, ANE_MIN(n, rows));
}

static ane_status cut_head(struct cutter *c, struct ane_error *err) {
  struct interval s = {layer_span(c, c->partition->n_layers).lo, c->g->n_nodes};
  int32_t head = find_head(c->g);
  int64_t slices = 1, rows = 0;
  bool any = false;
  for (int32_t i = s.lo; i < s.hi; i++) any |= !is_host(&c->g->nodes[i]);
  if (!any) return ANE_OK;
  if (head != ANE_NONE && head >= s.lo) {
    rows = head_rows(c->g, head);
    slices = head_slices(c, s, head, rows);
  } else {
    head = ANE_NONE;
  }
  for (int64_t i = 0; i < slices; i++) {
    struct ane_shard p = head_slice(c->limits, head, rows, i, slices);
    ane_status st = p.from < p.to || rows == 0 ? add_shard(c, p, s, err) : ANE_OK;
    if (st) return st;
  }
  return ANE_OK;
}

/* ---- What crosses edges --------------------------------------------------------------------------------------------*/

static ane_status keep_list(struct cutter *c, int32_t n, const int32_t **out, int32_t *n_out, struct ane_error *err) {
  int32_t *copy = ane_arena_array(&c->partition->arena, (size_t)n, sizeof *copy);
  if (!copy) return ane_fail(err, ANE_NOMEM, "no memory for the lists of a piece");
  if (n) memcpy(copy, c->list, (size_t)n * sizeof *copy);
  *out = copy;
  *n_out = n;
  return ANE_OK;
}

typedef enum { LIST_NONE, LIST_INS, LIST_STATES, LIST_ROPES, LIST_CONSTS } list_kind;

/* In which list of the shard an input of one of its nodes belongs. */
static list_kind list_of(const struct cutter *c, struct interval s, int32_t v) {
  const struct ane_value *x = &c->g->values[v];
  switch (x->kind) {
    case ANE_VALUE_STATE: return LIST_STATES;
    case ANE_VALUE_CONST: return LIST_CONSTS;
    case ANE_VALUE_RESULT: break;
    default: return LIST_NONE; /* wanted, positions: the host's */
  }
  if (c->g->nodes[x->node].op == ANE_OP_ROPE_TABLE) return LIST_ROPES;
  return x->node < s.lo || c->g->nodes[x->node].op == ANE_OP_EMBED ? LIST_INS : LIST_NONE;
}

/* Sorted by the place where values are made; those that come with the graph keep the order of use. */
static void insert(const struct ane_graph *g, int32_t *list, int32_t n, int32_t v) {
  while (n > 0 && g->values[v].kind == ANE_VALUE_RESULT && g->values[list[n - 1]].node > g->values[v].node) {
    list[n] = list[n - 1];
    n--;
  }
  list[n] = v;
}

static ane_status fill_list(struct cutter *c, const struct ane_shard *p, struct interval s, list_kind kind, const int32_t **out,
                            int32_t *n_out, struct ane_error *err) {
  const struct ane_graph *g = c->g;
  int32_t n = 0;
  c->stamp++;
  for (int32_t i = s.lo; i < s.hi; i++)
    for (int32_t j = 0; !is_host(&g->nodes[i]) && j < g->nodes[i].n_inputs; j++) {
      int32_t v = g->nodes[i].inputs[j];
      if (v == ANE_NONE || c->mark[v] == c->stamp || !takes(p, i, j) || list_of(c, s, v) != kind) continue;
      if (kind == LIST_STATES && !ane_partition_has_state(g, i, j)) continue;
      c->mark[v] = c->stamp;
      insert(g, c->list, n++, v);
    }
  if (kind == LIST_INS && p->kind == ANE_SHARD_EXPERTS && p->from > 0) insert(g, c->list, n++, g->nodes[p->split].outputs[0]);
  return keep_list(c, n, out, n_out, err);
}

static bool is_last_slice(const struct ane_graph *g, const struct ane_shard *p) {
  return p->kind != ANE_SHARD_EXPERTS || p->to == ane_node_int(&g->nodes[p->split], "count");
}

static ane_status fill_outs(struct cutter *c, struct ane_shard *p, struct interval s, struct ane_error *err) {
  const struct ane_graph *g = c->g;
  int32_t n = 0;
  for (int32_t i = s.lo; i < s.hi; i++)
    for (int32_t j = 0; !is_host(&g->nodes[i]) && j < g->nodes[i].n_outputs; j++)
      if (c->last_use[g->nodes[i].outputs[j]] >= s.hi || !is_last_slice(g, p)) c->list[n++] = g->nodes[i].outputs[j];
  return keep_list(c, n, &p->outs, &p->n_outs, err);
}

static ane_status fill_nodes(struct cutter *c, struct ane_shard *p, struct interval s, struct ane_error *err) {
  int32_t n = 0;
  for (int32_t i = s.lo; i < s.hi; i++)
    if (!is_host(&c->g->nodes[i])) c->list[n++] = i;
  return keep_list(c, n, &p->nodes, &p->n_nodes, err);
}

/* The value made last before node `at` that is used from there on; the embedding counts as made first. */
static int32_t residual_at(const struct cutter *c, int32_t at) {
  const struct ane_graph *g = c->g;
  int32_t emb = c->partition->embedding;
  for (int32_t i = at - 1; i >= 0; i--)
    for (int32_t j = 0; !is_host(&g->nodes[i]) && j < g->nodes[i].n_outputs; j++) {
      int32_t v = g->nodes[i].outputs[j];
      bool same = emb != ANE_NONE && ane_shape_equal(&g->values[v].shape, &g->values[emb].shape);
      if (c->last_use[v] >= at && c->last_use[v] != INT32_MAX) return same ? v : ANE_NONE;
    }
  return emb != ANE_NONE && c->last_use[emb] >= at ? emb : ANE_NONE;
}

static bool holds(const int32_t *list, int32_t n, int32_t v) {
  for (int32_t i = 0; i < n; i++)
    if (list[i] == v) return true;
  return false;
}

/* Is node index `at` a border between two sections, rather than inside a layer? */
static bool is_border(const struct cutter *c, int32_t at) {
  return at <= 0 || at >= c->g->n_nodes || c->section[at] != c->section[at - 1];
}

static void name_hidden(const struct cutter *c, struct ane_shard *p, struct interval s) {
  p->hidden_in = p->hidden_out = ANE_NONE;
  int32_t in = is_border(c, s.lo) ? residual_at(c, s.lo) : ANE_NONE, out = is_border(c, s.hi) ? residual_at(c, s.hi) : ANE_NONE;
  if (in != ANE_NONE && holds(p->ins, p->n_ins, in)) p->hidden_in = in;
  if (out != ANE_NONE && holds(p->outs, p->n_outs, out)) p->hidden_out = out;
}

static ane_status fill_shard(struct cutter *c, struct ane_shard *p, struct interval s, struct ane_error *err) {
  ane_status st = fill_nodes(c, p, s, err);
  if (st || (st = fill_list(c, p, s, LIST_INS, &p->ins, &p->n_ins, err)) || (st = fill_outs(c, p, s, err))) return st;
  if ((st = fill_list(c, p, s, LIST_STATES, &p->states, &p->n_states, err))) return st;
  if ((st = fill_list(c, p, s, LIST_ROPES, &p->ropes, &p->n_ropes, err))) return st;
  if ((st = fill_list(c, p, s, LIST_CONSTS, &p->consts, &p->n_consts, err))) return st;
  name_hidden(c, p, s);
  return ANE_OK;
}

bool ane_partition_has_state(const struct ane_graph *g, int32_t node, int32_t input) {
  const struct ane_node *n = &g->nodes[node];
  int32_t v = n->inputs[input];
  bool both = n->op == ANE_OP_ATTENTION && ane_node_int(n, "ahead") > 0;
  return v != ANE_NONE && g->values[v].kind == ANE_VALUE_STATE && !both;
}

/* ---- Doors ---------------------------------------------------------------------------------------------------------*/

static ane_status cut_all(struct cutter *c, bool whole, struct ane_error *err) {
  ane_status st = find_embedding(c, err);
  if (st || (st = find_sections(c, err))) return st;
  find_uses(c);
  c->partition->rows = head_rows(c->g, find_head(c->g));
  if (whole) {
    int32_t head = find_head(c->g);
    struct ane_shard p = {
        .kind = ANE_SHARD_WHOLE, .first = 0, .last = c->partition->n_layers - 1, .split = head, .to = c->partition->rows};
    st = add_shard(c, p, (struct interval){0, c->g->n_nodes}, err);
  } else if (!(st = cut_layers(c, err))) {
    st = cut_head(c, err);
  }
  for (int32_t i = 0; i < c->partition->n_shards && !st; i++) st = fill_shard(c, &c->partition->shards[i], c->spans[i], err);
  return st;
}

static ane_status make(struct ane_partition **out, const struct ane_graph *g, const struct ane_partition_limits *limits,
                       ane_partition_bytes_fn bytes, void *arg, struct ane_error *err) {
  struct cutter c = {.g = g, .limits = limits, .bytes = bytes, .arg = arg};
  size_t nodes = (size_t)g->n_nodes + 1, values = (size_t)g->n_values + 1;
  *out = NULL;
  c.partition = ane_calloc(1, sizeof *c.partition);
  c.section = ane_calloc(nodes, sizeof *c.section);
  c.last_use = ane_calloc(values, sizeof *c.last_use);
  c.mark = ane_calloc(values, sizeof *c.mark);
  c.list = ane_calloc(nodes + values, sizeof *c.list);
  ane_status st = ANE_OK;
  if (!c.partition || !c.section || !c.last_use || !c.mark || !c.list)
    st = ane_fail(err, ANE_NOMEM, "no memory to cut %zu nodes", nodes);
  if (!st) st = cut_all(&c, limits == NULL, err);
  ane_free(c.section);
  ane_free(c.last_use);
  ane_free(c.mark);
  ane_free(c.list);
  ane_free(c.spans);
  if (st)
    ane_partition_free(c.partition);
  else
    *out = c.partition;
  return st;
}

ane_status ane_partition_make(struct ane_partition **out, const struct ane_graph *g, const struct ane_partition_limits *limits,
                              ane_partition_bytes_fn bytes, void *arg, struct ane_error *err) {
  *out = NULL;
  if (limits->rows < 1 || limits->target < 1 || limits->size_limit < 1 || limits->head_slices < 0 || limits->layers < 0 ||
      limits->expert_parts < 0)
    return ane_fail(err, ANE_INVALID, "limits of pieces must be positive");
  return make(out, g, limits, bytes, arg, err);
}

ane_status ane_partition_whole(struct ane_partition **out, const struct ane_graph *g, ane_partition_bytes_fn bytes, void *arg,
                               struct ane_error *err) {
  return make(out, g, NULL, bytes, arg, err);
}

void ane_partition_free(struct ane_partition *partition) {
  if (!partition) return;
  ane_free(partition->shards);
  ane_arena_free(&partition->arena);
  ane_free(partition);
}

/* The ONNX reader: bytes are checked and unpacked (wire.c); names, functions and tensors become the structs of onnx.h, and
 * initialisers become tensors of the source. */
#include "formats/onnx/onnx_internal.h"

#include "base/alloc.h"
#include "formats/wire.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Helpers -------------------------------------------------------------------------------------------------------*/

ane_status onnx_fail(struct onnx_reader *r, ane_status code, const char *fmt, ...) {
  char text[400];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return ane_fail(r->err, code, "%s: %s", ane_path_tail(r->s->files[0].path), text);
}

ane_status onnx_no_memory(struct onnx_reader *r) { return onnx_fail(r, ANE_NOMEM, "not enough memory"); }

void *onnx_array(struct onnx_reader *r, size_t n, size_t size) {
  if (r->calls) r->inlined += (uint64_t)n * size; /* no overflow: n things of the file */
  return ane_arena_array(&r->s->arena, n ? n : 1, size);
}

char *onnx_strndup(struct onnx_reader *r, const char *s, size_t len) {
  if (r->calls) r->inlined += len;
  return ane_arena_strndup(&r->s->arena, s, len);
}

const char *onnx_copy(struct onnx_reader *r, const char *s) { return onnx_strndup(r, s ? s : "", s ? strlen(s) : 0); }

const struct ane_onnx_attr *ane_onnx_attr(const struct ane_onnx_node *n, const char *name) {
  for (int32_t i = 0; i < n->n_attrs; i++)
    if (strcmp(n->attrs[i].name, name) == 0) return &n->attrs[i];
  return NULL;
}

/* ---- The source's view ---------------------------------------------------------------------------------------------*/

/* The shape of a tensor. If its rank exceeds that of ane_shape, the outer dimensions are joined to one. */
static struct ane_shape shape_of(const struct ane_onnx_tensor *t) {
  struct ane_shape s = {.rank = (uint32_t)ANE_MIN(t->rank, ANE_MAX_RANK)};
  int32_t extra = t->rank - (int32_t)s.rank;
  for (uint32_t i = 0; i < s.rank; i++) s.dim[i] = t->dim[(int32_t)i + extra];
  for (int32_t i = 0; i < extra; i++) s.dim[0] *= t->dim[i];
  return s;
}

/* The initialisers of the main graph as tensors of the source. */
static ane_status list_tensors(struct onnx_reader *r) {
  struct ane_source *s = r->s;
  const AneOnnx__Graph *g = r->model->graph;
  const struct ane_onnx_value *v = r->doc->values;
  s->tensors = onnx_array(r, g->n_initializer, sizeof *s->tensors);
  if (!s->tensors || !ane_strmap_reserve(&s->by_name, g->n_initializer)) return onnx_no_memory(r);
  for (size_t i = 0; i < g->n_initializer; i++) { /* values begin with the initialisers, in order */
    const struct ane_onnx_tensor *t = v[i].constant;
    uint64_t nowhere =
        s->files[0].map.size; /* an offset beyond the end of the file: dropping what lies in the arena touches no page of it */
    bool mapped = t->file != UINT32_MAX;
    s->tensors[i] = (struct ane_source_tensor){
        v[i].name, {t->dtype, shape_of(t), t->data, t->bytes}, mapped ? t->offset : nowhere, mapped ? t->file : 0};
    if (!ane_strmap_put(&s->by_name, v[i].name, strlen(v[i].name), (uint32_t)i, NULL)) return onnx_no_memory(r);
    s->n_tensors++;
  }
  return ANE_OK;
}

/* Lists the facts of the header and metadata_props as metadata of the source. */
static ane_status list_metadata(struct onnx_reader *r) {
  struct ane_source *s = r->s;
  const AneOnnx__Model *m = r->model;
  size_t room = m->n_metadata_props + 3;
  s->values = onnx_array(r, room, sizeof *s->values);
  s->keys = onnx_array(r, room, sizeof *s->keys);
  if (!s->values || !s->keys) return onnx_no_memory(r);
  for (size_t i = 0; i < room; i++) {
    const AneOnnx__Entry *e = i >= 3 ? m->metadata_props[i - 3] : NULL;
    struct ane_meta v = {.kind = i < 2 ? ANE_META_INT : ANE_META_STRING};
    /* analyser: from i = 3 on there is an entry e. */
    const char *key = i == 0 ? "onnx.ir_version" : i == 1 ? "onnx.opset" : i == 2 ? "onnx.producer" : onnx_text(e->key);
    const char *text = i == 2 ? r->doc->producer : e ? onnx_copy(r, e->value) : "";
    if (!text || !(key = e ? onnx_copy(r, key) : key)) return onnx_no_memory(r);
    if (i < 2)
      v.i = i == 0 ? r->doc->ir_version : r->doc->opset;
    else
      v.s.data = text, v.s.len = strlen(text);
    uint32_t old;
    if (!ane_strmap_put(&s->by_key, key, strlen(key), s->n_values, &old)) return onnx_no_memory(r);
    if (old != UINT32_MAX) continue; /* the first of equal names counts */
    s->keys[s->n_values] = key;
    s->values[s->n_values++] = v;
  }
  return ANE_OK;
}

/* ---- Reading -------------------------------------------------------------------------------------------------------*/

static ane_status check_opsets(struct onnx_reader *r) {
  const AneOnnx__Model *m = r->model;
  for (size_t i = 0; i < m->n_opset_import; i++) {
    const AneOnnx__OperatorSetId *o = m->opset_import[i];
    if (*onnx_domain(o->domain)) continue;
    if (o->version < 1 || o->version > ANE_ONNX_MAX_OPSET)
      return onnx_fail(r, ANE_UNSUPPORTED, "is written for opset %" PRId64 " of the standard, known are 1 .. %d", o->version,
                       ANE_ONNX_MAX_OPSET);
    r->doc->opset = o->version;
  }
  if (!m->n_opset_import) return onnx_fail(r, ANE_FORMAT, "imports no opset, so its ops have no meaning");
  return ANE_OK;
}

static ane_status read_model(struct onnx_reader *r) {
  const AneOnnx__Model *m = r->model;
  if (!m->graph) return onnx_fail(r, ANE_FORMAT, "holds no graph: no ONNX model");
  r->doc->ir_version = m->ir_version;
  char producer[160];
  snprintf(producer, sizeof producer, "%.100s%s%.50s", onnx_text(m->producer_name),
           m->producer_version && *m->producer_version ? " " : "", onnx_text(m->producer_version));
  if (!(r->doc->producer = onnx_copy(r, producer))) return onnx_no_memory(r);
  ane_status st = check_opsets(r);
  if (!st) st = onnx_functions(r);
  if (!st) st = onnx_graph(r, NULL, m->graph, &r->doc->graph);
  if (st) return st;
  if (r->doc->graph.n_outputs == 0) return onnx_fail(r, ANE_FORMAT, "the graph has no outputs");
  size_t n = r->values.size / sizeof *r->doc->values;
  if (!(r->doc->values = onnx_array(r, n, sizeof *r->doc->values))) return onnx_no_memory(r);
  if (n) memcpy(r->doc->values, r->values.data, r->values.size);
  r->doc->n_values = (int32_t)n;
  st = list_tensors(r);
  return st ? st : list_metadata(r);
}

ane_status ane_onnx_read(struct ane_source *s, struct ane_error *err) {
  struct onnx_reader r = {.s = s, .err = err, .room_files = s->n_files};
  const struct ane_map *map = &s->files[0].map;
  ProtobufCMessage *m;
  ane_status st = ane_wire_unpack(&ane_onnx__model__descriptor, map->data, (size_t)map->size, &m, err);
  if (st) return ane_fail_in(err, st, "%s: no ONNX model that can be read", ane_path_tail(s->files[0].path));
  r.model = (const AneOnnx__Model *)m;
  r.doc = ane_arena_alloc(&s->arena, sizeof *r.doc);
  st = r.doc ? read_model(&r) : onnx_no_memory(&r);
  if (!st) s->onnx = r.doc;
  ane_strmap_free(&r.functions);
  ane_strmap_free(&r.locations);
  ane_buffer_free(&r.values);
  protobuf_c_message_free_unpacked(m, &ane_wire_allocator);
  return st;
}

/* Systems without Core ML: creating a program is an error, so that callers need not know which system they run on. */
#include "coreml/coreml.h"

bool ane_coreml_available(void) { return false; }

ane_status ane_coreml_create(struct ane_coreml **out, const struct ane_coreml_options *o, struct ane_error *err) {
  *out = NULL;
  return ane_fail(err, ANE_UNSUPPORTED, "%s: Core ML runs packages on macOS 15 or later only", o->path);
}

/* No program can exist for the calls below; the Lua binding still links to them. */
void ane_coreml_destroy(ANE_UNUSED struct ane_coreml *m) {}
struct ane_coreml_info ane_coreml_info(ANE_UNUSED const struct ane_coreml *m) {
  return (struct ane_coreml_info){0};
}
const struct ane_coreml_feature *ane_coreml_input(ANE_UNUSED const struct ane_coreml *m, ANE_UNUSED int32_t i) { return NULL; }
const struct ane_coreml_feature *ane_coreml_output(ANE_UNUSED const struct ane_coreml *m, ANE_UNUSED int32_t i) { return NULL; }

static ane_status none(struct ane_error *err) {
  return ane_fail(err, ANE_UNSUPPORTED, "Core ML is not available on this system");
}

ane_status ane_coreml_states_create(struct ane_coreml_states **out, ANE_UNUSED const struct ane_coreml *m,
                                    struct ane_error *err) {
  *out = NULL;
  return none(err);
}
void ane_coreml_states_destroy(ANE_UNUSED struct ane_coreml_states *s) {}
int32_t ane_coreml_states_count(ANE_UNUSED const struct ane_coreml_states *s) { return 0; }
const char *ane_coreml_states_name(ANE_UNUSED const struct ane_coreml_states *s, ANE_UNUSED int32_t i) { return NULL; }
ane_status ane_coreml_states_read(ANE_UNUSED const struct ane_coreml_states *s, ANE_UNUSED int32_t i,
                                  ANE_UNUSED struct ane_dyn_memory *memory, ANE_UNUSED struct ane_dyn *t, struct ane_error *err) {
  return none(err);
}
ane_status ane_coreml_states_write(ANE_UNUSED struct ane_coreml_states *s, ANE_UNUSED int32_t i,
                                   ANE_UNUSED const struct ane_dyn *t, struct ane_error *err) {
  return none(err);
}
ane_status ane_coreml_states_reset(ANE_UNUSED struct ane_coreml_states *s, struct ane_error *err) { return none(err); }
ane_status ane_coreml_states_copy(ANE_UNUSED struct ane_coreml_states *to, ANE_UNUSED const struct ane_coreml_states *from,
                                  struct ane_error *err) {
  return none(err);
}
ane_status ane_coreml_run(ANE_UNUSED struct ane_coreml *m, ANE_UNUSED struct ane_dyn_memory *memory,
                          ANE_UNUSED struct ane_coreml_states *s, ANE_UNUSED const struct ane_dyn *inputs,
                          ANE_UNUSED struct ane_dyn *outputs, struct ane_error *err) {
  return none(err);
}

/* Runs a loaded function and manages its states. Never run on hardware. */
#import "coreml/coreml_internal.h"

#include <string.h>

enum { MOST_KEPT = 8 }; /* number of input shape sets whose arrays are cached: a package has few values of T */

/* ---- States --------------------------------------------------------------------------------------------------------*/

ane_status ane_coreml_states_create(struct ane_coreml_states **out, const struct ane_coreml *m, struct ane_error *err) {
  *out = NULL;
  if (@available(macOS 15.0, *)) {
    @autoreleasepool {
      AneCoreMLStates *s = [[AneCoreMLStates alloc] init];
      s.program = ane_coreml_program(m);
      s.state = [s.program.model newState];
      if (!s.state) return ane_fail(err, ANE_NOMEM, "Core ML makes no states");
      *out = (struct ane_coreml_states *)(__bridge_retained void *)s;
      return ANE_OK;
    }
  }
  return ane_fail(err, ANE_UNSUPPORTED, "states are of macOS 15");
}

void ane_coreml_states_destroy(struct ane_coreml_states *s) {
  if (!s) return;
  @autoreleasepool {
    id states = (__bridge_transfer id)(void *)s;
    (void)states;
  }
}

ane_status ane_coreml_states_reset(struct ane_coreml_states *s, struct ane_error *err) {
  if (@available(macOS 15.0, *)) {
    @autoreleasepool {
      AneCoreMLStates *states = ane_coreml_states(s);
      MLState *fresh = [states.program.model newState];
      if (!fresh) return ane_fail(err, ANE_NOMEM, "Core ML makes no states");
      states.state = fresh;
      return ANE_OK;
    }
  }
  return ane_fail(err, ANE_UNSUPPORTED, "states are of macOS 15");
}

int32_t ane_coreml_states_count(const struct ane_coreml_states *s) {
  if (@available(macOS 15.0, *)) return (int32_t)[ane_coreml_states(s).program.states count];
  return 0;
}

const char *ane_coreml_states_name(const struct ane_coreml_states *s, int32_t i) {
  if (i < 0 || i >= ane_coreml_states_count(s)) return NULL;
  if (@available(macOS 15.0, *)) return [ane_coreml_states(s).program.states[(NSUInteger)i] UTF8String];
  return NULL;
}

/* Calls `use` with the array of state i, which is valid during the call. */
static ane_status with_state(const struct ane_coreml_states *s, int32_t i, struct ane_error *err, ane_status (^use)(MLMultiArray *)) {
  if (i < 0 || i >= ane_coreml_states_count(s)) return ane_fail(err, ANE_NOTFOUND, "there is no state %d", (int)i);
  if (@available(macOS 15.0, *)) {
    @autoreleasepool {
      AneCoreMLStates *states = ane_coreml_states(s);
      NSString *name = states.program.states[(NSUInteger)i];
      __block ane_status st = ANE_OK;
      [states.state getMultiArrayForStateNamed:name
                                       handler:^(MLMultiArray *array) {
                                         st = use(array);
                                       }];
      return st ? ane_fail_in(err, st, "state %s", [name UTF8String]) : ANE_OK;
    }
  }
  return ane_fail(err, ANE_UNSUPPORTED, "states are of macOS 15");
}

ane_status ane_coreml_states_read(const struct ane_coreml_states *s, int32_t i, struct ane_dyn_memory *memory, struct ane_dyn *t, struct ane_error *err) {
  return with_state(s, i, err, ^ane_status(MLMultiArray *array) {
    return ane_coreml_read(array, memory, t, err);
  });
}

ane_status ane_coreml_states_write(struct ane_coreml_states *s, int32_t i, const struct ane_dyn *t, struct ane_error *err) {
  return with_state(s, i, err, ^ane_status(MLMultiArray *array) {
    return ane_coreml_write(array, t, err);
  });
}

/* Copies a state. Both arrays are open inside the inner handler; they have the same shape, type and strides. */
static bool copy_state(MLState *to, MLState *from, NSString *name) API_AVAILABLE(macos(15.0)) {
  __block bool same = false;
  [from getMultiArrayForStateNamed:name
                           handler:^(MLMultiArray *source) {
                             [to getMultiArrayForStateNamed:name
                                                    handler:^(MLMultiArray *target) {
                                                      [source getBytesWithHandler:^(const void *bytes, NSInteger size) {
                                                        [target getMutableBytesWithHandler:^(void *place, NSInteger room, NSArray<NSNumber *> *strides) {
                                                          same = room == size && [strides isEqualToArray:source.strides];
                                                          if (same) memcpy(place, bytes, (size_t)size);
                                                        }];
                                                      }];
                                                    }];
                           }];
  return same;
}

ane_status ane_coreml_states_copy(struct ane_coreml_states *to, const struct ane_coreml_states *from, struct ane_error *err) {
  if (@available(macOS 15.0, *)) {
    @autoreleasepool {
      AneCoreMLStates *target = ane_coreml_states(to), *source = ane_coreml_states(from);
      for (NSString *name in source.program.states)
        if (!copy_state(target.state, source.state, name)) return ane_fail(err, ANE_STATE, "state %s lies differently in memory", [name UTF8String]);
      return ANE_OK;
    }
  }
  return ane_fail(err, ANE_UNSUPPORTED, "states are of macOS 15");
}

/* ---- Runs ----------------------------------------------------------------------------------------------------------*/

static NSString *text_of_shapes(NSArray<AneFeature *> *features, const struct ane_dyn *inputs) {
  NSMutableString *text = [NSMutableString string];
  for (NSUInteger i = 0; i < [features count]; i++) {
    for (int32_t d = 0; d < inputs[i].rank; d++) [text appendFormat:@"%lld,", (long long)inputs[i].dim[d]];
    [text appendString:@";"];
  }
  return text;
}

static ane_status make_buffers(AneBuffers *b, NSArray<AneFeature *> *features, const struct ane_dyn *inputs, struct ane_error *err)
    API_AVAILABLE(macos(15.0)) {
  NSMutableArray<MLMultiArray *> *arrays = [NSMutableArray array];
  NSMutableDictionary<NSString *, id> *values = [NSMutableDictionary dictionary];
  NSError *fault = nil;
  for (NSUInteger i = 0; i < [features count]; i++) {
    const struct ane_coreml_feature *declared = [features[i] record];
    MLMultiArray *array = nil;
    if (inputs[i].rank != declared->rank)
      return ane_fail(err, ANE_SHAPE, "input %s has %d dimensions, %d are wanted", declared->name, (int)inputs[i].rank, (int)declared->rank);
    ane_status st = ane_coreml_array(&array, declared->dtype, inputs[i].rank, inputs[i].dim, err);
    if (st) return ane_fail_in(err, st, "input %s", declared->name);
    [arrays addObject:array];
    values[features[i].name] = [MLFeatureValue featureValueWithMultiArray:array];
  }
  b.inputs = arrays;
  b.provider = [[MLDictionaryFeatureProvider alloc] initWithDictionary:values error:&fault];
  b.options = [[MLPredictionOptions alloc] init];
  return b.provider ? ANE_OK : ane_coreml_fail(err, @"take the inputs", fault);
}

static ane_status buffers_for(AneBuffers *__strong *out, AneCoreMLProgram *program, const struct ane_dyn *inputs, struct ane_error *err)
    API_AVAILABLE(macos(15.0)) {
  NSString *key = text_of_shapes(program.inputs, inputs);
  *out = program.kept[key];
  if (*out) return ANE_OK;
  AneBuffers *b = [[AneBuffers alloc] init];
  ane_status st = make_buffers(b, program.inputs, inputs, err);
  if (st) return st;
  if ([program.kept count] >= MOST_KEPT) [program.kept removeAllObjects];
  program.kept[key] = b;
  *out = b;
  return ANE_OK;
}

/* The shapes of results are known after the first run. From then on results are returned in our own arrays. If that is impossible
 * (no memory, a type that we do not support), Core ML continues to allocate its own. */
static void keep_outputs(AneCoreMLProgram *program, AneBuffers *b, id<MLFeatureProvider> results) API_AVAILABLE(macos(15.0)) {
  NSMutableDictionary<NSString *, id> *backings = [NSMutableDictionary dictionary];
  for (AneFeature *f in program.outputs) {
    MLMultiArray *result = [results featureValueForName:f.name].multiArrayValue;
    int64_t dim[ANE_DYN_RANK];
    ane_dtype dtype;
    if (!result || [result.shape count] > ANE_DYN_RANK || !ane_coreml_dtype(result.dataType, &dtype)) return;
    for (NSUInteger i = 0; i < [result.shape count]; i++) dim[i] = [result.shape[i] longLongValue];
    MLMultiArray *array = nil;
    if (ane_coreml_array(&array, dtype, (int32_t)[result.shape count], dim, NULL)) return;
    backings[f.name] = array;
  }
  b.options.outputBackings = backings;
}

static ane_status run(AneCoreMLProgram *program, struct ane_dyn_memory *memory, AneCoreMLStates *states, const struct ane_dyn *inputs,
                      struct ane_dyn *outputs, struct ane_error *err) API_AVAILABLE(macos(15.0)) {
  NSError *fault = nil;
  if ([program.states count] && !states) return ane_fail(err, ANE_INVALID, "the function has states: give a set of them");
  AneBuffers *b = nil;
  ane_status taken = buffers_for(&b, program, inputs, err);
  if (taken) return taken;
  for (NSUInteger i = 0; i < [b.inputs count]; i++) {
    ane_status st = ane_coreml_write(b.inputs[i], &inputs[i], err);
    if (st) return ane_fail_in(err, st, "input %s", [program.inputs[i].name UTF8String]);
  }
  id<MLFeatureProvider> results = states ? [program.model predictionFromFeatures:b.provider usingState:states.state options:b.options error:&fault]
                                         : [program.model predictionFromFeatures:b.provider options:b.options error:&fault];
  if (!results) return ane_coreml_fail(err, @"run the function", fault);
  for (NSUInteger i = 0; i < [program.outputs count]; i++) {
    MLMultiArray *array = [results featureValueForName:program.outputs[i].name].multiArrayValue;
    ane_status st = array ? ane_coreml_read(array, memory, &outputs[i], err) : ane_fail(err, ANE_IO, "Core ML gave none");
    if (st) return ane_fail_in(err, st, "output %s", [program.outputs[i].name UTF8String]);
  }
  if (![b.options.outputBackings count]) keep_outputs(program, b, results);
  return ANE_OK;
}

ane_status ane_coreml_run(struct ane_coreml *m, struct ane_dyn_memory *memory, struct ane_coreml_states *s, const struct ane_dyn *inputs,
                          struct ane_dyn *outputs, struct ane_error *err) {
  if (@available(macOS 15.0, *)) {
    @autoreleasepool {
      return run(ane_coreml_program(m), memory, s ? ane_coreml_states(s) : nil, inputs, outputs, err);
    }
  }
  return ane_fail(err, ANE_UNSUPPORTED, "Core ML runs packages with states on macOS 15 or later only");
}

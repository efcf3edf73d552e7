/* Compiles, loads and describes a function of a Core ML package. Never run on hardware. */
#import "coreml/coreml_internal.h"

@implementation AneFeature
- (struct ane_coreml_feature *)record {
  return &_record;
}
@end
@implementation AneBuffers
@end
@implementation AneCoreMLStates
@end
@implementation AneCoreMLProgram
- (void)dealloc {
  if (self.temporary && self.compiled) [[NSFileManager defaultManager] removeItemAtURL:self.compiled error:NULL];
}
@end

ane_status ane_coreml_fail(struct ane_error *err, NSString *what, NSError *error) {
  NSString *why = error ? [error localizedDescription] : @"no reason given";
  return ane_fail(err, ANE_IO, "Core ML cannot %s: %s", [what UTF8String], [why UTF8String]);
}

bool ane_coreml_dtype(MLMultiArrayDataType type, ane_dtype *dtype) {
  switch (type) {
    case MLMultiArrayDataTypeFloat16: *dtype = ANE_F16; return true;
    case MLMultiArrayDataTypeFloat32: *dtype = ANE_F32; return true;
    case MLMultiArrayDataTypeInt32: *dtype = ANE_I32; return true;
    default: return false;
  }
}

/* ---- Compiling -----------------------------------------------------------------------------------------------------*/

/* Compiles the package into a temporary folder. Blocks until it is done. */
static ane_status compile(NSURL *package, NSURL *__strong *compiled, struct ane_error *err) API_AVAILABLE(macos(15.0)) {
  dispatch_semaphore_t done = dispatch_semaphore_create(0);
  __block NSURL *result = nil;
  __block NSError *fault = nil;
  [MLModel compileModelAtURL:package
           completionHandler:^(NSURL *url, NSError *error) {
             result = url;
             fault = error;
             dispatch_semaphore_signal(done);
           }];
  dispatch_semaphore_wait(done, DISPATCH_TIME_FOREVER);
  *compiled = result;
  return result ? ANE_OK : ane_coreml_fail(err, @"compile the package", fault);
}

/* Finds or makes the compiled model. */
static ane_status ensure_compiled(AneCoreMLProgram *program, const struct ane_coreml_options *o, struct ane_error *err) API_AVAILABLE(macos(15.0)) {
  NSFileManager *files = [NSFileManager defaultManager];
  NSString *keep = o->compiled ? [NSString stringWithUTF8String:o->compiled] : nil;
  NSURL *made = nil;
  NSError *fault = nil;
  if (keep && [files fileExistsAtPath:keep]) {
    program.compiled = [NSURL fileURLWithPath:keep];
    return ANE_OK;
  }
  ane_status st = compile([NSURL fileURLWithPath:[NSString stringWithUTF8String:o->path]], &made, err);
  if (st) return st;
  program.compiled = made;
  program.temporary = YES;
  if (!keep) return ANE_OK;
  NSURL *kept = [NSURL fileURLWithPath:keep];
  if (![files moveItemAtURL:made toURL:kept error:&fault]) return ane_coreml_fail(err, @"keep the compiled package", fault);
  program.compiled = kept;
  program.temporary = NO;
  return ANE_OK;
}

/* ---- Features ------------------------------------------------------------------------------------------------------*/

static ane_status describe(NSDictionary<NSString *, MLFeatureDescription *> *features, NSArray<AneFeature *> *__strong *out,
                           struct ane_error *err) API_AVAILABLE(macos(15.0)) {
  NSMutableArray<AneFeature *> *list = [NSMutableArray array];
  for (NSString *name in [[features allKeys] sortedArrayUsingSelector:@selector(compare:)]) {
    MLMultiArrayConstraint *constraint = features[name].multiArrayConstraint;
    AneFeature *f = [[AneFeature alloc] init];
    struct ane_coreml_feature *r = [f record];
    f.name = name;
    r->name = [f.name UTF8String];
    if (!constraint || !ane_coreml_dtype(constraint.dataType, &r->dtype) || [constraint.shape count] > ANE_DYN_RANK)
      return ane_fail(err, ANE_UNSUPPORTED, "feature %s is not an array of fp16, fp32 or int32", [name UTF8String]);
    r->rank = (int32_t)[constraint.shape count];
    for (int32_t i = 0; i < r->rank; i++) r->dim[i] = [constraint.shape[(NSUInteger)i] longLongValue];
    [list addObject:f];
  }
  *out = list;
  return ANE_OK;
}

/* ---- The program ---------------------------------------------------------------------------------------------------*/

static ane_status load(AneCoreMLProgram *program, const struct ane_coreml_options *o, struct ane_error *err) API_AVAILABLE(macos(15.0)) {
  MLModelConfiguration *configuration = [[MLModelConfiguration alloc] init];
  NSString *function = o->function ? [NSString stringWithUTF8String:o->function] : nil;
  NSError *fault = nil;
  NSArray<AneFeature *> *inputs = nil, *outputs = nil;
  struct ane_coreml_info info = {0};
  ane_status st = ensure_compiled(program, o, err);
  if (st) return st;
  configuration.computeUnits = MLComputeUnitsCPUAndNeuralEngine;
  if (function) configuration.functionName = function;
  st = ane_coreml_residency(program.compiled, configuration, function, o->anywhere, &info, err);
  if (st) return st;
  program.model = [MLModel modelWithContentsOfURL:program.compiled configuration:configuration error:&fault];
  if (!program.model) return ane_coreml_fail(err, @"load the compiled package", fault);
  MLModelDescription *description = program.model.modelDescription;
  st = describe(description.inputDescriptionsByName, &inputs, err);
  if (!st) st = describe(description.outputDescriptionsByName, &outputs, err);
  if (st) return st;
  info.n_inputs = (int32_t)[inputs count];
  info.n_outputs = (int32_t)[outputs count];
  program.inputs = inputs;
  program.outputs = outputs;
  program.states = [[description.stateDescriptionsByName allKeys] sortedArrayUsingSelector:@selector(compare:)];
  program.kept = [NSMutableDictionary dictionary];
  program.info = info;
  return ANE_OK;
}

bool ane_coreml_available(void) {
  if (@available(macOS 15.0, *)) return true;
  return false;
}

ane_status ane_coreml_create(struct ane_coreml **out, const struct ane_coreml_options *o, struct ane_error *err) {
  *out = NULL;
  if (@available(macOS 15.0, *)) {
    @autoreleasepool {
      AneCoreMLProgram *program = [[AneCoreMLProgram alloc] init];
      ane_status st = load(program, o, err);
      if (st) return ane_fail_in(err, st, "%s", o->path);
      *out = (struct ane_coreml *)(__bridge_retained void *)program;
      return ANE_OK;
    }
  }
  return ane_fail(err, ANE_UNSUPPORTED, "%s: Core ML runs packages with states on macOS 15 or later only", o->path);
}

/* Takes back the handle's reference and releases it. */
void ane_coreml_destroy(struct ane_coreml *m) {
  if (!m) return;
  @autoreleasepool {
    id program = (__bridge_transfer id)(void *)m;
    (void)program;
  }
}

struct ane_coreml_info ane_coreml_info(const struct ane_coreml *m) {
  struct ane_coreml_info info = {0};
  if (@available(macOS 15.0, *)) info = ane_coreml_program(m).info;
  return info;
}

static const struct ane_coreml_feature *feature_at(NSArray<AneFeature *> *list, int32_t i) {
  if (i < 0 || (NSUInteger)i >= [list count]) return NULL;
  return [list[(NSUInteger)i] record];
}

const struct ane_coreml_feature *ane_coreml_input(const struct ane_coreml *m, int32_t i) {
  if (@available(macOS 15.0, *)) return feature_at(ane_coreml_program(m).inputs, i);
  return NULL;
}

const struct ane_coreml_feature *ane_coreml_output(const struct ane_coreml *m, int32_t i) {
  if (@available(macOS 15.0, *)) return feature_at(ane_coreml_program(m).outputs, i);
  return NULL;
}


/* Finds where the operations of a compiled function will run, with MLComputePlan. A package may compile, load and give correct
 * results entirely on the CPU; only this query shows it. Never run on hardware. */
#import "coreml/coreml_internal.h"

/* Counts the operations of a block and of its nested blocks. *off receives the first convolution that is off the engine. */
static void count_block(MLComputePlan *plan, MLModelStructureProgramBlock *block, struct ane_coreml_info *info, NSString *__strong *off) API_AVAILABLE(macos(15.0)) {
  for (MLModelStructureProgramOperation *op in block.operations) {
    for (MLModelStructureProgramBlock *inner in op.blocks) count_block(plan, inner, info, off);
    MLComputePlanDeviceUsage *usage = [plan computeDeviceUsageForMLProgramOperation:op];
    if (!usage) continue; /* constants and similar operations have no device */
    bool engine = [(NSObject *)usage.preferredComputeDevice isKindOfClass:[MLNeuralEngineComputeDevice class]];
    bool conv = [op.operatorName hasSuffix:@".conv"] || [op.operatorName isEqualToString:@"conv"];
    info->n_operations++;
    info->on_engine += engine;
    info->n_convs += conv;
    info->convs_on_engine += conv && engine;
    if (conv && !engine && !*off) *off = [op.outputs count] ? op.outputs[0].name : op.operatorName;
  }
}

ane_status ane_coreml_residency(NSURL *compiled, MLModelConfiguration *configuration, NSString *function, bool anywhere, struct ane_coreml_info *info,
                                struct ane_error *err) {
  dispatch_semaphore_t done = dispatch_semaphore_create(0);
  __block MLComputePlan *plan = nil;
  __block NSError *fault = nil;
  [MLComputePlan loadContentsOfURL:compiled
                     configuration:configuration
                 completionHandler:^(MLComputePlan *result, NSError *error) {
                   plan = result;
                   fault = error;
                   dispatch_semaphore_signal(done);
                 }];
  dispatch_semaphore_wait(done, DISPATCH_TIME_FOREVER);
  if (!plan) return ane_coreml_fail(err, @"say where operations will run", fault);
  MLModelStructureProgram *program = plan.modelStructure.program;
  if (!program) return ane_fail(err, ANE_UNSUPPORTED, "the model is not an ML Program");
  MLModelStructureProgramFunction *chosen = program.functions[function ? function : @"main"];
  if (!chosen && !function && [program.functions count] == 1) chosen = [program.functions allValues][0];
  if (!chosen) return ane_fail(err, ANE_UNSUPPORTED, "there is no function %s", function ? [function UTF8String] : "main");
  NSString *off = nil;
  count_block(plan, chosen.block, info, &off);
  if (anywhere || !off) return ANE_OK;
  return ane_fail(err, ANE_UNSUPPORTED, "%d of %d convolutions prefer the Neural Engine; the first that does not is %s", (int)info->convs_on_engine,
                  (int)info->n_convs, [off UTF8String]);
}

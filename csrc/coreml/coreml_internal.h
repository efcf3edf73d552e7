/* Shared by the files of coreml/ only; Objective-C with ARC. Never run on hardware. */
#ifndef ANE_COREML_COREML_INTERNAL_H
#define ANE_COREML_COREML_INTERNAL_H

#include "coreml/coreml.h"

#import <CoreML/CoreML.h>
#import <Foundation/Foundation.h>

/* A declared input or output, and its record as C sees it. */
@interface AneFeature : NSObject {
@private
  struct ane_coreml_feature _record; /* its name lives in `name` */
}
@property(nonatomic, copy) NSString *name;
- (struct ane_coreml_feature *)record; /* valid as long as the object */
@end

/* Buffers reused by runs with one set of input shapes: inputs in our own memory, and outputs where Core ML is told to write. */
API_AVAILABLE(macos(15.0))
@interface AneBuffers : NSObject
@property(nonatomic, strong) NSArray<MLMultiArray *> *inputs;
@property(nonatomic, strong) MLDictionaryFeatureProvider *provider;
@property(nonatomic, strong) MLPredictionOptions *options; /* outputBackings from the second run on, when the shapes are known */
@end

API_AVAILABLE(macos(15.0))
@interface AneCoreMLProgram : NSObject
@property(nonatomic, strong) MLModel *model;
@property(nonatomic, strong) NSURL *compiled;
@property(nonatomic, assign) BOOL temporary; /* `compiled` is removed with the program */
@property(nonatomic, strong) NSArray<AneFeature *> *inputs, *outputs;
@property(nonatomic, strong) NSArray<NSString *> *states;
@property(nonatomic, strong) NSMutableDictionary<NSString *, AneBuffers *> *kept; /* by the text of the input shapes */
@property(nonatomic, assign) struct ane_coreml_info info;
@end

API_AVAILABLE(macos(15.0))
@interface AneCoreMLStates : NSObject
@property(nonatomic, strong) AneCoreMLProgram *program;
@property(nonatomic, strong) MLState *state;
@end

/* The C handles are retained objects. */
API_AVAILABLE(macos(15.0)) static inline AneCoreMLProgram *ane_coreml_program(const struct ane_coreml *m) {
  return (__bridge AneCoreMLProgram *)(const void *)m;
}
API_AVAILABLE(macos(15.0)) static inline AneCoreMLStates *ane_coreml_states(const struct ane_coreml_states *s) {
  return (__bridge AneCoreMLStates *)(const void *)s;
}

/* Returns ANE_IO with the message `what`, followed by Core ML's message. */
ane_status ane_coreml_fail(struct ane_error *err, NSString *what, NSError *error);

/* The type of an array's elements; false for types that features do not use. */
bool ane_coreml_dtype(MLMultiArrayDataType type, ane_dtype *dtype);

/* Counts where the operations of a function will run. If `anywhere` is false, refuses convolutions off the engine. */
ane_status ane_coreml_residency(NSURL *compiled, MLModelConfiguration *configuration, NSString *function, bool anywhere,
                                struct ane_coreml_info *info, struct ane_error *err) API_AVAILABLE(macos(15.0));

/* An array of this shape in memory that never moves. If rows of fp16 fill whole cache lines, it is a pixel buffer in an
 * IOSurface, which the engine reads in place; otherwise zeroed pages. */
ane_status ane_coreml_array(MLMultiArray *__strong *out, ane_dtype dtype, int32_t rank, const int64_t *dim,
                            struct ane_error *err);
/* Writes elements from a tensor of the array's shape, converted to its type. */
ane_status ane_coreml_write(MLMultiArray *array, const struct ane_dyn *t, struct ane_error *err);
/* Reads elements as fp32, or as int32 if they are integers, in a tensor from `memory`. */
ane_status ane_coreml_read(MLMultiArray *array, struct ane_dyn_memory *memory, struct ane_dyn *t, struct ane_error *err);

#endif

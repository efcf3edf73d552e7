/* Stand-in for Apple's Core ML: just the declarations that csrc/coreml/ uses, with the system that brought each. */
#pragma once
#import <Foundation/Foundation.h>

typedef struct __CVBuffer *CVPixelBufferRef;

#pragma clang assume_nonnull begin

/* ---- Arrays and features -------------------------------------------------------------------------------------------*/

typedef enum : NSInteger {
  MLMultiArrayDataTypeFloat64 = 0x10000 | 64,
  MLMultiArrayDataTypeFloat32 = 0x10000 | 32,
  MLMultiArrayDataTypeFloat16 API_AVAILABLE(macos(12.0)) = 0x10000 | 16,
  MLMultiArrayDataTypeInt32 = 0x20000 | 32,
} MLMultiArrayDataType;

@interface MLMultiArray : NSObject
@property(readonly, nonatomic) MLMultiArrayDataType dataType;
@property(readonly, nonatomic) NSArray<NSNumber *> *shape, *strides;
- (nullable instancetype)initWithDataPointer:(void *)dataPointer
                                       shape:(NSArray<NSNumber *> *)shape
                                    dataType:(MLMultiArrayDataType)dataType
                                     strides:(NSArray<NSNumber *> *)strides
                                 deallocator:(void (^_Nullable)(void *bytes))deallocator
                                       error:(NSError **)error;
- (instancetype)initWithPixelBuffer:(CVPixelBufferRef)pixelBuffer shape:(NSArray<NSNumber *> *)shape API_AVAILABLE(macos(12.0));
- (void)getBytesWithHandler:(void(NS_NOESCAPE ^)(const void *bytes, NSInteger size))handler API_AVAILABLE(macos(12.3));
- (void)getMutableBytesWithHandler:(void(NS_NOESCAPE ^)(void *mutableBytes, NSInteger size, NSArray<NSNumber *> *strides))handler API_AVAILABLE(macos(12.3));
@end

@interface MLFeatureValue : NSObject
@property(readonly, nonatomic, nullable) MLMultiArray *multiArrayValue;
+ (instancetype)featureValueWithMultiArray:(MLMultiArray *)value;
@end

@protocol MLFeatureProvider
- (nullable MLFeatureValue *)featureValueForName:(NSString *)featureName;
@end

@interface MLDictionaryFeatureProvider : NSObject <MLFeatureProvider>
- (nullable instancetype)initWithDictionary:(NSDictionary<NSString *, id> *)dictionary error:(NSError **)error;
@end

@interface MLMultiArrayConstraint : NSObject
@property(readonly, nonatomic) NSArray<NSNumber *> *shape;
@property(readonly, nonatomic) MLMultiArrayDataType dataType;
@end

@interface MLFeatureDescription : NSObject
@property(readonly, nullable, nonatomic) MLMultiArrayConstraint *multiArrayConstraint;
@end

@interface MLModelDescription : NSObject
@property(readonly, nonatomic) NSDictionary<NSString *, MLFeatureDescription *> *inputDescriptionsByName, *outputDescriptionsByName;
@property(readonly, nonatomic) NSDictionary<NSString *, MLFeatureDescription *> *stateDescriptionsByName API_AVAILABLE(macos(15.0));
@end

/* ---- Models --------------------------------------------------------------------------------------------------------*/

typedef enum : NSInteger {
  MLComputeUnitsCPUOnly = 0,
  MLComputeUnitsCPUAndGPU = 1,
  MLComputeUnitsAll = 2,
  MLComputeUnitsCPUAndNeuralEngine API_AVAILABLE(macos(13.0)) = 3,
} MLComputeUnits;

@interface MLModelConfiguration : NSObject
@property(readwrite) MLComputeUnits computeUnits;
@property(readwrite, copy, nullable) NSString *functionName API_AVAILABLE(macos(15.0));
@end

@interface MLPredictionOptions : NSObject
@property(readwrite, nonatomic, copy) NSDictionary<NSString *, id> *outputBackings API_AVAILABLE(macos(11.0));
@end

API_AVAILABLE(macos(15.0))
@interface MLState : NSObject
- (void)getMultiArrayForStateNamed:(NSString *)stateName handler:(void(NS_NOESCAPE ^)(MLMultiArray *buffer))handler;
@end

@interface MLModel : NSObject
@property(readonly, nonatomic) MLModelDescription *modelDescription;
+ (void)compileModelAtURL:(NSURL *)modelURL
        completionHandler:(void (^)(NSURL *_Nullable compiledModelURL, NSError *_Nullable error))handler API_AVAILABLE(macos(13.0));
+ (nullable instancetype)modelWithContentsOfURL:(NSURL *)url configuration:(MLModelConfiguration *)configuration error:(NSError **)error;
- (nullable id<MLFeatureProvider>)predictionFromFeatures:(id<MLFeatureProvider>)input options:(MLPredictionOptions *)options error:(NSError **)error;
- (MLState *)newState API_AVAILABLE(macos(15.0));
- (nullable id<MLFeatureProvider>)predictionFromFeatures:(id<MLFeatureProvider>)inputFeatures
                                              usingState:(MLState *)state
                                                 options:(MLPredictionOptions *)options
                                                   error:(NSError **)error API_AVAILABLE(macos(15.0));
@end

/* ---- Compute plans -------------------------------------------------------------------------------------------------*/

API_AVAILABLE(macos(14.0))
@protocol MLComputeDeviceProtocol
@end

API_AVAILABLE(macos(14.0))
@interface MLNeuralEngineComputeDevice : NSObject <MLComputeDeviceProtocol>
@end

@class MLModelStructureProgramBlock;

API_AVAILABLE(macos(14.4))
@interface MLModelStructureProgramNamedValueType : NSObject
@property(readonly, copy, nonatomic) NSString *name;
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructureProgramOperation : NSObject
@property(readonly, copy, nonatomic) NSString *operatorName;
@property(readonly, copy, nonatomic) NSArray<MLModelStructureProgramNamedValueType *> *outputs;
@property(readonly, copy, nonatomic) NSArray<MLModelStructureProgramBlock *> *blocks;
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructureProgramBlock : NSObject
@property(readonly, copy, nonatomic) NSArray<MLModelStructureProgramOperation *> *operations;
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructureProgramFunction : NSObject
@property(readonly, strong, nonatomic) MLModelStructureProgramBlock *block;
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructureProgram : NSObject
@property(readonly, copy, nonatomic) NSDictionary<NSString *, MLModelStructureProgramFunction *> *functions;
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructure : NSObject
@property(readonly, strong, nullable, nonatomic) MLModelStructureProgram *program;
@end

API_AVAILABLE(macos(14.4))
@interface MLComputePlanDeviceUsage : NSObject
@property(readonly, strong, nonatomic) id<MLComputeDeviceProtocol> preferredComputeDevice;
@end

API_AVAILABLE(macos(14.4))
@interface MLComputePlan : NSObject
@property(readonly, strong, nonatomic) MLModelStructure *modelStructure;
+ (void)loadContentsOfURL:(NSURL *)url
            configuration:(MLModelConfiguration *)configuration
        completionHandler:(void (^)(MLComputePlan *_Nullable computePlan, NSError *_Nullable error))handler;
- (nullable MLComputePlanDeviceUsage *)computeDeviceUsageForMLProgramOperation:(MLModelStructureProgramOperation *)operation;
@end

#pragma clang assume_nonnull end

/* Stand-in for Apple's Foundation: just the declarations that csrc/coreml/ uses, so that clang can check it elsewhere. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API_AVAILABLE(...) ANE_STUB_AVAILABLE(__VA_ARGS__)
#define ANE_STUB_AVAILABLE(platform) ANE_STUB_##platform
#define ANE_STUB_macos(version) __attribute__((availability(macos, introduced = version)))
#define NS_NOESCAPE __attribute__((noescape))
#define NS_RETURNS_RETAINED __attribute__((ns_returns_retained))

#define nil ((id)0)
#define YES __objc_yes
#define NO __objc_no

typedef bool BOOL;
typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef struct objc_selector *SEL;
typedef const struct __CFString *CFStringRef;
typedef const struct __CFDictionary *CFDictionaryRef;
typedef const struct __CFAllocator *CFAllocatorRef;
extern const CFAllocatorRef kCFAllocatorDefault;

typedef struct {
  unsigned long state;
  id __unsafe_unretained *itemsPtr;
  unsigned long *mutationsPtr;
  unsigned long extra[5];
} NSFastEnumerationState;

#pragma clang assume_nonnull begin

@protocol NSObject
- (BOOL)isKindOfClass:(Class)aClass;
@end

@protocol NSCopying
@end

@protocol NSFastEnumeration
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state objects:(id __unsafe_unretained _Nullable[_Nonnull])buffer count:(NSUInteger)len;
@end

__attribute__((objc_root_class)) @interface NSObject <NSObject>
+ (instancetype)alloc;
- (instancetype)init;
+ (Class)class;
- (void)dealloc;
- (instancetype)retain;
- (oneway void)release;
@end

@interface NSString : NSObject <NSCopying>
+ (nullable instancetype)stringWithUTF8String:(const char *)nullTerminatedCString;
@property(readonly, nullable) const char *UTF8String __attribute__((objc_returns_inner_pointer));
- (BOOL)hasSuffix:(NSString *)str;
- (BOOL)isEqualToString:(NSString *)aString;
@end

@interface NSMutableString : NSString
+ (instancetype)string;
- (void)appendString:(NSString *)aString;
- (void)appendFormat:(NSString *)format, ... __attribute__((format(__NSString__, 1, 2)));
@end

@interface NSNumber : NSObject <NSCopying>
@property(readonly) long long longLongValue;
+ (NSNumber *)numberWithLongLong:(long long)value;
+ (NSNumber *)numberWithInt:(int)value;
+ (NSNumber *)numberWithLong:(long)value;
@end

@interface NSArray<__covariant ObjectType> : NSObject <NSCopying, NSFastEnumeration>
@property(readonly) NSUInteger count;
- (ObjectType)objectAtIndexedSubscript:(NSUInteger)idx;
- (BOOL)isEqualToArray:(NSArray<ObjectType> *)otherArray;
- (NSArray<ObjectType> *)sortedArrayUsingSelector:(SEL)comparator;
@end

@interface NSMutableArray<ObjectType> : NSArray <ObjectType>
+ (instancetype)array;
- (void)addObject:(ObjectType)anObject;
- (void)insertObject:(ObjectType)anObject atIndex:(NSUInteger)index;
@end

@interface NSDictionary<__covariant KeyType, __covariant ObjectType> : NSObject <NSCopying, NSFastEnumeration>
@property(readonly) NSUInteger count;
@property(readonly, copy) NSArray<KeyType> *allKeys;
@property(readonly, copy) NSArray<ObjectType> *allValues;
- (nullable ObjectType)objectForKeyedSubscript:(KeyType)key;
+ (instancetype)dictionaryWithObjects:(const ObjectType _Nonnull __unsafe_unretained[_Nullable])objects
                              forKeys:(const KeyType<NSCopying> _Nonnull __unsafe_unretained[_Nullable])keys
                                count:(NSUInteger)cnt;
@end

@interface NSMutableDictionary<KeyType, ObjectType> : NSDictionary <KeyType, ObjectType>
+ (instancetype)dictionary;
- (void)removeAllObjects;
- (void)setObject:(nullable ObjectType)obj forKeyedSubscript:(KeyType<NSCopying>)key;
@end

@interface NSError : NSObject
@property(readonly, copy) NSString *localizedDescription;
@end

@interface NSURL : NSObject <NSCopying>
+ (NSURL *)fileURLWithPath:(NSString *)path;
@end

@interface NSFileManager : NSObject
@property(class, readonly, strong) NSFileManager *defaultManager;
- (BOOL)fileExistsAtPath:(NSString *)path;
- (BOOL)moveItemAtURL:(NSURL *)srcURL toURL:(NSURL *)dstURL error:(NSError *_Nullable *_Nullable)error;
- (BOOL)removeItemAtURL:(NSURL *)URL error:(NSError *_Nullable *_Nullable)error;
@end

#pragma clang assume_nonnull end

#import <dispatch/dispatch.h>

/* Stand-in for Apple's CoreVideo: pixel buffers, as csrc/coreml/ uses them. */
#pragma once
#import <Foundation/Foundation.h>

typedef struct __CVBuffer *CVPixelBufferRef;
typedef int32_t CVReturn;
enum : uint32_t { kCVPixelFormatType_OneComponent16Half = 'L00h' };
extern const CFStringRef kCVPixelBufferIOSurfacePropertiesKey API_AVAILABLE(macos(10.6));
CVReturn CVPixelBufferCreate(CFAllocatorRef allocator, size_t width, size_t height, uint32_t pixelFormatType, CFDictionaryRef pixelBufferAttributes,
                             CVPixelBufferRef *pixelBufferOut);
void CVPixelBufferRelease(CVPixelBufferRef texture);

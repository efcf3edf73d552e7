/* Arrays that Core ML reads and writes in place, and conversions from and to them. Never run on hardware. */
#import "coreml/coreml_internal.h"

#include "platform/platform.h"
#include "tensor/half.h"

#import <CoreVideo/CoreVideo.h>

enum { LINE = 64 }; /* bytes to which rows of pixel buffers are padded */

static size_t element_bytes(ane_dtype t) { return t == ANE_F16 ? 2 : 4; }

static MLMultiArrayDataType array_type(ane_dtype t) {
  return t == ANE_F16 ? MLMultiArrayDataTypeFloat16 : t == ANE_I32 ? MLMultiArrayDataTypeInt32 : MLMultiArrayDataTypeFloat32;
}

static MLMultiArray *pixel_array(NSArray<NSNumber *> *shape, size_t width, size_t height) {
  NSDictionary *attributes = @{(__bridge NSString *)kCVPixelBufferIOSurfacePropertiesKey : @{}};
  CVPixelBufferRef pixels = NULL;
  if (CVPixelBufferCreate(kCFAllocatorDefault, width, height, kCVPixelFormatType_OneComponent16Half, (__bridge CFDictionaryRef)attributes, &pixels)) return nil;
  MLMultiArray *array = [[MLMultiArray alloc] initWithPixelBuffer:pixels shape:shape];
  CVPixelBufferRelease(pixels);
  return array;
}

/* A row-major array in pages that are freed with the array. */
static MLMultiArray *page_array(ane_dtype dtype, NSArray<NSNumber *> *shape, size_t count) {
  const size_t size = ANE_MAX(count, 1) * element_bytes(dtype);
  NSMutableArray<NSNumber *> *strides = [NSMutableArray array];
  long long step = 1;
  for (NSUInteger i = [shape count]; i-- > 0; step *= [shape[i] longLongValue]) [strides insertObject:@(step) atIndex:0];
  void *pages = ane_pages_alloc(size, false);
  if (!pages) return nil;
  MLMultiArray *array = [[MLMultiArray alloc] initWithDataPointer:pages
                                                            shape:shape
                                                         dataType:array_type(dtype)
                                                          strides:strides
                                                      deallocator:^(void *bytes) {
                                                        ane_pages_free(bytes, size);
                                                      }
                                                            error:NULL];
  if (!array) ane_pages_free(pages, size);
  return array;
}

ane_status ane_coreml_array(MLMultiArray *__strong *out, ane_dtype dtype, int32_t rank, const int64_t *dim, struct ane_error *err) {
  NSMutableArray<NSNumber *> *shape = [NSMutableArray array];
  size_t count = 1, width = rank ? (size_t)dim[rank - 1] : 1;
  *out = nil;
  for (int32_t i = 0; i < rank; i++) {
    [shape addObject:@(dim[i])];
    if (dim[i] < 1 || !ane_mul_size(count, (size_t)dim[i], &count) || count > SIZE_MAX / 8)
      return ane_fail(err, ANE_SHAPE, "dimension %d is %lld", (int)i, (long long)dim[i]);
  }
  if (dtype == ANE_F16 && width * 2 % LINE == 0) *out = pixel_array(shape, width, count / width);
  if (!*out) *out = page_array(dtype, shape, count);
  return *out ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for an array of %zu elements", count);
}

/* ---- Elements ------------------------------------------------------------------------------------------------------*/

/* The shape and the strides, in elements, of an array. */
struct layout {
  int32_t rank;
  int64_t dim[ANE_DYN_RANK], step[ANE_DYN_RANK], count;
};

static struct layout layout_of(NSArray<NSNumber *> *shape, NSArray<NSNumber *> *strides) {
  struct layout l = {.rank = (int32_t)[shape count], .count = 1};
  for (int32_t i = 0; i < l.rank; i++) {
    l.dim[i] = [shape[(NSUInteger)i] longLongValue];
    l.step[i] = [strides[(NSUInteger)i] longLongValue];
    l.count *= l.dim[i];
  }
  return l;
}

/* The offset of row-major element i. */
static int64_t offset_of(const struct layout *l, int64_t i) {
  int64_t at = 0;
  for (int32_t d = l->rank - 1; d >= 0; d--) {
    at += i % l->dim[d] * l->step[d];
    i /= l->dim[d];
  }
  return at;
}

/* The number of elements, from the start of a row, that are contiguous on both sides. */
static int64_t run_of(const struct layout *l) { return l->rank && l->step[l->rank - 1] == 1 ? l->dim[l->rank - 1] : 1; }

static double number_at(const struct ane_dyn *t, int64_t i) {
  switch (t->dtype) {
    case ANE_F16: return ane_f16_f32(((const uint16_t *)t->data)[i]);
    case ANE_I32: return ((const int32_t *)t->data)[i];
    case ANE_I64: return (double)((const int64_t *)t->data)[i];
    default: return ((const float *)t->data)[i];
  }
}

static void write_number(void *base, ane_dtype dtype, int64_t at, double v) {
  switch (dtype) {
    case ANE_F16: ((uint16_t *)base)[at] = ane_f32_f16((float)v); break;
    case ANE_I32: ((int32_t *)base)[at] = (int32_t)v; break;
    default: ((float *)base)[at] = (float)v;
  }
}

ane_status ane_coreml_write(MLMultiArray *array, const struct ane_dyn *t, struct ane_error *err) {
  ane_dtype dtype;
  if (!ane_coreml_dtype(array.dataType, &dtype)) return ane_fail(err, ANE_UNSUPPORTED, "an array of another type");
  if (!t->data || (t->dtype != ANE_F32 && t->dtype != ANE_F16 && t->dtype != ANE_I32 && t->dtype != ANE_I64))
    return ane_fail(err, ANE_SHAPE, "numbers of type fp32, fp16, int32 or int64 are wanted");
  NSArray<NSNumber *> *shape = array.shape;
  bool same = (NSUInteger)t->rank == [shape count];
  for (int32_t i = 0; same && i < t->rank; i++) same = t->dim[i] == [shape[(NSUInteger)i] longLongValue];
  if (!same) return ane_fail(err, ANE_SHAPE, "the tensor has another shape");
  [array getMutableBytesWithHandler:^(void *bytes, NSInteger size, NSArray<NSNumber *> *strides) {
    (void)size;
    const struct layout l = layout_of(shape, strides);
    const int64_t run = run_of(&l);
    for (int64_t i = 0; i < l.count; i += run) {
      const int64_t at = offset_of(&l, i);
      for (int64_t k = 0; k < run; k++) write_number(bytes, dtype, at + k, number_at(t, i + k));
    }
  }];
  return ANE_OK;
}

ane_status ane_coreml_read(MLMultiArray *array, struct ane_dyn_memory *memory, struct ane_dyn *t, struct ane_error *err) {
  ane_dtype dtype;
  const struct layout l = layout_of(array.shape, array.strides);
  if (!ane_coreml_dtype(array.dataType, &dtype) || l.rank > ANE_DYN_RANK) return ane_fail(err, ANE_UNSUPPORTED, "an array of another type");
  t->dtype = dtype == ANE_I32 ? ANE_I32 : ANE_F32;
  t->rank = l.rank;
  for (int32_t i = 0; i < l.rank; i++) t->dim[i] = l.dim[i];
  ane_status st = ane_dyn_alloc(memory, t, err);
  if (st) return st;
  void *to = ane_dyn_data(t);
  [array getBytesWithHandler:^(const void *bytes, NSInteger size) {
    (void)size;
    const int64_t run = run_of(&l);
    const struct ane_dyn from = {.dtype = dtype, .data = bytes};
    for (int64_t i = 0; i < l.count; i += run) {
      const int64_t at = offset_of(&l, i);
      for (int64_t k = 0; k < run; k++) write_number(to, t->dtype, i + k, number_at(&from, at + k));
    }
  }];
  return ANE_OK;
}

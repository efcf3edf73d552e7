/* Rows of matrices, wherever their elements lie. */
#ifndef ANE_TENSOR_ROWS_H
#define ANE_TENSOR_ROWS_H

#include "tensor/tensor.h"

/* Copies a matrix [rows, cols] of plain elements of `size` bytes (1, 2, 4 or 8), of which (r, c) lies at
 * src + (r * row_step + c * col_step) * size, into rows of elements side by side: row r begins at dst + r * dst_step bytes. */
void ane_copy_matrix(const void *src, size_t size, int64_t row_step, int64_t col_step, int64_t rows, int64_t cols, void *dst,
                     size_t dst_step);
/* Returns rows [from, from + n) of a tensor in its type, one after the other, `row_bytes` each. They are in the tensor, or, if it
 * is transposed or has a gather, in `copy`, which has room for them. */
const void *ane_tensor_rows(const struct ane_tensor *t, int64_t from, int64_t n, size_t row_bytes, void *copy);

#endif

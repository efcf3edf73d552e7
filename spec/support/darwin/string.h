/* Stand-in for the C library's: what csrc/coreml/ and the headers that it includes use. */
#pragma once
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t n);

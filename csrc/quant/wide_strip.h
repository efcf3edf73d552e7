/* Products of panels with vectors of BYTES: float_strip and double_strip (wide.h), as static functions NAME(...). A template:
 * define BYTES, ATTRIBUTE (the instructions of such vectors) and NAME(x) before each inclusion. No include guard. */

/* The sums are separate variables, because compilers leave an array in memory. c has the value of a, which the assembly hides
 * from the compiler. So each product broadcasts its number as a memory operand, and no two products wait for one broadcast
 * instruction (Zen 4: 1.35 times as fast). */
#define STRIP(name, number, columns, op)                                                                                         \
  ATTRIBUTE static void name(number *acc, int64_t ld_acc, const number *a, int64_t lda, const number *b, int64_t ldb,            \
                             int64_t n) {                                                                                        \
    typedef number vec __attribute__((vector_size(BYTES)));                                                                      \
    enum { WIDTH = BYTES / sizeof(number) };                                                                                     \
    for (int first = 0; first < (columns); first += 2 * WIDTH, acc += 2 * WIDTH, b += 2 * WIDTH) {                               \
      vec s[ANE_STRIP][2], lo, hi;                                                                                               \
      for (int k = 0; k < ANE_STRIP; k++) memcpy(s[k], acc + k * ld_acc, sizeof s[k]);                                           \
      vec l0 = s[0][0], h0 = s[0][1], l1 = s[1][0], h1 = s[1][1]; /* analyser: all of s is written. */                           \
      vec l2 = s[2][0], h2 = s[2][1], l3 = s[3][0], h3 = s[3][1];                                                                \
      const number *x = a, *c = a, *y = b;                                                                                       \
      if (BYTES > 32) __asm__("" : "+r"(c));                                                                                     \
      for (int64_t t = 0; t < n; t++, x += lda, c += lda, y += ldb) {                                                            \
        memcpy(&lo, y, sizeof lo);                                                                                               \
        memcpy(&hi, y + WIDTH, sizeof hi);                                                                                       \
        l0 op x[0] * lo, h0 op c[0] * hi;                                                                                        \
        l1 op x[1] * lo, h1 op c[1] * hi;                                                                                        \
        l2 op x[2] * lo, h2 op c[2] * hi;                                                                                        \
        l3 op x[3] * lo, h3 op c[3] * hi;                                                                                        \
      }                                                                                                                          \
      s[0][0] = l0, s[0][1] = h0, s[1][0] = l1, s[1][1] = h1;                                                                    \
      s[2][0] = l2, s[2][1] = h2, s[3][0] = l3, s[3][1] = h3;                                                                    \
      for (int k = 0; k < ANE_STRIP; k++) memcpy(acc + k * ld_acc, s[k], sizeof s[k]);                                           \
    }                                                                                                                            \
  }

STRIP(NAME(float_strip), float, ANE_PANEL, +=)
STRIP(NAME(double_strip), double, ANE_PANEL_D, -=)

#undef STRIP
#undef BYTES
#undef ATTRIBUTE
#undef NAME

/* Elementary functions of float32 with the same bits on every machine. C libraries differ in their last bit, and some of them
 * between processors. These functions use only sums, products and quotients of double precision, which IEEE 754 defines exactly,
 * in a fixed order, and round the result to float32 once. Before this rounding the error is below 1e-13 of the result. For sine
 * and cosine it is below 1e-9 absolute, for |x| up to 1e7. So nearly all results are the float32 nearest to the true value. NaN
 * gives NaN. */
#ifndef ANE_BASE_ELEMENTARY_H
#define ANE_BASE_ELEMENTARY_H

/* e^x: 0 below -104, infinity from 89 on. */
float ane_expf(float x);
/* Natural logarithm: minus infinity at 0, NaN below. */
float ane_logf(float x);
/* ln(1 + e^x), and x itself above 20. */
float ane_softplusf(float x);
/* The sine and the cosine of x radians. NaN where |x| is 2^31 or more. */
void ane_sincosf(float x, float *sine, float *cosine);
float ane_sinf(float x);
float ane_cosf(float x);

#endif

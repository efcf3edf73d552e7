/* exp, tanh and erf with the same bits on every machine: products and sums of doubles, each rounded once. Those of the C library
 * differ between its versions and CPUs. */
#ifndef ANE_QUANT_EXPONENTIAL_H
#define ANE_QUANT_EXPONENTIAL_H

#include <stdint.h>

/* exp(x), relative error below 1e-10; x below -700 counts as -700, above 700 as 700. NaN gives NaN. */
double ane_exp(double x);
/* tanh(x), absolute error below 1e-10. */
double ane_tanh(double x);
/* erf(x), absolute error below 2e-8: the polynomials of the forward kernels (kernels/mathfn.h), so that both agree. NaN gives
 * NaN. */
double ane_erf(double x);
/* out[i] = exp(x[i] - less), rounded to fp32, for x[i] <= less; 0 below -104. Returns their sum, in a fixed order. x may be out.
 */
double ane_exp_row(const float *x, int64_t n, float less, float *out);

#endif

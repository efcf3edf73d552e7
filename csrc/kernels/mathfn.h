/* exp, tanh and erf as one sequence of roundings for every level. Included after one of vec/vec_*.h, which give V_FN, `vf` (VL
 * floats) and the v_ operations; each of those rounds once, as IEEE 754 says, so scalar and vector code agree to the bit.
 * NaN gives NaN.
 *
 * The polynomials are minimax: Remez exchange at 40 digits on the stated interval, error weight as stated, coefficients
 * rounded to float32 afterwards. */
#ifndef ANE_KERNELS_MATHFN_H
#define ANE_KERNELS_MATHFN_H

/* x = n ln 2 + r, |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits of t.
 * ln 2 = hi + lo, hi its nearest float32; n * hi needs no rounding inside the fma, and x - n hi is exact. */
V_FN vf v_reduce_exp(vf x, vf *t, vf *n) {
  const vf magic = v_set(0x1.8p23f);
  *t = v_fma(x, v_set(0x1.715476p+0f), magic);
  *n = v_sub(*t, magic);
  return v_fma(*n, v_set(0x1.05c610p-29f), v_fma(*n, v_set(-0x1.62e430p-1f), x));
}

/* (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2; weight r^2 / exp(r), largest error 3.1e-9. */
V_FN vf v_exp_tail(vf r) {
  vf p = v_set(0x1.6a2434p-10f);
  p = v_fma(p, r, v_set(0x1.1239e2p-7f));
  p = v_fma(p, r, v_set(0x1.5558f2p-5f));
  p = v_fma(p, r, v_set(0x1.555492p-3f));
  return v_fma(p, r, v_set(0x1.fffffcp-2f));
}

/* exp of x <= 0 or NaN: 1 at 0, 0 from -104 on, where the true value is below half of the smallest float. */
V_FN vf v_exp_low(vf x) {
  const vf one = v_set(1.0f);
  vf t, n, r = v_reduce_exp(v_max(v_set(-104.0f), x), &t, &n); /* in this order v_max keeps NaN */
  return v_ldexp(v_fma(v_fma(v_exp_tail(r), r, one), r, one), t, n);
}

#define V_LOG2_E 0x1.715476p+0f

/* 2^y for y < 2^-10, at least 2^-125: relative error below 2.7e-6. v_shift_exponent multiplies by 2^n. Minimax on |f| <= 1/2,
 * relative error. */
V_FN vf v_exp2_rough(vf y) {
  const vf magic = v_set(0x1.8p23f);
  y = v_max(v_set(-125.0f), y);
  const vf t = v_add(y, magic), f = v_sub(y, v_sub(t, magic));
  vf p = v_fma(v_set(0x1.3997d6p-7f), f, v_set(0x1.ca1444p-5f));
  p = v_fma(p, f, v_set(0x1.ec06dap-3f));
  p = v_fma(p, f, v_set(0x1.62e0dcp-1f));
  return v_shift_exponent(v_fma(p, f, v_set(0x1.ffffe8p-1f)), t);
}

/* exp: error below 1 ulp for normal results; subnormal ones are rounded once more. exp(89) is infinite already. */
V_FN vf v_exp(vf x) { return v_exp_low(v_min(v_set(89.0f), x)); }

/* tanh = e / (e + 2) with e = exp(2|x|) - 1, where 2^n (1 + q) - 1 = fma(q, 2^n, 2^n - 1) keeps the relative precision
 * near 0. From 20 on the quotient is 1. Error below 3 ulp. */
V_FN vf v_tanh(vf x) {
  vf t, n, a = v_abs(x);
  vf r = v_reduce_exp(v_min(v_set(20.0f), v_add(a, a)), &t, &n);
  vf q = v_fma(v_mul(v_exp_tail(r), r), r, r);
  vf s = v_pow2(t);
  vf e = v_fma(q, s, v_sub(s, v_set(1.0f)));
  return v_copysign(v_div(e, v_add(e, v_set(2.0f))), x);
}

/* erf, |x| < 1: x + x P(x^2), relative error of the polynomial 1.2e-9;
 * 1 <= |x| < 4: 1 - exp(-Q(|x|)), Q = -log(erfc), weight erfc / erf, largest error 1.1e-9; above: 1. Error below 1.5 ulp. */
V_FN vf v_erf(vf x) {
  vf a = v_min(v_set(4.0f), v_abs(x)), z = v_mul(x, x);
  vf p = v_set(0x1.496a30p-14f);
  p = v_fma(p, z, v_set(-0x1.a3f700p-11f));
  p = v_fma(p, z, v_set(0x1.5405b2p-8f));
  p = v_fma(p, z, v_set(-0x1.b7f90ep-6f));
  p = v_fma(p, z, v_set(0x1.ce2cf8p-4f));
  p = v_fma(p, z, v_set(-0x1.81273ep-2f));
  p = v_fma(p, z, v_set(0x1.06eba8p-3f));
  p = v_fma(p, x, x);
  vf q = v_set(-0x1.86dd76p-13f);
  q = v_fma(q, a, v_set(0x1.825af0p-9f));
  q = v_fma(q, a, v_set(-0x1.65cb72p-6f));
  q = v_fma(q, a, v_set(0x1.a65340p-4f));
  q = v_fma(q, a, v_set(0x1.46baecp-1f));
  q = v_fma(q, a, v_set(0x1.2088eap+0f));
  q = v_fma(q, a, v_set(0x1.661db0p-12f));
  q = v_copysign(v_sub(v_set(1.0f), v_exp(v_neg(q))), x);
  return v_select_lt(a, v_set(1.0f), p, q);
}

/* g / (1 + exp(-g)) */
V_FN vf v_silu(vf g) { return v_div(g, v_add(v_set(1.0f), v_exp(v_neg(g)))); }

V_FN vf v_sigmoid(vf g) { return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp(v_neg(g)))); }

/* 0.5 g (1 + tanh u) = g / (1 + exp(-2u)), without the cancellation at negative g. -2u = g (c + 0.044715 c g^2),
 * c = -2 sqrt(2 / pi). */
V_FN vf v_gelu_tanh(vf g) {
  vf z = v_mul(g, v_fma(v_mul(g, g), v_set(-0.0713548162726f), v_set(-1.59576912161f)));
  return v_div(g, v_add(v_set(1.0f), v_exp(z)));
}

V_FN vf v_gelu_erf(vf g) { return v_mul(v_mul(v_set(0.5f), g), v_add(v_set(1.0f), v_erf(v_mul(g, v_set(0.70710678118655f))))); }

/* s tanh(a / s) */
V_FN vf v_softcap(vf a, vf s) { return v_mul(s, v_tanh(v_div(a, s))); }

#endif

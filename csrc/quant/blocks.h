/* Block structs as they lie in GGUF files (layouts: ggml/src/ggml-common.h and gguf-py's quants.py). Packed: a block may
 * begin at any address. All numbers little endian; d, dmin, m are fp16 bits. "low nibbles then high" means: byte l holds
 * element l in its low half and element l + half of the run in its high half.
 *
 * Value formulas: s is the scale of a sub-block, q a code. Products are computed in float32, in the order written. */
#ifndef ANE_QUANT_BLOCKS_H
#define ANE_QUANT_BLOCKS_H

#include <stdint.h>

#define ANE_BLOCK struct __attribute__((packed))

enum { ANE_QK = 32, ANE_QK_K = 256 }; /* elements per block: of the plain types, of the super-blocks */

/* ---- 32 elements, low nibbles then high --------------------------------------------------------------------------*/

typedef ANE_BLOCK {
  uint16_t d;
  uint8_t qs[16];
}
ane_block_q4_0; /* d * (q - 8) */
typedef ANE_BLOCK {
  uint16_t d, m;
  uint8_t qs[16];
}
ane_block_q4_1; /* d * q + m */
typedef ANE_BLOCK {
  uint16_t d;
  uint8_t qh[4], qs[16];
}
ane_block_q5_0; /* d * (q - 16); qh bit i: bit 4 of element i */
typedef ANE_BLOCK {
  uint16_t d, m;
  uint8_t qh[4], qs[16];
}
ane_block_q5_1; /* d * q + m */
typedef ANE_BLOCK {
  uint16_t d;
  int8_t qs[32];
}
ane_block_q8_0; /* d * q */
typedef ANE_BLOCK {
  uint16_t d;
  uint8_t qs[16];
}
ane_block_iq4_nl; /* d * table[q] (codes.c) */
typedef ANE_BLOCK { uint8_t e, qs[16]; }
ane_block_mxfp4; /* 2^(e - 128) * table[q] (values doubled) */

/* ---- 256 elements ------------------------------------------------------------------------------------------------*/

/* 16 sub-blocks of 16. scales: low nibble s, high nibble min. qs: each 32 bytes hold 4 x 32 elements, 2 bits each, low
 * bits first. (d * s) * q - (dmin * min) */
typedef ANE_BLOCK {
  uint8_t scales[16], qs[64];
  uint16_t d, dmin;
}
ane_block_q2_k;
/* 16 sub-blocks of 16. qs as above; bit k of hmask[l] belongs to element 32 k + l: if it is clear, the code is q - 4. scales: 16
 * of 6 bits. Their low four bits are the low nibbles of bytes 0..7, then the high nibbles; their bits 4..5 are in bytes 8..11,
 * two bits at a time. (d * (s - 32)) * q */
typedef ANE_BLOCK {
  uint8_t hmask[32], qs[64], scales[12];
  uint16_t d;
}
ane_block_q3_k;
/* 8 sub-blocks of 32. scales: 8 scales and 8 mins of 6 bits (ane_k_scale_min). qs: 4 x 32 bytes, low nibbles then high.
 * (d * s) * q - (dmin * min) */
typedef ANE_BLOCK {
  uint16_t d, dmin;
  uint8_t scales[12], qs[128];
}
ane_block_q4_k;
/* As q4_k; qh[l] bit k is bit 4 of element 32 k + l. */
typedef ANE_BLOCK {
  uint16_t d, dmin;
  uint8_t scales[12], qh[32], qs[128];
}
ane_block_q5_k;
/* 16 sub-blocks of 16. ql: 2 x 64 bytes, low nibbles then high; qh: 2 x 32 bytes, bits 4..5 of 4 x 32 elements.
 * (d * s) * (q - 32) */
typedef ANE_BLOCK {
  uint8_t ql[128], qh[64];
  int8_t scales[16];
  uint16_t d;
}
ane_block_q6_k;

/* Grid types: an index selects 8 (iq2, iq1) or 4 (iq3) magnitudes; each element has a sign bit. */
/* qs: 8 x { 4 index bytes, u32: 4 x 7 sign bits (ane_iq_signs), 4 bits s }. d * (0.5 + s) * 0.25 */
typedef ANE_BLOCK {
  uint16_t d;
  uint8_t qs[64];
}
ane_block_iq2_xxs;
/* qs: 32 x { 9 bits index, 7 sign bits }; scales: a nibble for 16 elements. d * (0.5 + s) * 0.25 */
typedef ANE_BLOCK {
  uint16_t d, qs[32];
  uint8_t scales[8];
}
ane_block_iq2_xs;
/* index = qs[j] and 2 bits of qh[j / 4]; signs[j]; scales as iq2_xs */
typedef ANE_BLOCK {
  uint16_t d;
  uint8_t qs[32], signs[32], qh[8], scales[8];
}
ane_block_iq2_s;
/* qs: 64 indices; aux: 8 x u32: 4 x 7 sign bits, 4 bits s. d * (0.5 + s) * 0.5 */
typedef ANE_BLOCK {
  uint16_t d;
  uint8_t qs[64];
  uint32_t aux[8];
}
ane_block_iq3_xxs;
/* index = qs[j] and bit j % 8 of qh[j / 8]; scales: a nibble for 32 elements. d * (1 + 2 s) */
typedef ANE_BLOCK {
  uint16_t d;
  uint8_t qs[64], qh[8], signs[32], scales[4];
}
ane_block_iq3_s;
/* qh[g], for 32 elements: 4 x 3 high index bits, 3 bits s, sign of the delta. d * (2 s + 1) * (grid +- 0.125) */
typedef ANE_BLOCK {
  uint16_t d;
  uint8_t qs[32];
  uint16_t qh[8];
}
ane_block_iq1_s;
/* qh: a nibble for 8 elements: 3 high index bits, sign of the delta. scales: 4 x { 4 x 3 bits s, 4 bits of d } */
typedef ANE_BLOCK {
  uint8_t qs[32], qh[16];
  uint16_t scales[4];
}
ane_block_iq1_m;
/* 8 sub-blocks of 32, low nibbles then high. scales: low 4 bits in scales_l (two per byte), high 2 bits in scales_h.
 * (d * (s - 32)) * table[q] */
typedef ANE_BLOCK {
  uint16_t d, scales_h;
  uint8_t scales_l[4], qs[128];
}
ane_block_iq4_xs;

/* Ternary: 5 elements per byte (base 3, as a fraction of 256) in qs, 4 per byte in qh. d * (q - 1) */
typedef ANE_BLOCK {
  uint8_t qs[48], qh[4];
  uint16_t d;
}
ane_block_tq1_0;
/* Ternary: 2 x 32 bytes of 4 x 32 elements, 2 bits each. d * (q - 1) */
typedef ANE_BLOCK {
  uint8_t qs[64];
  uint16_t d;
}
ane_block_tq2_0;

/* 64 elements: 4 sub-blocks of 16, low nibbles then high; d: unsigned E4M3. d / 2 * table[q] (values doubled) */
typedef ANE_BLOCK { uint8_t d[4], qs[32]; }
ane_block_nvfp4;

/* Columns k and k + 16 in the nibbles of a byte. d: fp32, little endian. d * (q - zero) */
typedef ANE_BLOCK { uint8_t d[4], zero, q[16]; }
ane_block_n4;
typedef ANE_BLOCK { uint8_t d[4], zero, q[32]; }
ane_block_n8;
/* A scale for each 16 columns. d * (q - 8), d * (q - 128) */
typedef ANE_BLOCK { uint8_t d[8], q[16]; }
ane_block_n4h;
typedef ANE_BLOCK { uint8_t d[8], q[32]; }
ane_block_n8h;

/* The sizes in dtype.def are those of the structs. */
#define ANE_BLOCK_SIZE(type, size) _Static_assert(sizeof(ane_block_##type) == (size), #type)
ANE_BLOCK_SIZE(q4_0, 18);
ANE_BLOCK_SIZE(q4_1, 20);
ANE_BLOCK_SIZE(q5_0, 22);
ANE_BLOCK_SIZE(q5_1, 24);
ANE_BLOCK_SIZE(q8_0, 34);
ANE_BLOCK_SIZE(q2_k, 84);
ANE_BLOCK_SIZE(q3_k, 110);
ANE_BLOCK_SIZE(q4_k, 144);
ANE_BLOCK_SIZE(q5_k, 176);
ANE_BLOCK_SIZE(q6_k, 210);
ANE_BLOCK_SIZE(iq2_xxs, 66);
ANE_BLOCK_SIZE(iq2_xs, 74);
ANE_BLOCK_SIZE(iq2_s, 82);
ANE_BLOCK_SIZE(iq3_xxs, 98);
ANE_BLOCK_SIZE(iq3_s, 110);
ANE_BLOCK_SIZE(iq1_s, 50);
ANE_BLOCK_SIZE(iq1_m, 56);
ANE_BLOCK_SIZE(iq4_nl, 18);
ANE_BLOCK_SIZE(iq4_xs, 136);
ANE_BLOCK_SIZE(tq1_0, 54);
ANE_BLOCK_SIZE(tq2_0, 66);
ANE_BLOCK_SIZE(mxfp4, 17);
ANE_BLOCK_SIZE(nvfp4, 36);
ANE_BLOCK_SIZE(n4, 21);
ANE_BLOCK_SIZE(n8, 37);
ANE_BLOCK_SIZE(n4h, 24);
ANE_BLOCK_SIZE(n8h, 40);
#undef ANE_BLOCK_SIZE

/* Scale and min (0..63) of sub-block j (0..7) in the 12 bytes of q4_k and q5_k. Those of sub-blocks 0..3 are the low 6 bits of
 * bytes 0..3 (scales) and 4..7 (mins). Those of sub-blocks 4..7 have their low 4 bits in bytes 8..11 and their high 2 bits in the
 * top bits of bytes 0..7. */
static inline void ane_k_scale_min(const uint8_t *s, int j, uint8_t *scale, uint8_t *min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6 << 4));
    *min = (uint8_t)(s[j + 4] >> 4 | (s[j] >> 6 << 4));
  }
}

/* The 16 scales (0..63, used minus 32) of q3_k. */
static inline void ane_q3_k_scales(const uint8_t *s, uint8_t out[16]) {
  for (int i = 0; i < 16; i++) out[i] = (uint8_t)((s[i % 8] >> (i / 8 * 4) & 15) | (s[8 + i % 4] >> (i / 4 * 2) & 3) << 4);
}

/* Eight sign bits from the seven that are stored: the eighth makes the number of set bits even. */
static inline uint8_t ane_iq_signs(uint32_t seven) {
  seven &= 127;
  return (uint8_t)(seven | (uint32_t)__builtin_parity(seven) << 7);
}

/* e8m0 scale of mxfp4, halved because the table's values are doubled: 2^(e - 128), subnormal for e < 2. */
static inline uint32_t ane_e8m0_half_bits(uint8_t e) { return e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23; }

#endif

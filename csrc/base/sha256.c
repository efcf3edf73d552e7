#include "base/sha256.h"

#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static inline uint32_t sum0(uint32_t x) { return rotate(x, 2) ^ rotate(x, 13) ^ rotate(x, 22); }
static inline uint32_t sum1(uint32_t x) { return rotate(x, 6) ^ rotate(x, 11) ^ rotate(x, 25); }

/* One round: it changes d and h, and the names rotate from round to round. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                                         \
  do {                                                                                                                           \
    uint32_t t_ = (h) + sum1(e) + ((g) ^ ((e) & ((f) ^ (g)))) + K[i] + w[i];                                                     \
    (d) += t_;                                                                                                                   \
    (h) = t_ + sum0(a) + (((a) & (b)) | ((c) & ((a) | (b))));                                                                    \
  } while (0)

static void compress(uint32_t s[8], const uint8_t p[64]) {
  uint32_t w[64], a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    uint32_t x = w[i - 15], y = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
  }
  for (int i = 0; i < 64; i += 8) {
    ROUND(a, b, c, d, e, f, g, h, i);
    ROUND(h, a, b, c, d, e, f, g, i + 1);
    ROUND(g, h, a, b, c, d, e, f, i + 2);
    ROUND(f, g, h, a, b, c, d, e, i + 3);
    ROUND(e, f, g, h, a, b, c, d, i + 4);
    ROUND(d, e, f, g, h, a, b, c, i + 5);
    ROUND(c, d, e, f, g, h, a, b, i + 6);
    ROUND(b, c, d, e, f, g, h, a, i + 7);
  }
  s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
}

void ane_sha256_begin(struct ane_sha256 *s) {
  static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(s->h, start, sizeof start);
  s->size = 0;
}

void ane_sha256_add(struct ane_sha256 *s, const void *data, size_t size) {
  const uint8_t *p = data;
  size_t held = s->size % 64;
  s->size += size;
  if (held) {
    size_t n = ANE_MIN(64 - held, size);
    if (n) memcpy(s->block + held, p, n);
    p += n;
    size -= n;
    if (held + n < 64) return;
    compress(s->h, s->block);
  }
  for (; size >= 64; p += 64, size -= 64) compress(s->h, p);
  if (size) memcpy(s->block, p, size);
}

void ane_sha256_end(struct ane_sha256 *s, char out[ANE_SHA256_TEXT]) {
  static const char digits[] = "0123456789abcdef";
  static const uint8_t pad[64] = {0x80};
  uint64_t bits = s->size * 8;
  uint8_t length[8];
  for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
  size_t held = s->size % 64;
  ane_sha256_add(s, pad, held < 56 ? 56 - held : 120 - held);
  ane_sha256_add(s, length, sizeof length);
  for (int i = 0; i < 64; i++) out[i] = digits[s->h[i / 8] >> (28 - 4 * (i % 8)) & 15];
  out[64] = '\0';
}

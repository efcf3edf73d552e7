/* GPT-2's alphabet: a printable character for every byte. */
#include "text/text_internal.h"

/* Bytes that are printable in Latin-1 represent themselves; the other 68 map to U+0100 and up, in order (openai/gpt-2,
 * encoder.py, bytes_to_unicode). */
static bool printable(unsigned b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD); }

/* Code point of a byte. */
static unsigned spell(unsigned b) {
  if (printable(b)) return b;
  if (b <= 0x20) return 0x100 + b;
  return b == 0xAD ? 0x143 : 0x100 + b - 0x7F + 0x21;
}

/* Byte of a code point, or -1. */
static int unspell(unsigned c) {
  if (c < 0x100) return printable(c) ? (int)c : -1;
  if (c <= 0x120) return (int)(c - 0x100);
  if (c <= 0x142) return (int)(c - 0x121 + 0x7F);
  return c == 0x143 ? 0xAD : -1;
}

bool ane_alphabet_decode(const char *s, size_t len, char *out, size_t *out_len) {
  size_t n = 0;
  for (size_t i = 0; i < len;) {
    unsigned c = (unsigned char)s[i++];
    if (c >= 0x80) {
      if (c < 0xC2 || c > 0xC5 || i == len || ((unsigned char)s[i] & 0xC0) != 0x80) return false;
      c = (c & 0x1F) << 6 | ((unsigned char)s[i++] & 0x3F);
    }
    int b = unspell(c);
    if (b < 0) return false;
    out[n++] = (char)b;
  }
  *out_len = n;
  return true;
}

size_t ane_alphabet_spell(unsigned byte, char out[2]) {
  unsigned c = spell(byte);
  out[0] = (char)c;
  if (c < 0x80) return 1;
  out[0] = (char)(0xC0 | c >> 6);
  out[1] = (char)(0x80 | (c & 0x3F));
  return 2;
}

bool ane_alphabet_encode(const char *s, size_t len, struct ane_buffer *out) {
  size_t room;
  if (!ane_mul_size(len, 2, &room) || !ane_buffer_reserve(out, room)) return false;
  for (size_t i = 0; i < len; i++) out->size += ane_alphabet_spell((unsigned char)s[i], (char *)out->data + out->size);
  return true;
}

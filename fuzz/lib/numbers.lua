--- Integers at which sizes, offsets and counts overflow or leave their type, for mutators.
-- Usage: `local n = numbers[1 + random(#numbers)]`

return {
  0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, 1000, 4096, 16384, 32767, 65535, 65536, 0xFFFFFF, 0x1000000,
  0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x100000000, 0x3FFFFFFFFFF, 0x40000000001, 0x0FFFFFFFFFFFFFFF, 0x1FFFFFFFFFFFFFFF,
  0x2000000000000001, 0x3FFFFFFFFFFFFFFF, 0x4000000000000000, 0x7FFFFFFFFFFFFFE0, math.maxinteger, math.mininteger, -1, -2, -31, -32, -33,
}

ovsw_isa(
  x86_avx2
  ARCH x86_64
  SHARES x86
  FLAGS -mavx2 -mpopcnt)

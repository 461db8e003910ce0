ovsw_isa(
  x86_avx512
  ARCH x86_64
  SHARES x86
  FLAGS -mavx2 -mpopcnt -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx512vpopcntdq -mavx512vnni
    -mprefer-vector-width=512)

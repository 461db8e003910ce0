// Text for the inner loops, which are assembly: with 16 sums and 8 patches in registers, gcc 12 spills or copies some
// of them in every step, in whatever order the source has them.
//
// %[x] runs through the patches of a tile, [16 bytes][pixel], and pixel p's bytes go to register p; %[w] runs through
// one panel of weights.
#pragma once

// M(p, ...) for each pixel of a tile of 1 to 8.
#define OVSW_EACH1(M, ...) M(0, __VA_ARGS__)
#define OVSW_EACH2(M, ...) OVSW_EACH1(M, __VA_ARGS__) M(1, __VA_ARGS__)
#define OVSW_EACH3(M, ...) OVSW_EACH2(M, __VA_ARGS__) M(2, __VA_ARGS__)
#define OVSW_EACH4(M, ...) OVSW_EACH3(M, __VA_ARGS__) M(3, __VA_ARGS__)
#define OVSW_EACH5(M, ...) OVSW_EACH4(M, __VA_ARGS__) M(4, __VA_ARGS__)
#define OVSW_EACH6(M, ...) OVSW_EACH5(M, __VA_ARGS__) M(5, __VA_ARGS__)
#define OVSW_EACH7(M, ...) OVSW_EACH6(M, __VA_ARGS__) M(6, __VA_ARGS__)
#define OVSW_EACH8(M, ...) OVSW_EACH7(M, __VA_ARGS__) M(7, __VA_ARGS__)

// The next 16 bytes of each patch.
#define OVSW_LOAD_X(i) "ldr q" #i ", [%[x]], #16\n\t"
#define OVSW_LOAD_XX(i, j) "ldp q" #i ", q" #j ", [%[x]], #32\n\t"
#define OVSW_PIXELS1 OVSW_LOAD_X(0)
#define OVSW_PIXELS2 OVSW_LOAD_XX(0, 1)
#define OVSW_PIXELS3 OVSW_PIXELS2 OVSW_LOAD_X(2)
#define OVSW_PIXELS4 OVSW_PIXELS2 OVSW_LOAD_XX(2, 3)
#define OVSW_PIXELS5 OVSW_PIXELS4 OVSW_LOAD_X(4)
#define OVSW_PIXELS6 OVSW_PIXELS4 OVSW_LOAD_XX(4, 5)
#define OVSW_PIXELS7 OVSW_PIXELS6 OVSW_LOAD_X(6)
#define OVSW_PIXELS8 OVSW_PIXELS6 OVSW_LOAD_XX(6, 7)

// The next 32 bytes of weights.
#define OVSW_LOAD_WW(i, j) "ldp q" #i ", q" #j ", [%[w]], #32\n\t"

// text %[n] times, n >= 1.
#define OVSW_LOOP(label, text)       \
  #label ":\n\t" text                \
         "subs %w[n], %w[n], #1\n\t" \
         "b.ne " #label "b\n\t"

// One specialisation of a template for each size of a tile.
#define OVSW_SIZES(M) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8)

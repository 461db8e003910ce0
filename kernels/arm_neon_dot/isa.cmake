ovsw_isa(arm_neon_dot ARCH aarch64 PORTABLE portable SHARES arm_neon FLAGS -march=armv8.2-a+dotprod)

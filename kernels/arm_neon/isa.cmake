ovsw_isa(arm_neon ARCH aarch64 PORTABLE portable)

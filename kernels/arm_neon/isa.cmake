ovsw_isa(arm_neon ARCH aarch64 PLAIN portable)

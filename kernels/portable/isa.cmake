# Every x86-64 CPU since 2009 has popcnt; without it there is little point in a binary network.
if(OVSW_ARCH STREQUAL "x86_64")
  ovsw_isa(portable FLAGS -msse4.2 -mpopcnt)
else()
  ovsw_isa(portable)
endif()

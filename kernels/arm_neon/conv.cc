// The convolution over the 16-bit stream, as conv.h describes it.

#include "kernels/arm_neon/conv.h"

namespace ovsw::OVSW_ISA::neon {

std::size_t Conv::packed_bytes(const Shape& s) { return packed16_bytes(s); }
void Conv::pack(const Shape& s, const void* weights, void* packed) { pack16(s, weights, packed); }
std::size_t Conv::scratch_bytes(const Shape& s) { return scratch_layout<Map>(s).bytes; }
void Conv::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  conv16<Map>(args, args.weights, begin, end, scratch);
}

}  // namespace ovsw::OVSW_ISA::neon

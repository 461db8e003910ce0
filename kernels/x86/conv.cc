// The convolution over the 16-bit stream, as conv.h describes it.

#include "kernels/x86/conv.h"

#include "kernels/x86/kernels.h"

namespace ovsw::OVSW_ISA::x86 {

std::size_t Conv::packed_bytes(const Shape& s) { return packed_words_bytes(s); }

void Conv::pack(const Shape& s, const void* weights, void* packed) { pack_words(s, weights, packed); }

std::size_t Conv::scratch_bytes(const Shape& s) { return words_scratch_bytes(s); }

void Conv::run(const KernelArgs& args, std::int64_t begin, std::int64_t end, void* scratch) {
  run_conv<Map>(args, args.weights, begin, end, scratch);
}

}  // namespace ovsw::OVSW_ISA::x86

// How a table is made: every row portable, but for those that an instruction set writes itself.
#pragma once

#include "kernels/portable/kernels.h"

#define OVSW_STRING_(x) #x
#define OVSW_STRING(x) OVSW_STRING_(x)

namespace ovsw::OVSW_ISA {

template <typename K>
constexpr Kernel kernel() {
  return {K::run, K::packed_bytes, K::pack, K::scratch_bytes};
}

struct Row {
  Numerics numerics;
  Core core;
  Kernel kernel;
};

template <Numerics N>
constexpr void set_portable(KernelTable& table) {
  namespace plain = OVSW_PLAIN::plain;
  Kernel* rows = table.kernels[int(N)];
  rows[int(Core::kBconv)] = kernel<plain::Bconv<N>>();
  rows[int(Core::kConvPixels)] = rows[int(Core::kConv)] = rows[int(Core::kLinear)] = kernel<plain::Conv<N>>();
  rows[int(Core::kMaxpool)] = kernel<plain::Maxpool<N>>();
  rows[int(Core::kAvgpool)] = kernel<plain::Avgpool<N>>();
  rows[int(Core::kChannelPad)] = kernel<plain::ChannelPad<N>>();
  rows[int(Core::kEltwise)] = kernel<plain::Eltwise<N>>();
  rows[int(Core::kBconvAny)] = kernel<plain::BconvAny<N>>();
  rows[int(Core::kConvAny)] = kernel<plain::ConvAny<N>>();
  rows[int(Core::kMul)] = kernel<plain::Mul<N>>();
  rows[int(Core::kConcat)] = kernel<plain::Concat<N>>();
  rows[int(Core::kGather)] = kernel<plain::Gather<N>>();
  rows[int(Core::kBilinear)] = kernel<plain::Bilinear<N>>();
  rows[int(Core::kSoftmax)] = kernel<plain::Softmax>();
  rows[int(Core::kLogSoftmax)] = kernel<plain::LogSoftmax>();
  rows[int(Core::kToFloat)] = kernel<plain::ToFloat>();
}

constexpr KernelTable portable_table(int priority, bool (*supported)()) {
  KernelTable table{OVSW_STRING(OVSW_ISA), priority, supported, {}};
  set_portable<Numerics::kFloat>(table);
  set_portable<Numerics::kInteger>(table);
  table.kernels[int(Numerics::kInteger)][int(Core::kLinear)] = kernel<OVSW_PLAIN::plain::Linear>();
  return table;
}

template <int N>
constexpr KernelTable make_table(int priority, bool (*supported)(), const Row (&rows)[N]) {
  KernelTable table = portable_table(priority, supported);
  for (const Row& row : rows) table.kernels[int(row.numerics)][int(row.core)] = row.kernel;
  return table;
}

extern const KernelTable kTable;

}  // namespace ovsw::OVSW_ISA

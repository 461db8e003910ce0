// Makes a kernel table: the portable kernels, except where the instruction set has its own.
#pragma once

#include "kernels/portable/kernels.h"

#define OVSW_STRING_(x) #x
#define OVSW_STRING(x) OVSW_STRING_(x)

namespace ovsw::OVSW_ISA {

namespace shared = ovsw::OVSW_PORTABLE::portable;  // the portable kernels of this table

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
  Kernel* rows = table.kernels[int(N)];
  rows[int(Core::kBconv)] = kernel<shared::Bconv<N>>();
  rows[int(Core::kConvPixels)] = rows[int(Core::kConv)] = rows[int(Core::kLinear)] = kernel<shared::Conv<N>>();
  rows[int(Core::kMaxpool)] = kernel<shared::Maxpool<N>>();
  rows[int(Core::kAvgpool)] = kernel<shared::Avgpool<N>>();
  rows[int(Core::kChannelPad)] = kernel<shared::ChannelPad<N>>();
  rows[int(Core::kEltwise)] = kernel<shared::Eltwise<N>>();
  rows[int(Core::kBconvAny)] = kernel<shared::BconvAny<N>>();
  rows[int(Core::kConvAny)] = kernel<shared::ConvAny<N>>();
  rows[int(Core::kMul)] = kernel<shared::Mul<N>>();
  rows[int(Core::kConcat)] = kernel<shared::Concat<N>>();
  rows[int(Core::kGather)] = kernel<shared::Gather<N>>();
  rows[int(Core::kBilinear)] = kernel<shared::Bilinear<N>>();
  rows[int(Core::kSoftmax)] = kernel<shared::Softmax>();
  rows[int(Core::kLogSoftmax)] = kernel<shared::LogSoftmax>();
  rows[int(Core::kToFloat)] = kernel<shared::ToFloat>();
  rows[int(Core::kRound)] = kernel<shared::Round>();
}

constexpr KernelTable portable_table(int priority, bool (*supported)()) {
  KernelTable table{OVSW_STRING(OVSW_ISA), priority, supported, {}};
  set_portable<Numerics::kFloat>(table);
  set_portable<Numerics::kInteger>(table);
  table.kernels[int(Numerics::kInteger)][int(Core::kLinear)] = kernel<shared::Linear>();
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

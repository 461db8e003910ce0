// The table of ops: one row of facts for each. The graph's checks, the plan, the engine and the tests read it; only the
// arithmetic is elsewhere.
#pragma once

#include <cstdint>
#include <optional>

#include "csrc/format/file.h"
#include "kernels/kernels.h"

namespace ovsw {

enum class OpKind : std::uint16_t {
  kBconv = 1,
  kConv = 2,
  kLinear = 3,
  kMaxpool = 4,
  kAvgpool = 5,
  kChannelPad = 6,
  kEltwise = 7,
  kMul = 8,
  kConcat = 9,
  kGather = 10,
  kBilinear = 11,
  kSoftmax = 12,
  kLogSoftmax = 13,
  kToFloat = 14,
  kRound = 15,
};

// How far a window may reach outside the map: by half of its taps, or by all but one pixel.
enum class Padding { kHalf, kMost };

enum OpFlags : unsigned {
  kWeights = 1 << 0,       // [out][window_h][window_w][in / groups], flat ones [out][features]
  kBinary = 1 << 1,        // reads bits and has weights of bits
  kFlat = 1 << 2,          // takes the map as one pixel
  kPadsChannels = 1 << 3,  // has more channels than its input
  kCopiesInput = 1 << 4,   // its results are numbers of its inputs, zero or pad_value
  kDilates = 1 << 5,       // there may be gaps between the taps of its window
  kCeils = 1 << 6,         // its last window may reach beyond the padding
  kPadValue = 1 << 7,      // has a pad_value
  kIndices = 1 << 8,       // its weight says where rows and columns come from; its output may have any shape
  kOperand = 1 << 9,       // its residual is the second operand and not added
  kPerChannel = 1 << 10,   // its residual may be one pixel, which is used for all pixels
  kNoEpilogue = 1 << 11,   // reads and writes f32 in both numerics, without constants, residual, activation or bits
  // In integers:
  kOnPixels = 1 << 12,      // may read u8
  kLogits = 1 << 13,        // writes f32 and has no residual, activation or bits
  kIntegersOnly = 1 << 14,  // does not exist in float
  kFloatOnly = 1 << 15,     // does not exist in integers
};

struct OpTraits {
  OpKind kind;
  const char* name;
  Core core;
  unsigned flags;
  int window;  // the longest side; 0: it has none
  Padding padding;
  // In integers. In float, every op with an epilogue may have scale and offset as f64.
  std::optional<Dtype> scale;
  int max_shift;  // largest shift; 0: it has neither shift nor an integer offset

  constexpr bool is(OpFlags flag) const { return (flags & flag) != 0; }
  // In integers: whether it may be a wide op, and whether it may read an i32.
  constexpr bool may_be_wide() const { return !is(kLogits) && !is(kNoEpilogue); }
  constexpr bool may_read_i32() const { return !is(kWeights) && !is(kNoEpilogue); }
};

constexpr OpTraits kOps[] = {
    {OpKind::kBconv, "bconv", Core::kBconv, kWeights | kBinary | kDilates | kPadValue, 255, Padding::kMost, Dtype::kI16,
     31},
    {OpKind::kConv, "conv", Core::kConv, kWeights | kDilates | kOnPixels, 255, Padding::kMost, {}, 31},
    {OpKind::kLinear, "linear", Core::kLinear, kWeights | kFlat | kLogits, 0, {}, Dtype::kF32, 47},
    {OpKind::kMaxpool, "maxpool", Core::kMaxpool, kCopiesInput | kDilates | kCeils, 255, Padding::kHalf, {}, 0},
    {OpKind::kAvgpool, "avgpool", Core::kAvgpool, kCeils, 65535, Padding::kHalf, Dtype::kI16, 47},
    {OpKind::kChannelPad, "channel_pad", Core::kChannelPad, kPadsChannels | kCopiesInput, 0, {}, {}, 0},
    {OpKind::kEltwise, "eltwise", Core::kEltwise, kPerChannel, 0, {}, {}, 0},
    {OpKind::kMul, "mul", Core::kMul, kOperand | kPerChannel, 0, {}, Dtype::kI16, 47},
    {OpKind::kConcat, "concat", Core::kConcat, kOperand | kCopiesInput, 0, {}, {}, 0},
    {OpKind::kGather, "gather", Core::kGather, kIndices | kPadValue | kCopiesInput, 0, {}, {}, 0},
    {OpKind::kBilinear, "bilinear", Core::kBilinear, kIndices, 0, {}, {}, 0},
    {OpKind::kSoftmax, "softmax", Core::kSoftmax, kNoEpilogue, 0, {}, {}, 0},
    {OpKind::kLogSoftmax, "log_softmax", Core::kLogSoftmax, kNoEpilogue, 0, {}, {}, 0},
    {OpKind::kToFloat, "to_float", Core::kToFloat, kLogits | kIntegersOnly, 0, {}, Dtype::kF64, 0},
    {OpKind::kRound, "round", Core::kRound, kFloatOnly, 0, {}, {}, 0},
};

// Null for an unknown code.
constexpr const OpTraits* op_traits(std::uint16_t kind) {
  for (const OpTraits& op : kOps) {
    if (std::uint16_t(op.kind) == kind) return &op;
  }
  return nullptr;
}

// A per-channel tensor: its dtype, whether it is required, and whether it may have a second row.
struct Need {
  Dtype dtype;
  bool always;
  bool rows = false;
};

// What an op needs for one of the constants that a record names; nothing if it must not have it. Only an op in integers
// may be `wide`.
constexpr std::optional<Need> constant_need(const OpTraits& op, Numerics numerics, bool wide, Act act, Constant which) {
  const bool integer = numerics == Numerics::kInteger;
  const Dtype narrow_or_wide = wide ? Dtype::kI32 : Dtype::kI16;
  if (op.is(kNoEpilogue)) return {};
  switch (which) {
    case kScale:
      if (!integer) return Need{Dtype::kF64, false, op.is(kBinary)};
      if (op.is(kBinary)) return Need{narrow_or_wide, true, true};
      if (op.scale) return Need{*op.scale, true};
      return {};
    case kOffset:
      if (!integer) return Need{Dtype::kF64, false};
      if (op.max_shift) return Need{Dtype::kI32, true};
      if (op.scale) return Need{*op.scale, true};
      return {};
    case kSlope:
      if (act == Act::kPrelu) return Need{integer ? narrow_or_wide : Dtype::kF32, true, true};
      if (act == Act::kTable) return Need{Dtype::kI16, true};
      return {};
    case kShift:
      if (integer && op.max_shift) return Need{Dtype::kU8, true};
      return {};
    case kThreshold:
      return Need{integer ? narrow_or_wide : Dtype::kF32, false};
    default:
      return {};
  }
}

constexpr const char* kConstantNames[] = {"scale", "offset", "slope", "shift", "threshold"};  // of a record

constexpr const char* element_name(Element kind) {
  constexpr const char* kNames[] = {"f32", "bits", "i16", "i32", "u8"};
  return kNames[std::size_t(kind)];
}

}  // namespace ovsw

// What an op is: one row of facts each. Everything that is not arithmetic reads it: the graph's checks, the plan, the
// engine and the tests.
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
};

// How far a window may lie outside the map: not at all, by half of it, by all but one of its taps.
enum class Padding { kNone, kHalf, kMost };

enum OpFlags : unsigned {
  kWeights = 1,       // [out][window_h][window_w][in], flat ones [out][features]
  kBinary = 2,        // reads bits and has weights of bits
  kFlat = 4,          // takes the map as one pixel
  kPadsChannels = 8,  // has more channels than its input
  kHandsOn = 16,      // gives out numbers of its input
  // In integers:
  kOnPixels = 32,  // may read u8
  kWide = 64,      // may write an i32, if it does not read u8
  kLogits = 128,   // writes f32 and has no residual, activation or bits
};

struct OpTraits {
  OpKind kind;
  const char* name;
  Core core;
  unsigned flags;
  int window;  // the longest side; 0: it has none
  Padding padding;
  // In integers; in float every op may have scale and offset of f64.
  std::optional<Dtype> scale;
  int max_shift;  // of its offset and shift; 0: it has none

  constexpr bool is(OpFlags flag) const { return (flags & flag) != 0; }
};

constexpr OpTraits kOps[] = {
    {OpKind::kBconv, "bconv", Core::kBconv, kWeights | kBinary, 255, Padding::kMost, Dtype::kI16, 31},
    {OpKind::kConv, "conv", Core::kConv, kWeights | kOnPixels | kWide, 255, Padding::kMost, {}, 31},
    {OpKind::kLinear, "linear", Core::kLinear, kWeights | kFlat | kLogits, 0, Padding::kNone, Dtype::kF32, 47},
    {OpKind::kMaxpool, "maxpool", Core::kMaxpool, kHandsOn, 255, Padding::kHalf, {}, 0},
    {OpKind::kAvgpool, "avgpool", Core::kAvgpool, 0, 65535, Padding::kNone, Dtype::kI16, 47},
    {OpKind::kChannelPad, "channel_pad", Core::kChannelPad, kPadsChannels | kHandsOn, 0, Padding::kNone, {}, 0},
    {OpKind::kEltwise, "eltwise", Core::kEltwise, 0, 0, Padding::kNone, {}, 0},
};

// Null for a code that is none.
constexpr const OpTraits* op_traits(std::uint16_t kind) {
  for (const OpTraits& op : kOps) {
    if (std::uint16_t(op.kind) == kind) return &op;
  }
  return nullptr;
}

// A tensor per channel: its dtype, and whether it must be there.
struct Need {
  Dtype dtype;
  bool always;
};

// Whether an op has this constant; nothing if it must not.
constexpr std::optional<Need> constant_need(const OpTraits& op, Numerics numerics, Act act, Constant which) {
  const bool integer = numerics == Numerics::kInteger;
  switch (which) {
    case kScale:
      if (!integer) return Need{Dtype::kF64, false};
      if (op.scale) return Need{*op.scale, true};
      return {};
    case kOffset:
      if (!integer) return Need{Dtype::kF64, false};
      if (op.max_shift) return Need{Dtype::kI32, true};
      return {};
    case kSlope:
      if (act == Act::kPrelu) return Need{integer ? Dtype::kI16 : Dtype::kF32, true};
      return {};
    case kShift:
      if (integer && op.max_shift) return Need{Dtype::kU8, true};
      return {};
    case kThreshold:
    case kWindow:
    case kPositive:
      return {};
  }
  return {};
}

constexpr const char* kConstantNames[kConstantCount] = {"scale",     "offset", "slope",   "shift",
                                                        "threshold", "window", "positive"};

constexpr const char* element_name(Element kind) {
  constexpr const char* kNames[] = {"f32", "bits", "i16", "i32", "u8"};
  return kNames[std::size_t(kind)];
}

}  // namespace ovsw

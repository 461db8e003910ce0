#include "csrc/plan/border.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

namespace ovsw {
namespace {

using Range = std::pair<int, int>;  // taps [first, second) that lie inside the image

std::int64_t count(const Range& y, const Range& x) { return std::int64_t(y.second - y.first) * (x.second - x.first); }

// Windows along one side of a map.
struct Side {
  int in, out, window, stride, pad, gap;

  bool operator<(const Side& o) const {
    return std::tie(in, out, window, stride, pad, gap) < std::tie(o.in, o.out, o.window, o.stride, o.pad, o.gap);
  }
};

Side rows_of(const Shape& s) { return {s.in_h, s.out_h, s.window_h, s.stride_h, s.pad_h, s.gap_h}; }
Side columns_of(const Shape& s) { return {s.in_w, s.out_w, s.window_w, s.stride_w, s.pad_w, s.gap_w}; }

// The windows from `begin` to the next class have the same taps inside.
struct Class {
  int begin;
  Range taps;
};

// The classes along a side. From one window to the next both ends of the range can only fall, so no class comes twice.
std::vector<Class> classes_of(const Side& side) {
  const int step = side.gap + 1;
  // The number of taps of a window that lie before a point `pixels` pixels after its first tap.
  const auto before = [&](int pixels) { return std::clamp((pixels + step - 1) / step, 0, side.window); };
  // The first window with fewer than `count` of them; `pixels` belongs to window 0.
  const auto falls = [&](int pixels, int count) {
    return count == 0 ? side.out : (pixels - (count - 1) * step + side.stride - 1) / side.stride;
  };
  std::vector<Class> classes;
  for (int o = 0; o < side.out;) {
    const int start = o * side.stride - side.pad;
    const Range taps{before(-start), before(side.in - start)};
    classes.push_back({o, taps});
    o = std::min(falls(side.pad, taps.first), falls(side.in + side.pad, taps.second));
  }
  return classes;
}

// The sums of a value per tap over any rectangle of taps, in four reads.
class TapSums {
 public:
  TapSums(int window_h, int window_w)
      : height_(std::size_t(window_h)), width_(std::size_t(window_w)), sums_((height_ + 1) * (width_ + 1), 0) {}

  // value(tap), taps counted row by row.
  template <typename Fn>
  void fill(Fn value) {
    for (std::size_t y = 0; y < height_; ++y) {
      std::int64_t row = 0;
      for (std::size_t x = 0; x < width_; ++x) {
        row += value(y * width_ + x);
        at(y + 1, x + 1) = at(y, x + 1) + row;
      }
    }
  }

  std::int64_t inside(const Range& y, const Range& x) {
    const auto corner = [&](int ky, int kx) { return at(std::size_t(ky), std::size_t(kx)); };
    return corner(y.second, x.second) - corner(y.first, x.second) - corner(y.second, x.first) +
           corner(y.first, x.first);
  }
  std::int64_t all() { return at(height_, width_); }

 private:
  std::int64_t& at(std::size_t y, std::size_t x) { return sums_[y * (width_ + 1) + x]; }

  std::size_t height_, width_;
  std::vector<std::int64_t> sums_;  // of the taps above and to the left
};

// How much of a border an op has.
enum class Kind {
  kNone,
  kBase,      // one row of base
  kOneClass,  // the same, and class tables that are all zero
  kClasses,
};

Kind kind_of(const Graph& graph, const Op& op) {
  if (op.traits->is(kBinary)) return Kind::kClasses;
  if (graph.numerics != Numerics::kInteger) return Kind::kNone;
  if (op.traits->core == Core::kConv) return op.on_pixels ? Kind::kClasses : Kind::kOneClass;
  return op.traits->max_shift ? Kind::kBase : Kind::kNone;  // the offset of to_float is not part of a border
}

bool has_outside(const Graph& graph, const Op& op) {
  return graph.numerics == Numerics::kFloat && op.traits->is(kBinary) && op.pad_value != 0;
}
bool has_window(const Graph& graph, const Op& op) {
  return graph.numerics == Numerics::kFloat && op.traits->is(kBinary) && op.constant<double>(kWindow);
}

// The number of elements in each part of an op's border; 0 if it has no such part.
struct Sizes {
  std::size_t base, outside, window;

  Sizes(const Graph& graph, const Op& op, std::size_t classes) {
    base = kind_of(graph, op) == Kind::kNone ? 0 : classes * std::size_t(padded_channels(op.shape.out_c));
    outside = has_outside(graph, op) ? base : 0;
    window = has_window(graph, op) ? 2 * classes : 0;
  }
  std::size_t bytes() const {
    const auto takes = [](std::size_t bytes) { return bytes ? Buffer::takes(bytes) : 0; };
    return takes(base * sizeof(std::int32_t)) + takes(outside * sizeof(double)) + takes(window * sizeof(double));
  }
};

// The class of each row or column, times `step`. Equal tables are stored once; all that have a single class share one
// table of zeros.
class ClassTables {
 public:
  void want(const Side& side, std::size_t classes, std::size_t step) {
    if (classes == 1) {
      zeros_ = std::max(zeros_, std::size_t(side.out));
    } else {
      tables_.emplace(std::make_pair(side, step), nullptr);
    }
  }

  std::size_t bytes() const {
    std::size_t all = zeros_ ? Buffer::takes(zeros_ * sizeof(std::int32_t)) : 0;
    for (const auto& table : tables_) {
      all += Buffer::takes(std::size_t(table.first.first.out) * sizeof(std::int32_t));
    }
    return all;
  }

  const std::int32_t* get(const Side& side, const std::vector<Class>& classes, std::size_t step,
                          std::vector<Buffer>* memory) {
    if (classes.size() == 1) {
      if (!zero_) zero_ = make(zeros_, {}, 0, memory);
      return zero_;
    }
    const std::int32_t*& table = tables_.at({side, step});
    if (!table) table = make(std::size_t(side.out), classes, std::int32_t(step), memory);
    return table;
  }

 private:
  static const std::int32_t* make(std::size_t size, const std::vector<Class>& classes, std::int32_t step,
                                  std::vector<Buffer>* memory) {
    memory->emplace_back(size * sizeof(std::int32_t));
    auto* table = memory->back().as<std::int32_t>();
    std::fill_n(table, size, 0);
    for (std::size_t i = 0; i < classes.size(); ++i) {
      const std::size_t end = i + 1 < classes.size() ? std::size_t(classes[i + 1].begin) : size;
      std::fill(table + classes[i].begin, table + end, std::int32_t(i) * step);
    }
    return table;
  }

  std::map<std::pair<Side, std::size_t>, const std::int32_t*> tables_;
  std::size_t zeros_ = 0;
  const std::int32_t* zero_ = nullptr;
};

// The classes of an op along both sides; one each if its border does not depend on them.
struct Classes {
  Side row_side, column_side;
  std::vector<Class> rows, columns;

  Classes(const Shape& s, Kind kind) : row_side(rows_of(s)), column_side(columns_of(s)), rows(1), columns(1) {
    if (kind != Kind::kClasses) return;
    rows = classes_of(row_side);
    columns = classes_of(column_side);
  }
  std::size_t count() const { return rows.size() * columns.size(); }
  void want_tables(ClassTables* tables) const {
    tables->want(row_side, rows.size(), columns.size());
    tables->want(column_side, columns.size(), 1);
  }
};

// Fills a table. entry(c, at, y, x) gives the entry for channel c where the taps y, x are inside; `at` is its index,
// and its low 32 bits are kept. begin(c) is called before the entries of a channel.
template <typename Begin, typename Entry>
void fill_table(const Shape& s, const Classes& classes, std::int32_t* base, Begin begin, Entry entry) {
  const auto stride = std::size_t(padded_channels(s.out_c));
  for (int c = 0; c < s.out_c; ++c) {
    begin(c);
    std::size_t at = std::size_t(c);
    for (const Class& y : classes.rows) {
      for (const Class& x : classes.columns) {
        base[at] = std::int32_t(std::uint32_t(entry(c, at, y.taps, x.taps)));
        at += stride;
      }
    }
  }
}

// The terms of one binary convolution, channel by channel.
class DotTerms {
 public:
  DotTerms(const Shape& s, const std::uint64_t* weights)
      : taps_(std::int64_t(s.window_h) * s.window_w),
        channels_(s.group_in()),
        weights_(weights),
        words_((std::size_t(channels_) + 63) / 64),
        ones_(s.window_h, s.window_w) {}

  void begin(int c) {
    const std::uint64_t* channel = weights_ + std::size_t(c) * std::size_t(taps_) * words_;
    ones_.fill([&](std::size_t tap) {
      std::int64_t sum = 0;
      for (std::size_t w = 0; w < words_; ++w) {
        sum += std::int64_t(std::bitset<64>(channel[tap * words_ + w]).count());
      }
      return sum;
    });
  }
  std::int64_t base(const Range& y, const Range& x) { return inputs(y, x) + 2 * outside_ones(y, x); }
  // How many inputs lie inside, and outside.
  std::int64_t inputs(const Range& y, const Range& x) const { return channels_ * count(y, x); }
  std::int64_t outside_inputs(const Range& y, const Range& x) const { return channels_ * (taps_ - count(y, x)); }
  // The sum of the weights outside.
  std::int64_t outside(const Range& y, const Range& x) { return 2 * outside_ones(y, x) - outside_inputs(y, x); }

 private:
  std::int64_t outside_ones(const Range& y, const Range& x) { return ones_.all() - ones_.inside(y, x); }

  std::int64_t taps_, channels_;
  const std::uint64_t* weights_;
  std::size_t words_;
  TapSums ones_;
};

// The parts of one op's border, to be filled; null if it has no such part.
struct Parts {
  std::int32_t* base;
  double *outside, *window;
};

// On pixels: `zeros` is what the taps inside subtract.
void fill_pixels(const Graph& graph, const Op& op, const Classes& classes, const Parts& to) {
  const Shape& s = op.shape;
  const std::size_t taps = op.taps(), channels = std::size_t(s.group_in());
  TapSums zeros(s.window_h, s.window_w);
  const auto begin = [&](int c) {
    const std::size_t first = std::size_t(c / s.group_out()) * channels;
    zeros.fill([&](std::size_t tap) {
      std::int64_t total = 0;
      for (std::size_t i = 0; i < channels; ++i) {
        total += op.int_weight((std::size_t(c) * taps + tap) * channels + i) * graph.zero(int(first + i));
      }
      return total;
    });
  };
  const auto* offset = op.constant<std::int32_t>(kOffset);
  fill_table(s, classes, to.base, begin, [&](int c, std::size_t, const Range& y, const Range& x) {
    return offset[c] - ((zeros.inside(y, x) + 128) >> 8);
  });
}

void fill_float_dots(const Op& op, const Classes& classes, const Parts& to) {
  const double p = double(op.pad_value);
  const std::size_t stride = std::size_t(padded_channels(op.shape.out_c));
  DotTerms terms(op.shape, op.weights<std::uint64_t>());
  const auto begin = [&](int c) { terms.begin(c); };
  fill_table(op.shape, classes, to.base, begin, [&](int, std::size_t at, const Range& y, const Range& x) {
    if (to.outside) to.outside[at] = p * double(terms.outside(y, x));
    if (to.window) {
      to.window[2 * (at / stride)] = -double(terms.inputs(y, x));
      to.window[2 * (at / stride) + 1] = p * double(terms.outside_inputs(y, x));
    }
    return terms.base(y, x);
  });
}

void fill_integer_dots(const Op& op, const Classes& classes, const Parts& to) {
  const double p = double(op.pad_value);
  const bool window = op.constant<std::int32_t>(kWindow) != nullptr;
  const auto* offset = op.constant<std::int32_t>(kOffset);
  DotTerms terms(op.shape, op.weights<std::uint64_t>());
  const auto begin = [&](int c) { terms.begin(c); };
  fill_table(op.shape, classes, to.base, begin, [&](int c, std::size_t, const Range& y, const Range& x) {
    const std::int64_t m = op.int_scale(c), n = window ? op.int_scale(c, kWindow) : 0;
    const auto outside = double(m * terms.outside(y, x) + n * terms.outside_inputs(y, x));
    return m * terms.base(y, x) - n * terms.inputs(y, x) + offset[c] + std::int64_t(std::floor(p * outside + 0.5));
  });
}

void fill(const Graph& graph, const Op& op, const Classes& classes, const Parts& to) {
  if (op.traits->is(kBinary)) {
    const bool integer = graph.numerics == Numerics::kInteger;
    integer ? fill_integer_dots(op, classes, to) : fill_float_dots(op, classes, to);
  } else if (op.on_pixels) {
    fill_pixels(graph, op, classes, to);
  } else {
    std::memcpy(to.base, op.constant<std::int32_t>(kOffset), std::size_t(op.shape.out_c) * sizeof(std::int32_t));
  }
}

// `count` zeros, or null for none.
template <typename T>
T* zeros(std::size_t count, std::vector<Buffer>* memory) {
  if (count == 0) return nullptr;
  memory->emplace_back(count * sizeof(T));
  std::memset(memory->back().data(), 0, count * sizeof(T));
  return memory->back().as<T>();
}

bool has_tables(Kind kind) { return kind == Kind::kOneClass || kind == Kind::kClasses; }

}  // namespace

std::size_t border_bytes(const Graph& graph) {
  std::size_t bytes = 0;
  ClassTables tables;
  for (const Op& op : graph.ops) {
    const Kind kind = kind_of(graph, op);
    if (kind == Kind::kNone) continue;
    const Classes classes(op.shape, kind);
    bytes += Sizes(graph, op, classes.count()).bytes();
    if (has_tables(kind)) classes.want_tables(&tables);
  }
  return bytes + tables.bytes();
}

std::vector<Border> make_borders(const Graph& graph, std::vector<Buffer>* memory) {
  ClassTables tables;
  for (const Op& op : graph.ops) {
    const Kind kind = kind_of(graph, op);
    if (has_tables(kind)) Classes(op.shape, kind).want_tables(&tables);
  }
  std::vector<Border> borders;
  borders.reserve(graph.ops.size());
  for (const Op& op : graph.ops) {
    borders.push_back({});
    const Kind kind = kind_of(graph, op);
    if (kind == Kind::kNone) continue;
    const Classes classes(op.shape, kind);
    const Sizes sizes(graph, op, classes.count());
    const Parts parts{zeros<std::int32_t>(sizes.base, memory), zeros<double>(sizes.outside, memory),
                      zeros<double>(sizes.window, memory)};
    fill(graph, op, classes, parts);
    Border& border = borders.back();
    border = {parts.base, nullptr, nullptr, parts.outside, parts.window};
    if (!has_tables(kind)) continue;
    border.row_class = tables.get(classes.row_side, classes.rows, classes.columns.size(), memory);
    border.col_class = tables.get(classes.column_side, classes.columns, 1, memory);
  }
  return borders;
}

}  // namespace ovsw

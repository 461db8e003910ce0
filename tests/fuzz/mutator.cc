// libFuzzer's mutations and crossings of `.bnn` files: one to four changes that know what the fields are, then repairs.
// One mutant in six is left with what the changes made of its graph, one in six is changed byte by byte, and only its
// size and checksum are made right: those are for the loader.

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/graph/ops.h"
#include "tests/fuzz/container.h"
#include "tests/fuzz/repair.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace ovsw::fuzz {
namespace {

constexpr std::uint32_t kSizes[] = {1,  2,  3,  4,  5,  7,  8,  9,  15,  16,  17,  31,  32,
                                    33, 47, 48, 49, 63, 64, 65, 96, 127, 128, 129, 192, 257};
constexpr float kFloats[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 2.75f, -1024.0f, 1e-40f, 3e38f, -32768.0f, 32767.0f};
constexpr const char* kMetadata[] = {
    "{}",
    R"({"labels":[]})",
    R"({"labels":"cifar10","arch":"a"})",
    R"({"labels":"imagenet"})",
    R"({"preprocess":{"resize":64,"crop":4}})",
    R"({"labels":["\u0041\ud83d\ude00","b"],"num_classes":2})",
};

class Mutation {
 public:
  Mutation(Document& d, Random& random) : d_(d), random_(random) {}

  void run() {
    using Change = void (Mutation::*)();
    constexpr Change kChanges[] = {
        &Mutation::window,  &Mutation::window,   &Mutation::references, &Mutation::references, &Mutation::channels,
        &Mutation::numbers, &Mutation::numbers,  &Mutation::numbers,    &Mutation::activation, &Mutation::presence,
        &Mutation::kind,    &Mutation::repeat,   &Mutation::remove,     &Mutation::outputs,    &Mutation::input,
        &Mutation::padding, &Mutation::metadata, &Mutation::name,       &Mutation::shapes,     &Mutation::header,
    };
    for (std::uint32_t n = 1 + random_.below(4); n > 0; --n) (this->*random_.one_of(kChanges))();
  }

 private:
  OpFields* op() { return d_.ops.empty() ? nullptr : &d_.ops[random_.below(d_.ops.size())]; }
  std::uint32_t size() { return random_.one_of(kSizes); }
  std::uint32_t value() { return random_.below(d_.values.size()); }

  void window() {
    OpFields* o = op();
    if (!o) return;
    const auto small = [&] { return std::uint16_t(random_.chance(85) ? random_.below(6) : size()); };
    for (std::uint16_t* field : {&o->window_h, &o->window_w, &o->stride_h, &o->stride_w, &o->pad_h, &o->pad_w}) {
      if (random_.chance(30)) *field = small();
    }
    if (random_.chance(20)) o->gap_h = std::uint8_t(random_.below(4));
    if (random_.chance(20)) o->gap_w = std::uint8_t(random_.below(4));
    if (random_.chance(20)) o->flags = std::uint16_t(random_.below(4));
  }
  void references() {
    if (OpFields* o = op()) {
      std::uint32_t* refs[] = {&o->input, &o->residual, &o->out, &o->bits};
      *random_.one_of(refs) = random_.chance(15) ? kAbsent : value();
    }
  }
  void channels() {
    OpFields* o = op();
    if (!o || !o->weight) return;
    Tensor& w = *o->weight;
    if (w.shape.size() == 4 && random_.chance(50)) {  // groups
      w.shape[3] = random_.chance(50) ? 1 : size();
    } else {
      w.shape[0] = size();
    }
    w.reshape(w.dtype, w.shape);
  }
  Tensor* tensor() {
    std::vector<Tensor*> all{&d_.mean, &d_.std};
    for (OpFields& o : d_.ops) {
      if (o.weight) all.push_back(&*o.weight);
      for (auto& t : o.constants) {
        if (t) all.push_back(&*t);
      }
    }
    return all[random_.below(all.size())];
  }
  void numbers() {
    Tensor* t = tensor();
    if (random_.chance(30)) {
      bytes(t->data, t->data.size());
    } else if (random_.chance(30)) {
      std::fill(t->data.begin(), t->data.end(), random_.one_of({'\0', '\xFF', '\x7F', '\x80', '\x01'}));
    } else {
      for (std::uint32_t n = 1 + random_.below(8); n > 0; --n) number(*t);
    }
    t->reshape(t->dtype, t->shape);
  }
  void number(Tensor& t) {
    const std::size_t i = random_.below(t.elements());
    const auto extreme = [&](auto lowest, auto highest) {
      using T = decltype(lowest);
      const T list[] = {lowest, highest, T(0), T(1), T(-1), T(lowest + 1), T(random_.below(1u << 31))};
      t.as<T>()[i] = random_.one_of(list);
    };
    switch (t.dtype) {
      case Dtype::kF32:
        t.as<float>()[i] = random_.one_of(kFloats);
        break;
      case Dtype::kF64:
        t.as<double>()[i] = double(random_.one_of(kFloats));
        break;
      case Dtype::kBits:
        t.as<std::uint64_t>()[i] ^= std::uint64_t(1) << random_.below(64);
        break;
      case Dtype::kI16:
        extreme(std::int16_t(-32768), std::int16_t(32767));
        break;
      case Dtype::kI32:
        extreme(std::int32_t(-2147483647 - 1), std::int32_t(2147483647));
        break;
      case Dtype::kU8:
        t.as<std::uint8_t>()[i] = std::uint8_t(random_.below(50));
        break;
      case Dtype::kI8:
        extreme(std::int8_t(-128), std::int8_t(127));
        break;
    }
  }
  void activation() {
    if (OpFields* o = op()) {
      o->activation = std::uint16_t(random_.below(6));
      o->clamp_lo = random_.one_of(kFloats);
      o->clamp_hi = random_.one_of(kFloats);
    }
  }
  // Whether an op has something, or one row of it, or two.
  void presence() {
    OpFields* o = op();
    if (!o) return;
    std::optional<Tensor>& t = o->constants[random_.below(5)];
    if (!t) {
      t.emplace();
      t->data.assign(8, char(random_.below(256)));
      t->reshape(Dtype::kF64, {1});
    } else if (random_.chance(50)) {
      t->shape =
          t->shape.size() == 2 ? std::vector<std::uint32_t>{t->shape[1]} : std::vector<std::uint32_t>{2, t->shape[0]};
      t->reshape(t->dtype, t->shape);
    } else {
      t.reset();
    }
  }
  void kind() {
    if (OpFields* o = op()) o->kind = std::uint16_t(random_.chance(95) ? 1 + random_.below(14) : random_.below(20));
  }
  void repeat() {
    if (d_.ops.empty()) return;
    const std::size_t from = random_.below(d_.ops.size()), to = random_.below(d_.ops.size() + 1);
    OpFields copy = d_.ops[from];
    for (std::uint32_t* ref : {&copy.out, &copy.bits}) {
      if (*ref >= d_.values.size()) continue;
      const ValueRecord record = d_.values[*ref];
      *ref = std::uint32_t(d_.values.size());
      d_.values.push_back(record);
    }
    if (random_.chance(50)) copy.input = value();
    d_.ops.insert(d_.ops.begin() + std::ptrdiff_t(to), std::move(copy));
  }
  void remove() {
    if (d_.ops.size() > 1) d_.ops.erase(d_.ops.begin() + std::ptrdiff_t(random_.below(d_.ops.size())));
  }
  void outputs() {
    if (random_.chance(50) || d_.outputs.empty()) {
      d_.outputs.push_back(value());
    } else {
      d_.outputs[random_.below(d_.outputs.size())] = value();
      if (random_.chance(30)) d_.outputs.resize(1);
    }
  }
  void input() {
    ValueRecord& v = d_.values[0];
    std::uint32_t* sides[] = {&v.c, &v.h, &v.w};
    *random_.one_of(sides) = random_.chance(50) ? 1 + random_.below(8) : size();
    if (random_.chance(5)) d_.numerics ^= 1;
  }
  void shapes() {
    ValueRecord& v = d_.values[value()];
    std::uint32_t* fields[] = {&v.kind, &v.c, &v.h, &v.w};
    *random_.one_of(fields) = random_.chance(90) ? size() : 1u << random_.below(31);
  }
  void padding() {
    OpFields* o = op();
    if (!o) return;
    const float pad = random_.one_of(kFloats);
    std::memcpy(&o->padding, &pad, sizeof pad);
    if (random_.chance(50)) o->padding = random_.below(5) | random_.below(70) << 16;
  }
  void metadata() {
    if (random_.chance(40)) d_.metadata = random_.one_of(kMetadata);
    if (random_.chance(60)) bytes(d_.metadata, 512);
  }
  void name() {
    if (OpFields* o = op()) bytes(o->name, 300);
  }
  void header() { d_.minor = std::uint16_t(random_.below(5)); }
  static void bytes(std::string& text, std::size_t most) {
    const std::size_t had = text.size();
    text.resize(std::max(most, had));
    text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), had, std::max(most, had)));
  }

  Document& d_;
  Random& random_;
};

// Into `data`, if there is room.
std::size_t put(const Document& d, std::uint8_t* data, std::size_t max_size) {
  const std::string file = write_document(d);
  if (file.size() > max_size) return 0;
  std::memcpy(data, file.data(), file.size());
  return file.size();
}

// The ops of both, those of the second one on whatever of the first fits them.
Document cross(Document a, const Document& b, Random& random) {
  const auto moved = [&](std::uint32_t v) { return v == 0 || v == kAbsent ? v : v + std::uint32_t(a.values.size()); };
  const std::size_t first = random.below(b.ops.size()), count = 1 + random.below(b.ops.size() - first);
  a.ops.resize(std::min<std::size_t>(a.ops.size(), 1 + random.below(a.ops.size())));
  for (std::size_t i = first; i < first + count; ++i) {
    OpFields op = b.ops[i];
    for (std::uint32_t* ref : {&op.input, &op.residual, &op.out, &op.bits}) *ref = moved(*ref);
    a.ops.push_back(std::move(op));
  }
  a.values.insert(a.values.end(), b.values.begin(), b.values.end());
  return a;
}

}  // namespace
}  // namespace ovsw::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  using namespace ovsw::fuzz;
  Random random(seed);
  auto document = read_document(data, size);
  if (document && !document->values.empty() && !random.chance(16)) {
    Mutation(*document, random).run();
    if (!random.chance(20)) repair(*document, random);
    if (const std::size_t written = put(*document, data, max_size)) return written;
  }
  size = LLVMFuzzerMutate(data, size, max_size);
  if (!random.chance(5)) repair_checksum(data, size);
  return size;
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* data1, std::size_t size1,
                                                 const std::uint8_t* data2, std::size_t size2, std::uint8_t* out,
                                                 std::size_t max_size, unsigned seed) {
  using namespace ovsw::fuzz;
  Random random(seed);
  const auto a = read_document(data1, size1), b = read_document(data2, size2);
  if (!a || !b || a->ops.empty() || b->ops.empty()) return 0;
  Document both = cross(*a, *b, random);
  repair(both, random);
  return put(both, out, max_size);
}

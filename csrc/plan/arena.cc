#include "csrc/plan/arena.h"

#include <algorithm>

#include "csrc/base/buffer.h"

namespace ovsw {
namespace {

// One or more values that share a place, alive from op `first` to op `last`.
struct Block {
  std::size_t bytes;
  std::size_t first, last;
  std::size_t offset;
};

bool same_layout(const Value& a, const Value& b) { return a.kind == b.kind && a.c == b.c && a.h == b.h && a.w == b.w; }

}  // namespace

Arena place_values(const Graph& graph) {
  const std::size_t end = graph.ops.size();
  std::vector<std::size_t> last_read(graph.values.size(), 0);
  for (std::size_t i = 0; i < end; ++i) {
    for (std::uint32_t v : {graph.ops[i].input, graph.ops[i].residual}) {
      if (v != kAbsent) last_read[v] = i;
    }
  }
  for (std::uint32_t v : graph.outputs) last_read[v] = end;

  std::vector<Block> blocks;
  std::vector<std::size_t> block_of(graph.values.size());
  const auto open = [&](std::uint32_t v, std::size_t at) {
    block_of[v] = blocks.size();
    blocks.push_back({align_up(graph.values[v].bytes()), at, std::max(at, last_read[v]), 0});
  };
  open(0, 0);
  for (std::size_t i = 0; i < end; ++i) {
    const Op& op = graph.ops[i];
    if (op.out != kAbsent) {
      if (op.residual != kAbsent && op.residual != op.input && last_read[op.residual] == i &&
          same_layout(graph.values[op.residual], graph.values[op.out])) {
        block_of[op.out] = block_of[op.residual];
        Block& block = blocks[block_of[op.residual]];
        block.last = std::max(block.last, last_read[op.out]);
      } else {
        open(op.out, i);
      }
    }
    if (op.bits != kAbsent) open(op.bits, i);
  }

  // Largest first, each at the lowest offset that is free during its life.
  std::vector<Block*> order;
  for (Block& b : blocks) order.push_back(&b);
  std::stable_sort(order.begin(), order.end(), [](const Block* a, const Block* b) { return a->bytes > b->bytes; });
  std::vector<const Block*> placed;  // by offset
  std::size_t bytes = 0;
  for (Block* b : order) {
    for (const Block* other : placed) {
      const bool meet = b->first <= other->last && other->first <= b->last;
      if (meet && b->offset < other->offset + other->bytes && other->offset < b->offset + b->bytes) {
        b->offset = other->offset + other->bytes;
      }
    }
    const auto by_offset = [](const Block* x, const Block* y) { return x->offset < y->offset; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), b, by_offset), b);
    bytes = std::max(bytes, b->offset + b->bytes);
  }

  Arena arena;
  for (std::size_t v : block_of) arena.offset.push_back(blocks[v].offset);
  arena.bytes = bytes + kReadSlack;  // kernels may read past the last value
  return arena;
}

}  // namespace ovsw

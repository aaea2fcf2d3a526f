// Runs the kernels of vertical_slash.cu on the CPU against dense float64 attention that is masked to the union.
#include "attention.h"
#include "../vertical_slash.cu"

#include <set>

using namespace check;

struct Lines {
  std::set<int> slashes, verticals;
};

static void pattern_case(Packed p, std::vector<Lines> lines) {
  int blocks = 0, longest = 0;
  for (const Document& x : p.documents) {
    blocks += ceil_div(x.keys, SIDE) - (x.keys - x.queries) / SIDE;
    longest = std::max(longest, x.keys);
  }
  Buffer<int2> tiles(blocks);
  int at = 0;
  for (int i = ceil_div(longest, SIDE) - 1; i >= 0; --i)
    for (size_t d = 0; d < p.documents.size(); ++d) {
      const Document& x = p.documents[d];
      if (i * SIDE >= x.keys - x.queries && i * SIDE < x.keys) tiles[at++] = {int(d), i};
    }
  Buffer<int> slash_start(p.heads + 1), vertical_start(p.heads + 1), slashes(1000), verticals(10000);
  slash_start[0] = vertical_start[0] = 0;
  for (int h = 0; h < p.heads; ++h) {
    std::copy(lines[h].slashes.begin(), lines[h].slashes.end(), &slashes[slash_start[h]]);
    std::copy(lines[h].verticals.begin(), lines[h].verticals.end(), &verticals[vertical_start[h]]);
    slash_start[h + 1] = slash_start[h] + int(lines[h].slashes.size());
    vertical_start[h + 1] = vertical_start[h] + int(lines[h].verticals.size());
  }
  auto q = random_bf16(p.q_at(p.queries(), 0), 1.5f), k = random_bf16(p.kv_at(p.keys(), 0), 1.5f),
       v = random_bf16(p.kv_at(p.keys(), 0));
  Buffer<bf16> out(q.size());
  Buffer<float> lse(size_t(p.heads) * p.queries());
  const int words = ceil_div(ceil_div(longest, SIDE), 32);
  emulate::launch(p.d == 128 ? vertical_slash_128 : vertical_slash_64, dim3(p.heads, blocks), THREADS,
                  size_t(5) * SIDE * p.d * 2 + 1088 + 4 * words, q.get(), k.get(), v.get(), out.get(), lse.get(),
                  p.cu_q.get(), p.cu_k.get(), tiles.get(), slashes.get(), slash_start.get(), verticals.get(),
                  vertical_start.get(), p.heads, p.kv_heads, p.queries(), words, p.scale());
  std::vector<double> out_ref, lse_ref;
  const auto in_union = [&](int head, int position, int key) {
    return lines[head].verticals.count(key) > 0 || lines[head].slashes.count(position / SIDE - key / SIDE) > 0;
  };
  reference_attention(p, q, k, v, in_union, out_ref, lse_ref);
  const bool empty = same_empty_rows(lse, lse_ref);
  compare("vertical and slash " + p.name(), out, out_ref, BF16_LIMIT);
  compare("lse " + p.name(), lse, lse_ref, F32_LIMIT);
  expect("rows without keys " + p.name(), empty);
}

static std::set<int> some(int count, int n) {
  std::set<int> result;
  while (int(result.size()) < count) result.insert(below(n));
  return result;
}

static std::set<int> all(int n) {
  std::set<int> result;
  for (int i = 0; i < n; ++i) result.insert(i);
  return result;
}

int main() {
  // Heads: a usual pattern; columns only; blocks only; every column beside a block that holds some of them.
  pattern_case(Packed({{450, 450}, {100, 228}, {1, 1}}, 4, 2, 128),
               {{{0, 1, 4}, some(90, 450)}, {{}, some(200, 450)}, {{0, 2, 6}, {}}, {{1}, all(450)}});
  pattern_case(Packed({{300, 300}, {70, 390}}, 3, 1, 64),
               {{{0}, some(64, 390)}, {{0, 3}, some(1, 390)}, {all(7), some(150, 390)}});
  // More slashes than a warp has lanes, and more key blocks than a word has bits.
  Lines many{all(41), some(300, 2630)};
  for (int i : {3, 17, 34, 38}) many.slashes.erase(i);
  pattern_case(Packed({{70, 2630}}, 2, 1, 64), {many, {{35}, some(200, 2630)}});
  return finish();
}

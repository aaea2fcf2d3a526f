// Runs the kernels of spmm.cu on the CPU against float64.
#include "check.h"
#include "../spmm.cu"

#include <algorithm>

using namespace check;

// A weight in tiles: the words of every tile in shuffled order, padded with zeros at free places.
struct Tiled {
  std::vector<u32> words;
  std::vector<int> offsets{0};
};

static Tiled encode(Buffer<bf16>& a, int m, int k) {
  Tiled result;
  for (int i = 0; i < m; i += ROWS)
    for (int j = 0; j < k; j += DEPTH) {
      std::vector<u32> used, free;
      for (int r = 0; r < ROWS; ++r)
        for (int c = 0; c < DEPTH; ++c) {
          const bf16 value = a[size_t(i + r) * k + j + c];
          const u32 word = u32(value) << 16 | u32(r * DEPTH + (c ^ ((r & 7) << 3)));
          (value ? used : free).push_back(word);
        }
      for (size_t f = 0; used.size() % 4 != 0; ++f) used.push_back(free[f]);
      std::shuffle(used.begin(), used.end(), generator);
      result.words.insert(result.words.end(), used.begin(), used.end());
      result.offsets.push_back(int(result.words.size() / 4));
    }
  return result;
}

static void spmm_case(int m, int n, int k, double density, int splits) {
  const std::string name = std::to_string(m) + "x" + std::to_string(k) + " by " + std::to_string(n) + ", density " +
                           std::to_string(density).substr(0, 4) + ", " + std::to_string(splits) + " splits";
  auto a = random_bf16(size_t(m) * k), b = random_bf16(size_t(n) * k);
  for (size_t i = 0; i < a.size(); ++i)
    if (generator() % 10000 >= density * 10000) a[i] = 0;
  for (int r = 0; r < ROWS; ++r)  // One tile without any item.
    for (int c = 0; c < DEPTH && k > DEPTH; ++c) a[size_t(r) * k + DEPTH + c] = 0;
  const Tiled tiled = encode(a, m, k);
  Buffer<u32> words(tiled.words.size());
  Buffer<int> offsets(tiled.offsets.size());
  std::copy(tiled.words.begin(), tiled.words.end(), words.get());
  std::copy(tiled.offsets.begin(), tiled.offsets.end(), offsets.get());
  Buffer<bf16> c(size_t(n) * m);
  Buffer<float> parts(size_t(splits) * n * m);
  const auto kernel = n == 8 ? spmm_8 : n == 16 ? spmm_16 : spmm_32;
  emulate::launch(kernel, dim3(m / ROWS, splits), THREADS, size_t(2) * (ROWS + std::max(n, 16)) * DEPTH * 2,
                  words.words.data(), offsets.get(), b.get(), c.get(), parts.get(), m, k);
  if (splits > 1)
    emulate::launch(spmm_reduce, dim3(2), REDUCE_THREADS, 0, reinterpret_cast<float4*>(parts.get()),
                    reinterpret_cast<uint2*>(c.get()), splits, i64(n) * m);
  std::vector<double> reference(c.size(), 0.0);
  for (int j = 0; j < n; ++j)
    for (int r = 0; r < m; ++r)
      for (int x = 0; x < k; ++x)
        reference[size_t(j) * m + r] += value_of(a[size_t(r) * k + x]) * value_of(b[size_t(j) * k + x]);
  compare("spmm " + name, c, reference, BF16_LIMIT);
}

int main() {
  spmm_case(256, 8, 192, 0.2, 1);
  spmm_case(128, 16, 320, 0.3, 3);
  spmm_case(128, 32, 128, 0.05, 1);
  spmm_case(256, 32, 192, 0.8, 4);  // Denser than the registers hold, and a split without tiles.
  spmm_case(128, 8, 64, 1.0, 1);
  return finish();
}

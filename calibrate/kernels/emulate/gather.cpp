// Runs the kernels of gather.cu on the CPU. Bytes are moved, so the result must be exact.
#include "check.h"
#include "../gather.cu"

using namespace check;

static bool same(const uint4& a, const uint4& b) { return std::memcmp(&a, &b, 16) == 0; }

static void gather_case(int all, int rows, int vectors) {
  const std::string name =
      std::to_string(rows) + " of " + std::to_string(all) + " rows of " + std::to_string(vectors) + " vectors";
  const auto vector = [] { return make_uint4(generator(), generator(), generator(), generator()); };
  Buffer<uint4> host(size_t(all) * vectors), cache(size_t(all) * vectors);
  for (size_t i = 0; i < host.size(); ++i) host[i] = vector(), cache[i] = vector();
  Buffer<int> index(rows), slot(all);
  for (int r = 0; r < all; ++r) slot[r] = r % 3 == 0 ? r / 3 : -1;
  for (int i = 0; i < rows; ++i) index[i] = i % 11 == 5 ? -1 : below(all);
  Buffer<uint4> plain(size_t(rows) * vectors), mixed(size_t(rows) * vectors);
  emulate::launch(gather_rows, dim3(2), THREADS, 0, host.get(), index.get(), plain.get(), rows, vectors);
  emulate::launch(gather_rows_cached, dim3(3), THREADS, 0, host.get(), cache.get(), slot.get(), index.get(),
                  mixed.get(), rows, vectors);
  bool plain_good = true, mixed_good = true;
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < vectors; ++v) {
      const size_t at = size_t(i) * vectors + v;
      const int from = index[i];
      const uint4 expected = from < 0 ? make_uint4(0, 0, 0, 0) : host[size_t(from) * vectors + v];
      const bool hit = from >= 0 && slot[from] >= 0;
      plain_good &= same(plain[at], expected);
      mixed_good &= same(mixed[at], hit ? cache[size_t(slot[from]) * vectors + v] : expected);
    }
  expect("gather " + name, plain_good);
  expect("gather with a cache, " + name, mixed_good);
}

int main() {
  gather_case(50, 37, 25);
  gather_case(20, 9, 131);
  gather_case(5, 64, 1);
  gather_case(7, 3, 256);
  return finish();
}

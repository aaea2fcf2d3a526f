// Runs the kernels of attention_forward.cu on the CPU against float64.
#include "attention.h"
#include "../attention_forward.cu"

using namespace check;

static void forward_case(Packed p) {
  auto q = random_bf16(p.q_at(p.queries(), 0), 1.5f), k = random_bf16(p.kv_at(p.keys(), 0), 1.5f),
       v = random_bf16(p.kv_at(p.keys(), 0));
  Buffer<bf16> out(q.size());
  Buffer<float> lse(size_t(p.heads) * p.queries());
  auto tiles = p.tiles(QUERIES);
  emulate::launch(p.d == 128 ? attention_forward_128 : attention_forward_64, dim3(p.heads, unsigned(tiles.size())),
                  THREADS, size_t(QUERIES + 4 * KEYS) * p.d * 2, q.get(), k.get(), v.get(), out.get(), lse.get(),
                  p.cu_q.get(), p.cu_k.get(), tiles.get(), p.heads, p.kv_heads, p.queries(), p.scale(), int(p.causal));
  std::vector<double> out_ref, lse_ref;
  reference_attention(p, q, k, v, everything, out_ref, lse_ref);
  const bool empty = same_empty_rows(lse, lse_ref);
  compare("attention " + p.name(), out, out_ref, BF16_LIMIT);
  compare("lse " + p.name(), lse, lse_ref, F32_LIMIT);
  expect("rows without keys " + p.name(), empty);
}

int main() {
  forward_case(Packed({{150, 150}, {1, 1}, {37, 301}, {129, 200}}, 4, 2, 128));
  forward_case(Packed({{201, 201}, {64, 65}, {3, 128}}, 3, 1, 64));
  forward_case(Packed({{70, 130}, {130, 70}}, 2, 2, 128, false));
  forward_case(Packed({{20, 15}, {5, 257}}, 2, 1, 64));
  return finish();
}

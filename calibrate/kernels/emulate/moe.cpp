// Runs the kernels of moe.cu on the CPU against float64.
#include "check.h"
#include "../moe.cu"

#include <algorithm>

using namespace check;

static void moe_case(int tokens, int k, int vectors, bool drop) {
  const std::string name =
      std::to_string(tokens) + " tokens, top " + std::to_string(k) + ", " + std::to_string(8 * vectors) + " wide";
  const int width = 8 * vectors, copies = tokens * k;
  std::vector<int> order(copies);
  for (int i = 0; i < copies; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), generator);
  Buffer<int> destination(copies);
  Buffer<float> weights(copies), d_weights(copies);
  for (int i = 0; i < copies; ++i) destination[i] = drop && i % 7 == 3 ? -1 : order[i];
  for (int i = 0; i < copies; ++i) weights[i] = std::fabs(normal());
  if (drop)
    for (int j = 0; j < k; ++j) destination[j] = -1;  // A token of which nothing is left.
  const size_t n = size_t(tokens) * width, rows = size_t(copies) * width;
  auto x = random_bf16(n), y = random_bf16(rows), d_out = random_bf16(n);
  Buffer<bf16> permuted(rows), out(n), d_y(rows);
  permuted.fill(0x3a80), d_y.fill(0x3a80);  // Rows of no copy must keep this.
  const uint4 *xs = x.words.data(), *ys = y.words.data(), *gs = d_out.words.data();
  emulate::launch(moe_permute, dim3(2), THREADS, 0, xs, destination.get(), permuted.words.data(), tokens, k, vectors);
  emulate::launch(moe_combine, dim3(2), THREADS, 0, ys, destination.get(), weights.get(), out.words.data(), tokens, k,
                  vectors);
  emulate::launch(moe_combine_backward, dim3(2), THREADS, 0, gs, ys, destination.get(), weights.get(), d_y.words.data(),
                  d_weights.get(), tokens, k, vectors);
  std::vector<double> permuted_ref(rows, value_of(bf16(0x3a80))), d_y_ref = permuted_ref, out_ref(n, 0.0),
                                                                  d_weights_ref(copies, 0.0);
  for (int t = 0; t < tokens; ++t)
    for (int j = 0; j < k; ++j)
      for (int c = 0; c < width && destination[t * k + j] >= 0; ++c) {
        const size_t from = size_t(t) * width + c, row = size_t(destination[t * k + j]) * width + c;
        permuted_ref[row] = value_of(x[from]);
        out_ref[from] += double(weights[t * k + j]) * value_of(y[row]);
        d_y_ref[row] = double(weights[t * k + j]) * value_of(d_out[from]);
        d_weights_ref[t * k + j] += value_of(d_out[from]) * value_of(y[row]);
      }
  compare("permute " + name, permuted, permuted_ref, 1e-12);
  compare("combine " + name, out, out_ref, BF16_LIMIT);
  compare("combine backward " + name, d_y, d_y_ref, BF16_LIMIT);
  compare("gradient of the weights " + name, d_weights, d_weights_ref, F32_LIMIT);
}

int main() {
  moe_case(37, 2, 33, true);
  moe_case(5, 8, 256, false);
  moe_case(19, 1, 7, false);
  moe_case(23, 6, 130, true);
  return finish();
}

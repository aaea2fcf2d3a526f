// Runs the kernels of lsh.cu on the CPU, one after the other as a layer would, against float64.
#include "check.h"
#include "../lsh.cu"

#include <map>

using namespace check;

// The hash must be the largest coordinate by float64, except where two are so near that f32 sums may order them
// otherwise.
static void check_codes(const std::string& name, Buffer<bf16>& x, Buffer<bf16>& r, Buffer<int>& codes, int tokens,
                        int d, int dims, int functions) {
  int wrong = 0, near = 0;
  for (int f = 0; f < functions; ++f)
    for (int t = 0; t < tokens; ++t) {
      std::vector<double> product(dims, 0.0);
      for (int c = 0; c < d; ++c)
        for (int j = 0; j < dims; ++j)
          product[j] += value_of(x[size_t(t) * d + c]) * value_of(r[(size_t(f) * d + c) * dims + j]);
      int best = 0;
      for (int j = 1; j < dims; ++j)
        if (std::fabs(product[j]) > std::fabs(product[best])) best = j;
      const int code = codes[size_t(f) * tokens + t];
      if (code == best + (product[best] < 0 ? dims : 0)) continue;
      const bool valid = code >= 0 && code < 2 * dims && (product[code % dims] < 0) == (code >= dims);
      if (valid && std::fabs(product[code % dims]) > std::fabs(product[best]) * (1 - 1e-5)) ++near;
      else ++wrong;
    }
  expect("hash " + name + ": " + std::to_string(wrong) + " wrong, " + std::to_string(near) + " ties", wrong == 0);
}

static void lsh_case(int tokens, int d, int dims, int functions, int experts) {
  const std::string name = std::to_string(tokens) + " tokens, d " + std::to_string(d) + ", " +
                           std::to_string(functions) + " functions of " + std::to_string(dims);
  // Tokens around a few centres, so that buckets have several members.
  auto x = random_bf16(size_t(tokens) * d), rotations = random_bf16(size_t(functions) * d * dims);
  for (int t = 5; t < tokens; ++t)
    for (int c = 0; c < d; ++c)
      x[size_t(t) * d + c] = float_to_bf16(bf16_to_float(x[size_t(t % 5) * d + c]) + 0.05f * normal());
  Buffer<int> codes(size_t(functions) * tokens), expert(tokens), slot(tokens), bucket(tokens), count(1);
  for (int t = 0; t < tokens; ++t) expert[t] = below(experts);
  emulate::launch(lsh_hash, dim3(ceil_div(tokens, TILE), functions), HASH_THREADS, 32768, x.get(), rotations.get(),
                  codes.get(), tokens, d, dims);
  check_codes(name, x, rotations, codes, tokens, d, dims, functions);

  const int capacity = 256;
  Buffer<u64> keys(capacity);
  Buffer<int> number(capacity);
  count[0] = 0;
  emulate::launch(lsh_insert, dim3(1), THREADS, 0, codes.get(), expert.get(), keys.get(), number.get(), count.get(),
                  slot.get(), tokens, functions, dims, capacity);
  std::map<std::vector<int>, std::vector<int>> groups;
  for (int t = 0; t < tokens; ++t) {
    std::vector<int> key{expert[t]};
    for (int f = 0; f < functions; ++f) key.push_back(codes[size_t(f) * tokens + t]);
    groups[key].push_back(t);
  }
  const int buckets = int(groups.size());
  expect("buckets " + name + ": " + std::to_string(buckets), count[0] == buckets && buckets < tokens);

  Buffer<float> sums(size_t(buckets) * d);
  Buffer<int> counts(buckets);
  Buffer<bf16> centroids(sums.size()), out(x.size());
  sums.fill(0.0f), counts.fill(0);
  emulate::launch(lsh_add, dim3(2), THREADS, 0, x.words.data(), slot.get(), number.get(), bucket.get(), sums.get(),
                  counts.get(), tokens, d);
  emulate::launch(lsh_mean, dim3(2), THREADS, 0, reinterpret_cast<float4*>(sums.get()), counts.get(),
                  centroids.words.data(), buckets, d);
  auto expert_out = random_bf16(sums.size());
  emulate::launch(lsh_restore, dim3(2), THREADS, 0, x.words.data(), centroids.words.data(), expert_out.words.data(),
                  bucket.get(), out.words.data(), tokens, d);
  std::vector<double> centroids_ref(sums.size(), 0.0), sums_ref(sums.size(), 0.0), out_ref(x.size());
  bool grouped = true;
  std::vector<bool> used(buckets);
  for (auto& [key, members] : groups) {
    const int b = bucket[members[0]];
    grouped &= b >= 0 && b < buckets && !used[b] && counts[b] == int(members.size());
    used[b] = true;
    for (int t : members) {
      grouped &= bucket[t] == b;
      for (int c = 0; c < d; ++c) {
        sums_ref[size_t(b) * d + c] += value_of(x[size_t(t) * d + c]);
        centroids_ref[size_t(b) * d + c] += value_of(x[size_t(t) * d + c]) / double(members.size());
      }
    }
  }
  for (int t = 0; t < tokens; ++t)
    for (int c = 0; c < d; ++c) {
      const size_t at = size_t(bucket[t]) * d + c;
      out_ref[size_t(t) * d + c] = value_of(expert_out[at]) + value_of(x[size_t(t) * d + c]) - centroids_ref[at];
    }
  expect("members and counts " + name, grouped);
  compare("sums " + name, sums, sums_ref, F32_LIMIT);
  compare("centroids " + name, centroids, centroids_ref, BF16_LIMIT);
  compare("restored " + name, out, out_ref, BF16_LIMIT);
}

int main() {
  lsh_case(100, 192, 128, 2, 3);
  lsh_case(64, 64, 64, 6, 1);
  lsh_case(33, 320, 64, 1, 2);
  return finish();
}

// Runs the kernels of attention_backward.cu on the CPU against float64.
#include "attention.h"
#include "../attention_backward.cu"

using namespace check;

struct Gradients {
  std::vector<double> q, k, v;
};

static Gradients reference(Packed& p, Buffer<bf16>& q, Buffer<bf16>& k, Buffer<bf16>& v, Buffer<bf16>& d_out) {
  Gradients g{std::vector<double>(q.size(), 0.0), std::vector<double>(k.size(), 0.0),
              std::vector<double>(v.size(), 0.0)};
  for_each_row(p, q, k, everything, [&](int doc, int query, int head, const std::vector<double>& weights, double) {
    std::vector<double> d_weights(weights.size());
    double mean = 0;
    const size_t row = p.q_at(query, head);
    for (size_t j = 0; j < weights.size(); ++j) {
      const size_t key = p.kv_at(p.cu_k[doc] + int(j), head);
      for (int c = 0; c < p.d; ++c) d_weights[j] += value_of(d_out[row + c]) * value_of(v[key + c]);
      mean += weights[j] * d_weights[j];
    }
    for (size_t j = 0; j < weights.size(); ++j) {
      const size_t key = p.kv_at(p.cu_k[doc] + int(j), head);
      const double d_score = weights[j] * (d_weights[j] - mean) * p.scale();
      for (int c = 0; c < p.d; ++c) {
        g.q[row + c] += d_score * value_of(k[key + c]);
        g.k[key + c] += d_score * value_of(q[row + c]);
        g.v[key + c] += weights[j] * value_of(d_out[row + c]);
      }
    }
  });
  return g;
}

// Tiles of 128 keys, the first keys of every document first: most queries see them.
static Buffer<int2> key_tiles(Packed& p) {
  std::vector<int2> list;
  for (int first = 0; first < 4096; first += KEYS)
    for (size_t i = 0; i < p.documents.size(); ++i)
      if (first < p.documents[i].keys) list.push_back({int(i), first});
  Buffer<int2> tiles(list.size());
  for (size_t i = 0; i < list.size(); ++i) tiles[i] = list[i];
  return tiles;
}

static void backward_case(Packed p) {
  auto q = random_bf16(p.q_at(p.queries(), 0)), k = random_bf16(p.kv_at(p.keys(), 0)),
       v = random_bf16(p.kv_at(p.keys(), 0));
  auto d_out = random_bf16(q.size());
  std::vector<double> out_ref, lse_ref;
  reference_attention(p, q, k, v, everything, out_ref, lse_ref);
  Buffer<bf16> out(q.size()), d_k(k.size()), d_v(v.size()), d_q(q.size());
  Buffer<float> lse(lse_ref.size()), delta(lse_ref.size()), d_q_sum(q.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = float_to_bf16(float(out_ref[i]));
  for (size_t i = 0; i < lse.size(); ++i) lse[i] = float(lse_ref[i]);
  d_q_sum.fill(0.0f);
  emulate::launch(attention_backward_delta, dim3(3), THREADS, 0, out.words.data(), d_out.words.data(), delta.get(),
                  p.queries(), p.heads, p.d);
  std::vector<double> delta_ref(delta.size(), 0.0);
  for (int r = 0; r < p.queries(); ++r)
    for (int h = 0; h < p.heads; ++h)
      for (int c = 0; c < p.d; ++c)
        delta_ref[size_t(h) * p.queries() + r] += value_of(out[p.q_at(r, h) + c]) * value_of(d_out[p.q_at(r, h) + c]);
  compare("delta " + p.name(), delta, delta_ref, F32_LIMIT);
  auto tiles = key_tiles(p);
  const size_t shared = size_t(2 * KEYS + 4 * QUERIES) * p.d * 2 + KEYS * QUERIES * 2 + 1024;
  emulate::launch(p.d == 128 ? attention_backward_128 : attention_backward_64, dim3(p.kv_heads, unsigned(tiles.size())),
                  THREADS, shared, q.get(), k.get(), v.get(), d_out.get(), lse.get(), delta.get(), d_q_sum.get(),
                  d_k.get(), d_v.get(), p.cu_q.get(), p.cu_k.get(), tiles.get(), p.heads, p.kv_heads, p.queries(),
                  p.scale(), int(p.causal));
  emulate::launch(attention_backward_finish, dim3(2), THREADS, 0, reinterpret_cast<float4*>(d_q_sum.get()),
                  d_q.words.data(), i64(q.size()), p.scale());
  const Gradients g = reference(p, q, k, v, d_out);
  compare("d_q " + p.name(), d_q, g.q, BF16_LIMIT);
  compare("d_k " + p.name(), d_k, g.k, BF16_LIMIT);
  compare("d_v " + p.name(), d_v, g.v, BF16_LIMIT);
}

int main() {
  backward_case(Packed({{150, 150}, {1, 1}, {37, 201}}, 4, 2, 128));
  backward_case(Packed({{135, 135}, {64, 65}, {3, 128}}, 3, 1, 64));
  backward_case(Packed({{70, 130}}, 2, 2, 128, false));
  backward_case(Packed({{20, 15}, {5, 257}}, 2, 1, 64));
  return finish();
}

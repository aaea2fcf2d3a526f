// Tokens to experts and back, the two memory-bound ends of a mixture-of-experts layer. Their times stand beside those
// of the expert matrices and of the all-to-all in the model of LSH-MoE (arXiv:2411.08446) and of every MoE scenario.
//
// x, out [tokens, 8 * vectors] bf16; permuted, y [rows, 8 * vectors] bf16, grouped by expert; destination [tokens, k]
// is the row of each copy, -1 for a copy that was dropped; weights [tokens, k] f32.
//
// moe_permute: permuted[destination[t][j]] = x[t]. A row is read once and written k times. Bytes per token: 16 *
//   vectors * (1 + k) + 4k.
// moe_combine: out[t] = sum over j of weights[t][j] * y[destination[t][j]], in f32 and rounded once; no copy gives
//   zeros. Bytes per token: 16 * vectors * (1 + k) + 8k. FLOPs 16 * vectors * k.
// moe_combine_backward: d_y[destination[t][j]] = weights[t][j] * d_out[t] and d_weights[t][j] = d_out[t] . y[row].
//   Bytes per token: 16 * vectors * (1 + 2k) + 12k. FLOPs 24 * vectors * k.
// All: grid any, block 256, a warp per token, no shared memory, any vectors, any k. The gradient of moe_permute is
// moe_combine with weights of one.
#include "common.cuh"

constexpr int THREADS = 256;

SKRULL_KERNEL __launch_bounds__(THREADS) moe_permute(const uint4* __restrict__ x, const int* __restrict__ destination,
                                                     uint4* __restrict__ permuted, int tokens, int k, int vectors) {
  const int lane = threadIdx.x % 32, warps = gridDim.x * (THREADS / 32);
  for (int token = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; token < tokens; token += warps) {
    const int* rows = destination + i64(token) * k;
    for (int start = lane; start < vectors; start += 128) {
      uint4 held[4];
      SKRULL_UNROLL
      for (int i = 0; i < 4; ++i)
        if (start + 32 * i < vectors) held[i] = load_streaming(x + i64(token) * vectors + start + 32 * i);
      for (int j = 0; j < k; ++j) {
        const int row = rows[j];
        if (row < 0) continue;
        SKRULL_UNROLL
        for (int i = 0; i < 4; ++i)
          if (start + 32 * i < vectors) permuted[i64(row) * vectors + start + 32 * i] = held[i];
      }
    }
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    moe_combine(const uint4* __restrict__ y, const int* __restrict__ destination, const float* __restrict__ weights,
                uint4* __restrict__ out, int tokens, int k, int vectors) {
  const int lane = threadIdx.x % 32, warps = gridDim.x * (THREADS / 32);
  for (int token = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; token < tokens; token += warps) {
    const int* rows = destination + i64(token) * k;
    for (int at = lane; at < vectors; at += 32) {
      float total[8] = {};
      // The rows of one token lie in different experts: unrolling puts their loads in flight together.
      SKRULL_UNROLL_4
      for (int j = 0; j < k; ++j) {
        const int row = rows[j];
        if (row < 0) continue;
        float values[8];
        unpack(values, load_streaming(y + i64(row) * vectors + at));
        const float weight = weights[i64(token) * k + j];
        SKRULL_UNROLL
        for (int e = 0; e < 8; ++e) total[e] += weight * values[e];
      }
      out[i64(token) * vectors + at] = pack(total);
    }
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    moe_combine_backward(const uint4* __restrict__ d_out, const uint4* __restrict__ y,
                         const int* __restrict__ destination, const float* __restrict__ weights,
                         uint4* __restrict__ d_y, float* __restrict__ d_weights, int tokens, int k, int vectors) {
  const int lane = threadIdx.x % 32, warps = gridDim.x * (THREADS / 32);
  for (int token = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; token < tokens; token += warps) {
    for (int j = 0; j < k; ++j) {
      const int row = destination[i64(token) * k + j];
      float dot = 0.0f;
      if (row >= 0) {
        const float weight = weights[i64(token) * k + j];
        // The token's own gradient is read again for each copy; from the second on it comes from the cache.
        for (int at = lane; at < vectors; at += 32) {
          float g[8], values[8];
          unpack(g, d_out[i64(token) * vectors + at]);
          unpack(values, load_streaming(y + i64(row) * vectors + at));
          SKRULL_UNROLL
          for (int e = 0; e < 8; ++e) {
            dot += g[e] * values[e];
            g[e] *= weight;
          }
          d_y[i64(row) * vectors + at] = pack(g);
        }
      }
      dot = warp_sum(dot);
      if (lane == 0) d_weights[i64(token) * k + j] = dot;
    }
  }
}

// Compression of the tokens that a mixture-of-experts layer sends: LSH-MoE (arXiv:2411.08446). Tokens of one expert
// with equal hashes form a bucket; only the mean of a bucket travels, and each token keeps its distance from the mean.
// The times of these kernels are what the planner charges against the bytes saved in the all-to-all.
//
// x [tokens, d] bf16, d a multiple of 64. rotations [functions, d, dims] bf16, dims a multiple of 64. codes [functions,
// tokens].
//
// lsh_hash: cross-polytope hash. codes = i where |x R| is largest at coordinate i, i + dims where that value is
//   negative; the lower i on a tie. Grid (tokens / 64 rounded up, functions), block 128, dynamic shared memory 32768
//   bytes. FLOPs 2 * tokens * d * dims * functions. Bytes at least 2 * d * tokens + 2 * d * dims * functions.
// lsh_insert: a dense bucket number for every different (expert, codes). Open addressing in keys [capacity] (u64, all
//   ones when free), capacity a power of two above the number of buckets; number [capacity] and count [1] (0 at the
//   start) are written. The key packs expert and codes in base 2 * dims: experts * (2 * dims)^functions must stay below
//   2^63. Grid any, block 256. slot [tokens] is where a token's key lies. Bytes 4 * functions + 8 and a random access
//   per token.
// lsh_add: bucket[t] = number[slot[t]]; sums [buckets, d] f32 += x[t], counts [buckets] += 1; the caller zeroes both.
//   Grid any, block 256, a warp per token. Bytes 2 * d read and 4 * d added atomically per token.
// lsh_mean: centroids [buckets, d] bf16 = sums / counts. Grid any, block 256. Bytes 6 * d per bucket.
// lsh_restore: out[t] = expert_out[bucket[t]] + (x[t] - centroids[bucket[t]]). Grid any, block 256. Bytes 4 * d per
//   token and 4 * d per bucket from memory (a bucket's rows are read by many tokens). No shared memory in the last
//   four.
#include "common.cuh"

constexpr int HASH_THREADS = 128, THREADS = 256, TILE = 64;
constexpr u64 FREE = ~u64(0);

// The larger magnitude of this lane and another of its row; the lower coordinate on a tie.
SKRULL_INLINE void take_larger(float& value, int& coordinate, int step) {
  const float other = __shfl_xor_sync(ALL_LANES, value, step);
  const int at = __shfl_xor_sync(ALL_LANES, coordinate, step);
  if (fabsf(other) > fabsf(value) || (fabsf(other) == fabsf(value) && at < coordinate)) {
    value = other;
    coordinate = at;
  }
}

SKRULL_KERNEL __launch_bounds__(HASH_THREADS) lsh_hash(const bf16* __restrict__ x, const bf16* __restrict__ rotations,
                                                       int* __restrict__ codes, int tokens, int d, int dims) {
  constexpr u32 TILE_BYTES = TILE * TILE * 2;
  SKRULL_SHARED(shared);
  const u32 stages = shared_address(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * TILE;
  const bf16* rotation = rotations + i64(blockIdx.y) * d * dims;
  const int steps = d / TILE, rounds = steps * (dims / TILE);
  // Round r multiplies the tile r % steps of the features, for the columns of tile r / steps.
  const auto fetch = [&](int r) {
    const u32 to = stages + (r & 1) * 2 * TILE_BYTES;
    const int feature = r % steps * TILE, column = r / steps * TILE;
    load_tile<TILE, TILE, HASH_THREADS>(to, x + i64(first) * d + feature, d, tokens - first);
    load_tile<TILE, TILE, HASH_THREADS>(to + TILE_BYTES, rotation + i64(feature) * dims + column, dims, TILE);
    copy_commit();
  };
  float best[2] = {0.0f, 0.0f};
  int coordinate[2] = {0, 0};
  float sum[TILE / 8][4] = {};
  fetch(0);
  for (int r = 0; r < rounds; ++r) {
    copy_wait<0>();
    __syncthreads();
    if (r + 1 < rounds) fetch(r + 1);
    const u32 x_tile = stages + (r & 1) * 2 * TILE_BYTES;
    SKRULL_UNROLL
    for (int step = 0; step < TILE / 16; ++step) {
      u32 a[4], b[4];
      load_matrices(a, block_address<TILE / 8>(x_tile, warp * 16, step, lane));
      SKRULL_UNROLL
      for (int n = 0; n < TILE / 16; ++n) {
        load_matrices_transposed(b, block_address<TILE / 8>(x_tile + TILE_BYTES, step * 16, n, lane));
        mma_columns(sum[2 * n], sum[2 * n + 1], a, b);
      }
    }
    if (r % steps != steps - 1) continue;
    // A lane meets its coordinates in rising order, so only a larger value replaces.
    SKRULL_UNROLL
    for (int n = 0; n < TILE / 8; ++n)
      SKRULL_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (fabsf(sum[n][i]) > fabsf(best[i / 2])) {
          best[i / 2] = sum[n][i];
          coordinate[i / 2] = r / steps * TILE + n * 8 + 2 * (lane % 4) + i % 2;
        }
        sum[n][i] = 0.0f;
      }
  }
  SKRULL_UNROLL
  for (int half = 0; half < 2; ++half) {
    take_larger(best[half], coordinate[half], 1);
    take_larger(best[half], coordinate[half], 2);
    const int token = first + warp * 16 + half * 8 + lane / 4;
    if (lane % 4 == 0 && token < tokens)
      codes[i64(blockIdx.y) * tokens + token] = coordinate[half] + (best[half] < 0.0f ? dims : 0);
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    lsh_insert(const int* __restrict__ codes, const int* __restrict__ expert, u64* keys, int* number, int* count,
               int* __restrict__ slot, int tokens, int functions, int dims, int capacity) {
  for (int token = blockIdx.x * THREADS + threadIdx.x; token < tokens; token += gridDim.x * THREADS) {
    u64 key = u64(expert[token]);
    for (int f = 0; f < functions; ++f) key = key * u64(2 * dims) + u64(codes[i64(f) * tokens + token]);
    // Multiplying by an odd number and taking the upper bits spreads keys that differ in one code only.
    u32 at = u32((key * 0x9e3779b97f4a7c15ull) >> 32) & u32(capacity - 1);
    for (;;) {
      const u64 held = atomicCAS(keys + at, FREE, key);
      if (held == FREE) number[at] = atomicAdd(count, 1);
      if (held == FREE || held == key) break;
      at = (at + 1) & u32(capacity - 1);
    }
    slot[token] = int(at);
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    lsh_add(const uint4* __restrict__ x, const int* __restrict__ slot, const int* __restrict__ number,
            int* __restrict__ bucket, float* __restrict__ sums, int* __restrict__ counts, int tokens, int d) {
  const int lane = threadIdx.x % 32, warps = gridDim.x * (THREADS / 32), vectors = d / 8;
  for (int token = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; token < tokens; token += warps) {
    const int into = number[slot[token]];
    if (lane == 0) {
      bucket[token] = into;
      atomicAdd(counts + into, 1);
    }
    SKRULL_UNROLL_4
    for (int at = lane; at < vectors; at += 32) {
      float values[8];
      unpack(values, load_streaming(x + i64(token) * vectors + at));
      float* to = sums + i64(into) * d + at * 8;
      SKRULL_UNROLL
      for (int i = 0; i < 8; i += 2) add_pair(to + i, values[i], values[i + 1]);
    }
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS) lsh_mean(const float4* __restrict__ sums, const int* __restrict__ counts,
                                                  uint4* __restrict__ centroids, int buckets, int d) {
  const int vectors = d / 8;
  const i64 total = i64(buckets) * vectors;
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < total; at += i64(gridDim.x) * THREADS) {
    const float inverse = 1.0f / float(counts[at / vectors]);
    const float4 a = sums[2 * at], b = sums[2 * at + 1];
    const float values[8] = {a.x * inverse, a.y * inverse, a.z * inverse, a.w * inverse,
                             b.x * inverse, b.y * inverse, b.z * inverse, b.w * inverse};
    centroids[at] = pack(values);
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    lsh_restore(const uint4* __restrict__ x, const uint4* __restrict__ centroids, const uint4* __restrict__ expert_out,
                const int* __restrict__ bucket, uint4* __restrict__ out, int tokens, int d) {
  const int vectors = d / 8;
  const i64 total = i64(tokens) * vectors;
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < total; at += i64(gridDim.x) * THREADS) {
    const i64 row = at / vectors, from = i64(bucket[row]) * vectors + at % vectors;
    float own[8], mean[8], answer[8];
    unpack(own, load_streaming(x + at));
    unpack(mean, centroids[from]);
    unpack(answer, expert_out[from]);
    SKRULL_UNROLL
    for (int i = 0; i < 8; ++i) answer[i] += own[i] - mean[i];
    out[at] = pack(answer);
  }
}

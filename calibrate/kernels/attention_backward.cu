// Gradients of causal attention of packed documents, the counterpart of attention_forward.cu for the same planners. The
// ratio of the two times is what the long-context cost models call the backward factor of attention.
//
// Layouts and documents as in attention_forward.cu; D is 64 or 128. lse [heads, total queries] comes from the forward
// pass.
//
// attention_backward_delta: delta [heads, total queries] f32 = sum over D of out * d_out. Rows are (query, head) pairs.
//   Grid any, block 256, no dynamic shared memory. Bytes 4 * D + 4 per row.
// attention_backward_128, _64: d_k, d_v [total keys, kv_heads, D] bf16, and d_q [total queries, heads, D] f32 to which
//   it adds: the caller zeroes it. Grid (kv_heads, tiles), block 256; tiles[y] = {document, first key within it, a
//   multiple of 128}, the ones that most queries see first. Dynamic shared memory (2 * 128 + 4 * 64) * D * 2 + 128 * 64
//   * 2 + 1024 bytes: 145 KiB for D = 128, 81 KiB for 64. FLOPs 10 * D * heads * (pairs of a query and a key that it
//   sees).
// attention_backward_finish: d_q in bf16, times the scale. Grid any, block 256. Bytes 6 per element.
//
// One pass over blocks of keys with atomic additions for d_q, rather than a second kernel for d_q: a second kernel
// would compute the scores and their gradient again, 7 products instead of 5. The price: the last bits of d_q depend on
// the order. A block holds 128 keys, 16 to a warp, and walks the queries that see them by 64, for all query heads of
// its key head, so d_k and d_v stay in registers. Scores are computed transposed (keys are rows): as accumulators they
// already have the layout of the left operand of the products for d_v and d_k. Only d_q sums over keys, thus over
// warps: the gradient of the scores goes through shared memory once.
#include "common.cuh"

constexpr int THREADS = 256, KEYS = 128, QUERIES = 64, TILES = QUERIES / 8;

SKRULL_KERNEL __launch_bounds__(THREADS)
    attention_backward_delta(const uint4* __restrict__ out, const uint4* __restrict__ d_out, float* __restrict__ delta,
                             int total_queries, int heads, int d) {
  const int vectors = d / 8;  // 8 or 16 lanes share a row.
  const i64 total = i64(total_queries) * heads * vectors;
  // Whole warps go on together, so that the shuffles have all their lanes.
  for (i64 start = i64(blockIdx.x) * THREADS; start < total; start += i64(gridDim.x) * THREADS) {
    const i64 at = start + threadIdx.x;
    float dot = 0.0f;
    if (at < total) {
      float a[8], b[8];
      unpack(a, load_streaming(out + at));
      unpack(b, load_streaming(d_out + at));
      SKRULL_UNROLL
      for (int i = 0; i < 8; ++i) dot += a[i] * b[i];
    }
    for (int step = vectors / 2; step > 0; step /= 2) dot += __shfl_xor_sync(ALL_LANES, dot, step);
    const i64 row = at / vectors;
    if (at < total && at % vectors == 0) delta[row % heads * total_queries + row / heads] = dot;
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    attention_backward_finish(const float4* __restrict__ d_q, uint4* __restrict__ rounded, i64 count, float scale) {
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < count / 8; at += i64(gridDim.x) * THREADS) {
    const float4 a = d_q[2 * at], b = d_q[2 * at + 1];
    const float values[8] = {a.x * scale, a.y * scale, a.z * scale, a.w * scale,
                             b.x * scale, b.y * scale, b.z * scale, b.w * scale};
    rounded[at] = pack(values);
  }
}

// 16 keys of this warp against 64 queries: `s` = a tile of K (or V) times a tile of Q (or d_out), transposed.
template <int D>
SKRULL_INLINE void against_queries(float (&s)[TILES][4], u32 key_tile, u32 query_tile, int warp, int lane) {
  SKRULL_UNROLL
  for (int t = 0; t < TILES; ++t)
    SKRULL_UNROLL
    for (int i = 0; i < 4; ++i) s[t][i] = 0.0f;
  // Unrolling it all lets the assembler hold so many fragments that others spill.
  SKRULL_UNROLL_4
  for (int step = 0; step < D / 16; ++step) {
    u32 a[4];
    load_matrices(a, block_address<D / 8>(key_tile, warp * 16, step, lane));
    SKRULL_UNROLL
    for (int t = 0; t < TILES; t += 2) {
      u32 b[4];
      load_matrices(b, block_address<D / 8>(query_tile, t * 8, step, lane));
      mma_rows(s[t], s[t + 1], a, b);
    }
  }
}

// Adds to 16 rows of d_v (or d_k) the weights (or their gradient) times the tile of d_out (or Q).
template <int D>
SKRULL_INLINE void add_over_queries(float (&sum)[D / 8][4], const float (&s)[TILES][4], u32 query_tile, int lane) {
  SKRULL_UNROLL
  for (int t = 0; t < TILES; t += 2) {
    u32 a[4];
    as_operand(a, s[t], s[t + 1]);
    SKRULL_UNROLL
    for (int step = 0; step < D / 16; ++step) {
      u32 b[4];
      load_matrices_transposed(b, block_address<D / 8>(query_tile, t * 8, step, lane));
      mma_columns(sum[2 * step], sum[2 * step + 1], a, b);
    }
  }
}

// Scores become weights. The weight of a pair that is not seen is 0, whatever its score and its lse. `first_seeing` is
// the first query, relative to the tile, that sees this lane's row g. Absent keys have K = 0; their weights are made 0
// too, because 0 times infinity would be a NaN in d_q. `present` counts the keys from row g on.
SKRULL_INLINE void weigh(float (&s)[TILES][4], u32 lse, float scale, int first_seeing, int present, bool masked,
                         int lane) {
  SKRULL_UNROLL
  for (int t = 0; t < TILES; ++t) {
    const float2 row = load_shared_pair(lse + (t * 8 + 2 * (lane % 4)) * 4);
    SKRULL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float weight = exp2_fast(s[t][i] * scale - (i % 2 ? row.y : row.x) * LOG2_E);
      const int query = t * 8 + 2 * (lane % 4) + i % 2 - 8 * (i / 2);
      s[t][i] = masked && (query < first_seeing || 8 * (i / 2) >= present) ? 0.0f : weight;
    }
  }
}

// d_q of 16 queries and half of D per warp: the gradient of the scores, read transposed, times K.
template <int D>
SKRULL_INLINE void add_to_queries(float* d_q, i64 stride, int valid, u32 ds_tile, u32 k_tile, int warp, int lane) {
  constexpr int STEPS = D / 32;
  const int first = warp % 4 * 16, step_start = warp / 4 * STEPS;
  float sum[2 * STEPS][4] = {};
  SKRULL_UNROLL_4
  for (int k = 0; k < KEYS; k += 16) {
    u32 read[4], b[4];
    load_matrices_transposed(read, block_address<TILES>(ds_tile, k, warp % 4, lane));
    const u32 a[4] = {read[0], read[2], read[1], read[3]};
    SKRULL_UNROLL
    for (int step = 0; step < STEPS; ++step) {
      load_matrices_transposed(b, block_address<D / 8>(k_tile, k, step_start + step, lane));
      mma_columns(sum[2 * step], sum[2 * step + 1], a, b);
    }
  }
  SKRULL_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = first + half * 8 + lane / 4;
    if (row >= valid) continue;
    float* to = d_q + row * stride + step_start * 16 + 2 * (lane % 4);
    SKRULL_UNROLL
    for (int n = 0; n < 2 * STEPS; ++n) add_pair(to + n * 8, sum[n][2 * half], sum[n][2 * half + 1]);
  }
}

template <int D>
SKRULL_INLINE void write_keys(bf16* to, i64 stride, const float (&sum)[D / 8][4], float scale, int valid, int warp,
                              int lane) {
  SKRULL_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + half * 8 + lane / 4;
    if (row >= valid) continue;
    SKRULL_UNROLL
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<u32*>(to + row * stride + n * 8 + 2 * (lane % 4)) =
          pack_bf16(sum[n][2 * half] * scale, sum[n][2 * half + 1] * scale);
  }
}

struct Tensors {
  const bf16 *q, *k, *v, *d_out;
  const float *lse, *delta;
  float* d_q;
  bf16 *d_k, *d_v;
  const int *cu_q, *cu_k;
  const int2* tiles;
  int heads, kv_heads, total_queries;
  float scale;
  int causal;
};

template <int D>
SKRULL_INLINE void differentiate(const Tensors& x) {
  constexpr u32 KEY_BYTES = KEYS * D * 2, QUERY_BYTES = QUERIES * D * 2;
  SKRULL_SHARED(shared);
  const u32 k_tile = shared_address(shared), v_tile = k_tile + KEY_BYTES, stages = v_tile + KEY_BYTES;
  const u32 ds_tile = stages + 4 * QUERY_BYTES, statistics = ds_tile + KEYS * QUERIES * 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int document = x.tiles[blockIdx.y].x, first = x.tiles[blockIdx.y].y;
  const int queries = x.cu_q[document + 1] - x.cu_q[document], keys = x.cu_k[document + 1] - x.cu_k[document];
  const int valid = smaller(KEYS, keys - first), group = x.heads / x.kv_heads, head_first = int(blockIdx.x) * group;
  const int ahead = keys - queries, tile_first = x.causal ? larger(first - ahead, 0) / QUERIES : 0;
  const int per_head = larger(ceil_div(queries, QUERIES) - tile_first, 0), rounds = per_head * group;
  const int kv_stride = x.kv_heads * D, q_stride = x.heads * D;
  const i64 kv_at = i64(x.cu_k[document] + first) * kv_stride + blockIdx.x * D, query_start = x.cu_q[document];

  // Queries of round r: their rows of Q and d_out, and their statistics.
  const auto fetch = [&](int r) {
    const int head = head_first + r / per_head, query = (tile_first + r % per_head) * QUERIES,
              present = queries - query;
    const u32 tile = stages + (r & 1) * 2 * QUERY_BYTES, words = statistics + (r & 1) * 2 * QUERIES * 4;
    const i64 from = (query_start + query) * q_stride + head * D;
    load_tile<D, QUERIES, THREADS>(tile, x.q + from, q_stride, present);
    load_tile<D, QUERIES, THREADS>(tile + QUERY_BYTES, x.d_out + from, q_stride, present);
    const int row = threadIdx.x % QUERIES;
    const float* source =
        (threadIdx.x < QUERIES ? x.lse : x.delta) + i64(head) * x.total_queries + query_start + query + row;
    if (threadIdx.x < 2 * QUERIES) copy_async_word(words + threadIdx.x * 4, source, row < present);
    copy_commit();
  };
  float d_k[D / 8][4] = {}, d_v[D / 8][4] = {};
  if (rounds > 0) {
    load_tile<D, KEYS, THREADS>(k_tile, x.k + kv_at, kv_stride, valid);
    load_tile<D, KEYS, THREADS>(v_tile, x.v + kv_at, kv_stride, valid);
    fetch(0);
  }
  for (int r = 0; r < rounds; ++r) {
    copy_wait<0>();
    __syncthreads();
    if (r + 1 < rounds) fetch(r + 1);
    const int head = head_first + r / per_head, query = (tile_first + r % per_head) * QUERIES;
    const u32 q_tile = stages + (r & 1) * 2 * QUERY_BYTES, do_tile = q_tile + QUERY_BYTES;
    const u32 lse = statistics + (r & 1) * 2 * QUERIES * 4, delta = lse + QUERIES * 4;
    float p[TILES][4], ds[TILES][4];
    against_queries<D>(p, k_tile, q_tile, warp, lane);
    // Relative to this tile, the first query that sees this lane's key; the key 8 rows below is seen 8 queries later.
    const int seeing = first + warp * 16 + lane / 4 - ahead - query;
    const bool masked = (x.causal && first + warp * 16 + 15 - ahead > query) || valid < KEYS;
    weigh(p, lse, x.scale * LOG2_E, x.causal ? seeing : -8, valid - warp * 16 - lane / 4, masked, lane);
    add_over_queries<D>(d_v, p, do_tile, lane);
    against_queries<D>(ds, v_tile, do_tile, warp, lane);
    SKRULL_UNROLL
    for (int t = 0; t < TILES; ++t) {
      const float2 rows = load_shared_pair(delta + (t * 8 + 2 * (lane % 4)) * 4);
      SKRULL_UNROLL
      for (int i = 0; i < 4; ++i) ds[t][i] = p[t][i] * (ds[t][i] - (i % 2 ? rows.y : rows.x));
      SKRULL_UNROLL
      for (int half = 0; half < 2; ++half)
        store_shared(ds_tile + swizzled<TILES>(warp * 16 + half * 8 + lane / 4, t) + 4 * (lane % 4),
                     pack_bf16(ds[t][2 * half], ds[t][2 * half + 1]));
    }
    add_over_queries<D>(d_k, ds, q_tile, lane);
    __syncthreads();
    float* to = x.d_q + (query_start + query) * q_stride + head * D;
    add_to_queries<D>(to, q_stride, queries - query, ds_tile, k_tile, warp, lane);
  }
  write_keys<D>(x.d_k + kv_at, kv_stride, d_k, x.scale, valid, warp, lane);
  write_keys<D>(x.d_v + kv_at, kv_stride, d_v, 1.0f, valid, warp, lane);
}

SKRULL_KERNEL __launch_bounds__(THREADS, 1)
    attention_backward_128(const bf16* q, const bf16* k, const bf16* v, const bf16* d_out, const float* lse,
                           const float* delta, float* d_q, bf16* d_k, bf16* d_v, const int* cu_q, const int* cu_k,
                           const int2* tiles, int heads, int kv_heads, int total_queries, float scale, int causal) {
  differentiate<128>(
      {q, k, v, d_out, lse, delta, d_q, d_k, d_v, cu_q, cu_k, tiles, heads, kv_heads, total_queries, scale, causal});
}

SKRULL_KERNEL __launch_bounds__(THREADS, 1)
    attention_backward_64(const bf16* q, const bf16* k, const bf16* v, const bf16* d_out, const float* lse,
                          const float* delta, float* d_q, bf16* d_k, bf16* d_v, const int* cu_q, const int* cu_k,
                          const int2* tiles, int heads, int kv_heads, int total_queries, float scale, int causal) {
  differentiate<64>(
      {q, k, v, d_out, lse, delta, d_q, d_k, d_v, cu_q, cu_k, tiles, heads, kv_heads, total_queries, scale, causal});
}

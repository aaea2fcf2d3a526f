// Attention of one new token per sequence over a long cache of keys and values, split over blocks or over devices, and
// the merging of the parts: DistAttention of Infinite-LLM (arXiv:2401.02669). Its time is the attention part of a
// decoding step; the parts are what a shard of the cache on another device sends back.
//
// q [sequences, heads, D] bf16; k, v [cached tokens, kv_heads, D] bf16; D is 64 or 128; heads / kv_heads is at most 16.
// lengths [sequences] counts the cached tokens of a sequence. place: contiguous kernels take the first cached token of
// each sequence, [sequences]; paged ones take page numbers, [sequences, place_stride], with page_size tokens per page
// (a multiple of 16), so token i lies at place[s][i / page_size] * page_size + i % page_size. Parts: part_out [splits,
// sequences, heads, D] f32 = sum of exp(score - maximum) * v, part_max and part_sum [splits, sequences, heads] f32,
// scores in natural units. A split without keys has maximum -inf and sum 0.
//
// decode_128, decode_64, decode_paged_128, decode_paged_64: grid (kv_heads, splits, sequences), block 128, dynamic
//   shared memory 4 * 3 * 2 * 16 * D * 2 bytes: 96 KiB for D = 128, 48 KiB for 64. Bytes 4 * D * kv_heads per cached
//   token, and 4 * (D + 2) * heads per split and sequence. FLOPs 4 * D * heads per cached token.
// decode_merge: out [rows, D] bf16 and lse [rows] f32 from `parts` parts; rows = sequences * heads; D a multiple of 4.
//   Grid rows * D / 4 / 128 rounded up, block 128, no shared memory. Bytes 4 * (D + 2) * parts + 2 * D + 4 per row.
//
// The cache is read once for all query heads of a key head: they are the rows of a tensor-core product, up to 16. That
// is why the arithmetic never limits: on plain units a group of 8 heads would come close. Each warp streams its own 16
// keys at a time through its own three stages and meets the others only at the end, so no barrier stops the stream.
#include "common.cuh"

constexpr int THREADS = 128, WARPS = 4, BLOCK = 16, STAGES = 3;

struct Cache {
  const bf16 *q, *k, *v;
  const int *lengths, *place;
  float *part_out, *part_max, *part_sum;
  int place_stride, page_size, heads, kv_heads;
  float scale;
};

// Up to 16 query heads as the left operand. Rows beyond the group are zeros and are never written.
template <int D>
SKRULL_INLINE void load_heads(u32 (&a)[D / 16][4], const bf16* q, int group, int lane) {
  SKRULL_UNROLL
  for (int step = 0; step < D / 16; ++step)
    SKRULL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i % 2), column = step * 16 + 2 * (lane % 4) + 8 * (i / 2);
      a[step][i] = row < group ? *reinterpret_cast<const u32*>(q + row * D + column) : 0u;
    }
}

// Starts the copies of 16 keys and values. Absent ones become zeros.
template <int D, bool PAGED>
SKRULL_INLINE void fetch(const Cache& x, u32 stage, int key, int keys, int lane) {
  constexpr int CHUNKS = D / 8, AT_ONCE = 32 / CHUNKS;
  const int* place = x.place + i64(blockIdx.z) * (PAGED ? x.place_stride : 1);
  // 16 keys never cross a page, so one look into the table is enough.
  i64 token = 0;
  if (key < keys) token = PAGED ? i64(place[key / x.page_size]) * x.page_size + key % x.page_size : i64(place[0]) + key;
  const i64 stride = i64(x.kv_heads) * D, start = token * stride + blockIdx.x * D;
  SKRULL_UNROLL
  for (int i = 0; i < BLOCK / AT_ONCE; ++i) {
    const int row = i * AT_ONCE + lane / CHUNKS, chunk = lane % CHUNKS;
    const bool present = key + row < keys;
    const u32 to = stage + swizzled<CHUNKS>(row, chunk);
    const i64 from = start + row * stride + chunk * 8;
    copy_async(to, x.k + from, present);
    copy_async(to + BLOCK * D * 2, x.v + from, present);
  }
}

template <int D>
SKRULL_INLINE void attend(Rows<D, 1>& rows, const u32 (&q)[D / 16][4], u32 stage, int present, float scale, int lane) {
  float s[1][2][4] = {};
  SKRULL_UNROLL
  for (int step = 0; step < D / 16; ++step) {
    u32 k[4];
    load_matrices(k, block_address<D / 8>(stage, 0, step, lane));
    mma_rows(s[0][0], s[0][1], q[step], k);
  }
  SKRULL_UNROLL
  for (int t = 0; t < 2; ++t)
    SKRULL_UNROLL
    for (int i = 0; i < 4; ++i)
      if (t * 8 + 2 * (lane % 4) + i % 2 >= present) s[0][t][i] = minus_infinity();
  soften(rows, s, scale);
  gather_values(rows, s, stage + BLOCK * D * 2, lane);
}

// Brings the four warps together through shared memory and writes the part of this block.
template <int D>
SKRULL_INLINE void write_part(const Cache& x, Rows<D, 1>& rows, u8* shared, int size, int warp, int lane) {
  float* outs = reinterpret_cast<float*>(shared);  // [WARPS][16][D]
  float* maxima = outs + WARPS * 16 * D;           // [WARPS][16]
  float* sums = maxima + WARPS * 16;               // [WARPS][16]
  __syncthreads();
  SKRULL_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + half * 8 + lane / 4;
    const float sum = quad_sum(rows.sum[0][half]);
    maxima[row] = rows.maximum[0][half] * x.scale * LOG2_E;
    sums[row] = sum;
    SKRULL_UNROLL
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<float2*>(outs + row * D + n * 8 + 2 * (lane % 4)) =
          make_float2(rows.out[0][n][2 * half], rows.out[0][n][2 * half + 1]);
  }
  __syncthreads();
  const i64 first = (i64(blockIdx.y) * gridDim.z + blockIdx.z) * x.heads + blockIdx.x * size;
  for (int at = threadIdx.x; at < size * D; at += THREADS) {
    const int row = at / D, column = at % D;
    float top = maxima[row];
    SKRULL_UNROLL
    for (int w = 1; w < WARPS; ++w) top = fmaxf(top, maxima[w * 16 + row]);
    float out = 0.0f, sum = 0.0f;
    SKRULL_UNROLL
    for (int w = 0; w < WARPS; ++w) {
      // Without any key the maxima are all -inf: their difference would be a NaN.
      const float share = top == minus_infinity() ? 0.0f : exp2_fast(maxima[w * 16 + row] - top);
      out += share * outs[(w * 16 + row) * D + column];
      sum += share * sums[w * 16 + row];
    }
    x.part_out[(first + row) * D + column] = out;
    if (column == 0) {
      x.part_max[first + row] = top * LN_2;
      x.part_sum[first + row] = sum;
    }
  }
}

template <int D, bool PAGED>
SKRULL_INLINE void decode(const Cache& x) {
  constexpr u32 STAGE_BYTES = 2 * BLOCK * D * 2;
  SKRULL_SHARED(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, size = x.heads / x.kv_heads;
  const u32 stages = shared_address(shared) + warp * STAGES * STAGE_BYTES;
  // Splits are whole rounds of the four warps, so every block of 16 keys is full but the last of the sequence.
  const int length = x.lengths[blockIdx.z];
  const int per_split = ceil_div(ceil_div(length, int(gridDim.y)), WARPS * BLOCK) * WARPS * BLOCK;
  const int start = smaller(length, int(blockIdx.y) * per_split), end = smaller(length, start + per_split);
  const int first = start + warp * BLOCK, blocks = ceil_div(larger(end - first, 0), WARPS * BLOCK);

  u32 q[D / 16][4];
  load_heads<D>(q, x.q + (i64(blockIdx.z) * x.heads + blockIdx.x * size) * D, size, lane);
  Rows<D, 1> rows;
  begin(rows);
  SKRULL_UNROLL
  for (int i = 0; i < STAGES - 1; ++i) {
    if (i < blocks) fetch<D, PAGED>(x, stages + i * STAGE_BYTES, first + i * WARPS * BLOCK, end, lane);
    copy_commit();
  }
  for (int i = 0, stage = 0; i < blocks; ++i, stage = stage == STAGES - 1 ? 0 : stage + 1) {
    copy_wait<STAGES - 2>();
    __syncwarp();
    const int next = i + STAGES - 1;
    const int free = stage == 0 ? STAGES - 1 : stage - 1;
    if (next < blocks) fetch<D, PAGED>(x, stages + free * STAGE_BYTES, first + next * WARPS * BLOCK, end, lane);
    copy_commit();
    attend<D>(rows, q, stages + stage * STAGE_BYTES, end - first - i * WARPS * BLOCK, x.scale * LOG2_E, lane);
  }
  // Only empty groups are left under way: the last block that was fetched has been worked on.
  write_part<D>(x, rows, shared, size, warp, lane);
}

#define SKRULL_DECODE(name, D, PAGED)                                                                                 \
  SKRULL_KERNEL __launch_bounds__(THREADS)                                                                            \
      name(const bf16* q, const bf16* k, const bf16* v, const int* lengths, const int* place, float* part_out,        \
           float* part_max, float* part_sum, int place_stride, int page_size, int heads, int kv_heads, float scale) { \
    decode<D, PAGED>(                                                                                                 \
        {q, k, v, lengths, place, part_out, part_max, part_sum, place_stride, page_size, heads, kv_heads, scale});    \
  }
SKRULL_DECODE(decode_128, 128, false)
SKRULL_DECODE(decode_64, 64, false)
SKRULL_DECODE(decode_paged_128, 128, true)
SKRULL_DECODE(decode_paged_64, 64, true)

SKRULL_KERNEL __launch_bounds__(THREADS)
    decode_merge(const float4* __restrict__ part_out, const float* __restrict__ part_max,
                 const float* __restrict__ part_sum, uint2* __restrict__ out, float* __restrict__ lse, int parts,
                 int rows, int d) {
  const int vectors = d / 4;
  const i64 at = i64(blockIdx.x) * THREADS + threadIdx.x, total = i64(rows) * vectors;
  if (at >= total) return;
  const i64 row = at / vectors;
  float top = minus_infinity();
  for (int i = 0; i < parts; ++i) top = fmaxf(top, part_max[i * i64(rows) + row]);
  float4 gathered = make_float4(0, 0, 0, 0);
  float sum = 0.0f;
  for (int i = 0; i < parts && top > minus_infinity(); ++i) {
    const float share = exp2_fast((part_max[i * i64(rows) + row] - top) * LOG2_E);
    const float4 part = part_out[i * total + at];
    gathered = make_float4(gathered.x + share * part.x, gathered.y + share * part.y, gathered.z + share * part.z,
                           gathered.w + share * part.w);
    sum += share * part_sum[i * i64(rows) + row];
  }
  const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
  out[at] = make_uint2(pack_bf16(gathered.x * inverse, gathered.y * inverse),
                       pack_bf16(gathered.z * inverse, gathered.w * inverse));
  if (at % vectors == 0) lse[row] = sum > 0.0f ? top + logf(sum) : minus_infinity();
}

// Product of a weight with unstructured zeros and a few dense columns, on dense tensor cores: Flash-LLM
// (arXiv:2309.10285), "load as sparse, compute as dense". Decoding reads weights far more than it multiplies, so a
// weight that is stored with fewer bytes takes less time although every zero is multiplied. The times feed the
// planner's law for sparse serving.
//
// C[M, N] = A[M, K] B[K, N]; N is 8, 16 or 32 tokens, M a multiple of 128, K of 64; B and C are column-major, that is
// token by token: b [N, K] and c [N, M] bf16.
// A is in tiles of 128 x 64, tile (i, j) at index i * (K / 64) + j. items: 32-bit words, value (bf16) in the upper half
// and location in the lower; location = row * 64 + (column XOR ((row mod 8) * 8)), the place in the swizzled tile in
// shared memory. offsets [tiles + 1] gives where a tile begins, in groups of 4 items, so that loads are 16 bytes; a
// tile is padded with zeros at free places. A host that deals a tile's items so that the lanes of a warp hit different
// banks makes the scatter free of conflicts; the result does not depend on the order.
//
// spmm_8, spmm_16, spmm_32: grid (M / 128, splits), block 128, dynamic shared memory 2 * (128 + max(N, 16)) * 128
//   bytes: 36 KiB for N = 8 and 16, 40 KiB for 32. With one split c is written; with more, f32 parts [splits, N, M].
// spmm_reduce: c from the parts. Grid any, block 256, no shared memory.
// FLOPs 2 * M * N * K. Bytes 4 * items + 4 * tiles + 2 * K * N (again per row of tiles, from cache) + 2 * M * N, and
// with splits 8 * M * N for each.
//
// Per tile: the items of the next one are under way to registers and its dense tile is cleared while this one is
// multiplied; then the items are scattered. Tiles with more than 4096 items (denser than half) load the rest late:
// right, but slower.
#include "common.cuh"

constexpr int THREADS = 128, ROWS = 128, DEPTH = 64, REDUCE_THREADS = 256;
constexpr int HELD = 8;  // 16-byte groups of items per thread on their way.

SKRULL_INLINE void scatter(u32 tile, uint4 items) {
  const u32 words[4] = {items.x, items.y, items.z, items.w};
  SKRULL_UNROLL
  for (int i = 0; i < 4; ++i) store_shared(tile + (words[i] & 0xffffu) * 2, bf16(words[i] >> 16));
}

// One tile in the middle of its way: the groups of items that this thread brings.
struct Items {
  uint4 held[HELD];
  int first, count;
};

SKRULL_INLINE void load_items(Items& x, const uint4* __restrict__ items, const int* __restrict__ offsets, int tile) {
  x.first = offsets[tile];
  x.count = offsets[tile + 1] - x.first;
  SKRULL_UNROLL
  for (int i = 0; i < HELD; ++i)
    if (int(threadIdx.x) + i * THREADS < x.count)
      x.held[i] = load_streaming(items + x.first + threadIdx.x + i * THREADS);
}

SKRULL_INLINE void scatter_items(const Items& x, const uint4* __restrict__ items, u32 tile) {
  SKRULL_UNROLL
  for (int i = 0; i < HELD; ++i)
    if (int(threadIdx.x) + i * THREADS < x.count) scatter(tile, x.held[i]);
  for (int at = int(threadIdx.x) + HELD * THREADS; at < x.count; at += THREADS) scatter(tile, items[x.first + at]);
}

SKRULL_INLINE void clear(u32 tile) {
  SKRULL_UNROLL
  for (int i = 0; i < ROWS * DEPTH / 8 / THREADS; ++i)
    store_shared(tile + (threadIdx.x + i * THREADS) * 16, make_uint4(0, 0, 0, 0));
}

// 32 rows of a warp times the N columns.
template <int N>
SKRULL_INLINE void multiply(float (&sum)[2][N / 8][4], u32 a_tile, u32 b_tile, int warp, int lane) {
  SKRULL_UNROLL
  for (int step = 0; step < DEPTH / 16; ++step) {
    u32 a[2][4], b[4];
    load_matrices(a[0], block_address<DEPTH / 8>(a_tile, warp * 32, step, lane));
    load_matrices(a[1], block_address<DEPTH / 8>(a_tile, warp * 32 + 16, step, lane));
    if constexpr (N == 8) {
      load_matrices(b, block_address<DEPTH / 8>(b_tile, 0, step, lane));
      mma(sum[0][0], a[0], b[0], b[2]);
      mma(sum[1][0], a[1], b[0], b[2]);
    } else {
      SKRULL_UNROLL
      for (int n = 0; n < N / 16; ++n) {
        load_matrices(b, block_address<DEPTH / 8>(b_tile, n * 16, step, lane));
        mma_rows(sum[0][2 * n], sum[0][2 * n + 1], a[0], b);
        mma_rows(sum[1][2 * n], sum[1][2 * n + 1], a[1], b);
      }
    }
  }
}

template <int N>
SKRULL_INLINE void multiply_sparse(const uint4* __restrict__ items, const int* __restrict__ offsets,
                                   const bf16* __restrict__ b, bf16* __restrict__ c, float* __restrict__ parts, int m,
                                   int k) {
  constexpr int COLUMNS = N < 16 ? 16 : N;  // The columns of a tile of B; beyond N they are zeros.
  constexpr u32 A_BYTES = ROWS * DEPTH * 2, B_BYTES = COLUMNS * DEPTH * 2;
  SKRULL_SHARED(shared);
  const u32 a_tiles = shared_address(shared), b_tiles = a_tiles + 2 * A_BYTES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tiles = k / DEPTH, per_split = ceil_div(tiles, int(gridDim.y));
  const int start = smaller(tiles, int(blockIdx.y) * per_split), end = smaller(tiles, start + per_split);
  const int row_of_tiles = int(blockIdx.x) * tiles;

  Items next;
  float sum[2][N / 8][4] = {};
  if (start < end) {
    load_items(next, items, offsets, row_of_tiles + start);
    load_tile<DEPTH, COLUMNS, THREADS>(b_tiles, b + i64(start) * DEPTH, k, N);
    copy_commit();
    clear(a_tiles);
    __syncthreads();
    scatter_items(next, items, a_tiles);
  }
  for (int tile = start, stage = 0; tile < end; ++tile, stage ^= 1) {
    copy_wait<0>();
    __syncthreads();
    const u32 a_next = a_tiles + (stage ^ 1) * A_BYTES;
    if (tile + 1 < end) {
      load_items(next, items, offsets, row_of_tiles + tile + 1);
      load_tile<DEPTH, COLUMNS, THREADS>(b_tiles + (stage ^ 1) * B_BYTES, b + i64(tile + 1) * DEPTH, k, N);
      copy_commit();
      clear(a_next);
    }
    multiply<N>(sum, a_tiles + stage * A_BYTES, b_tiles + stage * B_BYTES, warp, lane);
    __syncthreads();  // The next tile is clear everywhere before anyone scatters into it.
    if (tile + 1 < end) scatter_items(next, items, a_next);
  }
  SKRULL_UNROLL
  for (int r = 0; r < 2; ++r)
    SKRULL_UNROLL
    for (int n = 0; n < N / 8; ++n)
      SKRULL_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = blockIdx.x * ROWS + warp * 32 + r * 16 + i / 2 * 8 + lane / 4,
                  column = n * 8 + 2 * (lane % 4) + i % 2;
        if (gridDim.y == 1) c[i64(column) * m + row] = float_to_bf16(sum[r][n][i]);
        else parts[(i64(blockIdx.y) * N + column) * m + row] = sum[r][n][i];
      }
}

#define SKRULL_SPMM(name, N)                                                                             \
  SKRULL_KERNEL __launch_bounds__(THREADS)                                                               \
      name(const uint4* items, const int* offsets, const bf16* b, bf16* c, float* parts, int m, int k) { \
    multiply_sparse<N>(items, offsets, b, c, parts, m, k);                                               \
  }
SKRULL_SPMM(spmm_8, 8)
SKRULL_SPMM(spmm_16, 16)
SKRULL_SPMM(spmm_32, 32)

SKRULL_KERNEL __launch_bounds__(REDUCE_THREADS)
    spmm_reduce(const float4* __restrict__ parts, uint2* __restrict__ c, int splits, i64 count) {
  for (i64 at = i64(blockIdx.x) * REDUCE_THREADS + threadIdx.x; at < count / 4; at += i64(gridDim.x) * REDUCE_THREADS) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int i = 0; i < splits; ++i) {
      const float4 part = parts[i * (count / 4) + at];
      sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
    }
    c[at] = make_uint2(pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w));
  }
}

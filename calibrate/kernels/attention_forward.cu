// Causal attention of packed documents on tensor cores (flash attention), the kernel whose time over sequence lengths
// the long-context planners are calibrated with: Skrull, ByteScale (arXiv:2502.21231), FlexSP (arXiv:2412.01523),
// Hydraulis (arXiv:2412.07894), ChunkFlow (arXiv:2503.02356; a chunk attends to the chunks before it).
//
// q, out [total queries, heads, D] bf16; k, v [total keys, kv_heads, D] bf16; D is 64 or 128; heads is a multiple of
// kv_heads, and consecutive query heads share a key head. lse [heads, total queries] f32: natural logarithm of the sum
// of exponentials, what the backward pass and the merging of partial results need. Document i has queries
// cu_q[i]..cu_q[i+1] and keys cu_k[i]..cu_k[i+1]. Its queries are the last ones of its keys: query r sees keys 0..r +
// (keys - queries). With causal = 0 it sees all of its document. A row without keys gives 0 and lse -inf. scale
// multiplies the scores (1 / sqrt(D) as a rule).
//
// Grid (heads, tiles), block 128, dynamic shared memory (128 + 4 * 64) * D * 2 bytes: 96 KiB for D = 128, 48 KiB for
// 64. tiles[y] = {document, first query within it, a multiple of 128}; the host lists the tiles with the most keys
// first, so that short ones fill the end of the grid. FLOPs 4 * D * heads * (pairs of a query and a key that it sees).
// Bytes at least 4 * D * (heads * queries + kv_heads * keys).
//
// A block takes 128 queries, 32 to a warp, and walks their keys by 64, the diagonal first. 32 rows per warp halve the
// shared-memory reads per product against 16: with 16 the reads and not the tensor cores would set the pace. The price
// is registers: for D = 128 the output takes 128 of them and the scores 64, so Q is read again from shared memory.
#include "common.cuh"

constexpr int THREADS = 128, QUERIES = 128, KEYS = 64, TILES = KEYS / 8;

// Scores of 32 queries and 64 keys.
template <int D>
SKRULL_INLINE void score(float (&s)[2][TILES][4], u32 q_tile, u32 k_tile, int warp, int lane) {
  SKRULL_UNROLL
  for (int m = 0; m < 2; ++m)
    SKRULL_UNROLL
    for (int t = 0; t < TILES; ++t)
      SKRULL_UNROLL
      for (int i = 0; i < 4; ++i) s[m][t][i] = 0.0f;
  // Unrolling it all lets the assembler hold so many fragments that others spill.
  SKRULL_UNROLL_4
  for (int step = 0; step < D / 16; ++step) {
    u32 q[2][4];
    load_matrices(q[0], block_address<D / 8>(q_tile, warp * 32, step, lane));
    load_matrices(q[1], block_address<D / 8>(q_tile, warp * 32 + 16, step, lane));
    SKRULL_UNROLL
    for (int t = 0; t < TILES; t += 2) {
      u32 k[4];
      load_matrices(k, block_address<D / 8>(k_tile, t * 8, step, lane));
      mma_rows(s[0][t], s[0][t + 1], q[0], k);
      mma_rows(s[1][t], s[1][t + 1], q[1], k);
    }
  }
}

// Removes the keys beyond the last one that a row sees. `beyond` is that key for the row g of this lane, relative to
// the tile; the rows after it see `per_row` more each.
SKRULL_INLINE void mask(float (&s)[2][TILES][4], int beyond, int per_row, int lane) {
  SKRULL_UNROLL
  for (int m = 0; m < 2; ++m)
    SKRULL_UNROLL
    for (int t = 0; t < TILES; ++t)
      SKRULL_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int key = t * 8 + 2 * (lane % 4) + i % 2;
        if (key > beyond + per_row * (m * 16 + (i / 2) * 8)) s[m][t][i] = minus_infinity();
      }
}

// What a block works on. Read again where it is needed after the loop: in the loop the registers are all taken.
struct Place {
  int queries, keys, first, query_start, key_start;
};

SKRULL_INLINE Place place_of(const int* cu_q, const int* cu_k, const int2* tiles) {
  const int2 tile = tiles[blockIdx.y];
  const int query_start = cu_q[tile.x], key_start = cu_k[tile.x];
  return {cu_q[tile.x + 1] - query_start, cu_k[tile.x + 1] - key_start, tile.y, query_start, key_start};
}

template <int D>
SKRULL_INLINE void attend(const bf16* q, const bf16* k, const bf16* v, bf16* out, float* lse, const int* cu_q,
                          const int* cu_k, const int2* tiles, int heads, int kv_heads, int total_queries, float scale,
                          int causal) {
  constexpr u32 TILE_BYTES = KEYS * D * 2;
  SKRULL_SHARED(shared);
  const u32 q_tile = shared_address(shared), kv_tiles = q_tile + QUERIES * D * 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
  Rows<D, 2> rows;
  begin(rows);
  const float scale_2 = scale * LOG2_E;
  {
    const Place at = place_of(cu_q, cu_k, tiles);
    const int valid = smaller(QUERIES, at.queries - at.first), ahead = at.keys - at.queries;
    const int seen = causal ? smaller(at.keys, at.first + valid + ahead) : at.keys;
    const int blocks = ceil_div(larger(seen, 0), KEYS), kv_stride = kv_heads * D;
    const i64 kv_start = i64(at.key_start) * kv_stride + head / (heads / kv_heads) * D;
    // Both tiles of a block of keys arrive together, one block ahead of their use.
    const auto fetch = [&](int block, int stage, int present) {
      const u32 tile = kv_tiles + stage * 2 * TILE_BYTES;
      const i64 from = kv_start + i64(block * KEYS) * kv_stride;
      load_tile<D, KEYS, THREADS>(tile, k + from, kv_stride, present);
      load_tile<D, KEYS, THREADS>(tile + TILE_BYTES, v + from, kv_stride, present);
      copy_commit();
    };
    if (blocks > 0) {
      const bf16* from = q + (i64(at.query_start + at.first) * heads + head) * D;
      load_tile<D, QUERIES, THREADS>(q_tile, from, heads * D, valid);
      fetch(blocks - 1, 0, at.keys - (blocks - 1) * KEYS);
    }
    // The last key that the first row of the warp sees.
    const int last = causal ? at.first + warp * 32 + ahead : at.keys - 1;
    for (int block = blocks - 1, stage = 0; block >= 0; --block, stage ^= 1) {
      copy_wait<0>();
      // One barrier per block of keys: everyone's copies are there, and everyone is done with the stage that is filled
      // next.
      __syncthreads();
      if (block > 0) fetch(block - 1, stage ^ 1, KEYS);  // Only the last block of a document can be short.
      const int low = last - block * KEYS;
      if (low + (causal ? 31 : 0) < 0) continue;
      float s[2][TILES][4];
      const u32 k_tile = kv_tiles + stage * 2 * TILE_BYTES;
      score<D>(s, q_tile, k_tile, warp, lane);
      if (low < KEYS - 1) mask(s, low + (causal ? lane / 4 : 0), causal ? 1 : 0, lane);
      soften(rows, s, scale_2);
      gather_values(rows, s, k_tile + TILE_BYTES, lane);
    }
  }
  const Place at = place_of(cu_q, cu_k, tiles);
  const i64 row = i64(at.query_start) + at.first;
  write_rows(rows, q_tile, out + (row * heads + head) * D, i64(heads) * D, lse + i64(head) * total_queries + row, 0,
             smaller(QUERIES, at.queries - at.first), scale_2, warp, lane);
}

SKRULL_KERNEL __launch_bounds__(THREADS, 2)
    attention_forward_128(const bf16* q, const bf16* k, const bf16* v, bf16* out, float* lse, const int* cu_q,
                          const int* cu_k, const int2* tiles, int heads, int kv_heads, int total_queries, float scale,
                          int causal) {
  attend<128>(q, k, v, out, lse, cu_q, cu_k, tiles, heads, kv_heads, total_queries, scale, causal);
}

SKRULL_KERNEL __launch_bounds__(THREADS, 2)
    attention_forward_64(const bf16* q, const bf16* k, const bf16* v, bf16* out, float* lse, const int* cu_q,
                         const int* cu_k, const int2* tiles, int heads, int kv_heads, int total_queries, float scale,
                         int causal) {
  attend<64>(q, k, v, out, lse, cu_q, cu_k, tiles, heads, kv_heads, total_queries, scale, causal);
}

// Prefill attention over vertical lines and slashes only, the sparse pattern of MInference that Qwen2.5-1M serves with
// (arXiv:2501.15383). Its time over the budgets gives the density model of long prefills, above all the cost of columns
// that must be gathered against that of whole blocks.
//
// Layouts and documents as in attention_forward.cu: q, out [total queries, heads, D], k, v [total keys, kv_heads, D]
// bf16, lse [heads, total queries] f32; D is 64 or 128; always causal. The keys of a document that come before its
// queries (the earlier chunks) must be a multiple of 64 in number, so that blocks of queries and of keys share their
// boundaries. Per query head h: slashes[slash_start[h]..slash_start[h+1]] are distances in blocks of 64, rising: the
// query block i sees the key block i - distance, whole but for causality.
// verticals[vertical_start[h]..vertical_start[h+1]] are key columns within the document, rising, that every later query
// sees. A pair in both counts once. A row that sees nothing gives 0 and lse -inf (a head with distance 0 has no such
// row).
//
// vertical_slash_128, _64: grid (heads, tiles), block 128; tiles[y] = {document, query block: position in the document
//   / 64}, the longest first. Dynamic shared memory 5 * 64 * D * 2 + 1088 + 4 * words bytes, words = (most keys of a
//   document / 64) / 32 rounded up: 83 KiB for D = 128 and a million keys. `words` is an argument too.
// FLOPs 4 * D * 64 * 64 * (blocks + gathered columns / 64) per head and tile; a column inside a block that is seen is
// left out. Bytes at least 4 * D * heads * queries, and 4 * D per key of a block or column, mostly from cache.
//
// Blocks come first, then columns: 64 at a time, gathered row by row into the same kind of tile. A bit per key block
// says which blocks this tile sees; the columns that they hold already are dropped before the gathering, so no work is
// done twice.
#include "common.cuh"

constexpr int THREADS = 128, SIDE = 64, TILES = SIDE / 8;
constexpr int RING = 256;  // Columns waiting: 64 in use, 64 on their way, up to 63 left over and 128 more of one look.

struct Pattern {
  const int *slashes, *slash_start, *verticals, *vertical_start;
};

// The columns that are still to be gathered, found 128 list entries at a time. All threads hold equal numbers.
struct Columns {
  const int* list;
  int* ring;           // [RING] in shared memory.
  int* warp_counts;    // [4]
  const u32* covered;  // A bit per key block.
  int length, limit;   // Entries of the list; columns from `limit` on are later than every query of the tile.
  int cursor, head, tail;
};

// Makes the next columns known, up to 64, and returns how many. They lie in the ring from the old `head` on.
SKRULL_INLINE int take_columns(Columns& x, int warp, int lane) {
  while (x.tail - x.head < SIDE && x.cursor < x.length) {
    const int at = x.cursor + int(threadIdx.x);
    const int column = at < x.length ? x.list[at] : x.limit;
    const bool wanted = column < x.limit && !(x.covered[column / SIDE / 32] >> (column / SIDE % 32) & 1u);
    const u32 votes = __ballot_sync(ALL_LANES, wanted);
    if (lane == 0) x.warp_counts[warp] = __popc(votes);
    __syncthreads();
    int before = 0, all = 0;
    SKRULL_UNROLL
    for (int w = 0; w < THREADS / 32; ++w) {
      if (w == warp) before = all;
      all += x.warp_counts[w];
    }
    if (wanted) x.ring[(x.tail + before + __popc(votes & ((1u << lane) - 1u))) % RING] = column;
    x.tail += all;
    x.cursor += THREADS;
    __syncthreads();  // The ring is written, and the counts may be overwritten.
  }
  const int count = smaller(SIDE, x.tail - x.head);
  x.head += count;
  return count;
}

// Starts the copies of `count` gathered rows; the others become zeros.
template <int D>
SKRULL_INLINE void gather_tile(u32 tile, const bf16* source, i64 stride, const int* ring, int start, int count) {
  constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
  const int chunk = threadIdx.x % CHUNKS;
  SKRULL_UNROLL
  for (int i = 0; i < SIDE / STEP; ++i) {
    const int row = i * STEP + threadIdx.x / CHUNKS;
    const i64 from = row < count ? ring[(start + row) % RING] * stride : 0;
    copy_async(tile + swizzled<CHUNKS>(row, chunk), source + from + chunk * 8, row < count);
  }
}

template <int D>
SKRULL_INLINE void score(float (&s)[1][TILES][4], const u32 (&q)[D / 16][4], u32 k_tile, int lane) {
  SKRULL_UNROLL
  for (int t = 0; t < TILES; ++t)
    SKRULL_UNROLL
    for (int i = 0; i < 4; ++i) s[0][t][i] = 0.0f;
  SKRULL_UNROLL
  for (int step = 0; step < D / 16; ++step)
    SKRULL_UNROLL
    for (int t = 0; t < TILES; t += 2) {
      u32 k[4];
      load_matrices(k, block_address<D / 8>(k_tile, t * 8, step, lane));
      mma_rows(s[0][t], s[0][t + 1], q[step], k);
    }
}

// Removes the pairs of the diagonal block that are not causal. Blocks are aligned, so positions within them decide.
SKRULL_INLINE void mask_diagonal(float (&s)[1][TILES][4], int warp, int lane) {
  SKRULL_UNROLL
  for (int t = 0; t < TILES; ++t)
    SKRULL_UNROLL
    for (int i = 0; i < 4; ++i)
      if (t * 8 + 2 * (lane % 4) + i % 2 > warp * 16 + i / 2 * 8 + lane / 4) s[0][t][i] = minus_infinity();
}

// Removes what is no column at all and the columns that are later than the query at `position` (row g of this lane).
SKRULL_INLINE void mask_columns(float (&s)[1][TILES][4], const int* ring, int start, int count, int position,
                                int lane) {
  SKRULL_UNROLL
  for (int t = 0; t < TILES; ++t)
    SKRULL_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int at = t * 8 + 2 * (lane % 4) + i % 2;
      if (at >= count || ring[(start + at) % RING] > position + i / 2 * 8) s[0][t][i] = minus_infinity();
    }
}

template <int D>
SKRULL_INLINE void attend(const bf16* q, const bf16* k, const bf16* v, bf16* out, float* lse, const int* cu_q,
                          const int* cu_k, const int2* tiles, const Pattern& pattern, int heads, int kv_heads,
                          int total_queries, int words, float scale) {
  constexpr u32 TILE_BYTES = SIDE * D * 2;
  SKRULL_SHARED(shared);
  const u32 q_tile = shared_address(shared), kv_tiles = q_tile + TILE_BYTES;
  int* ring = reinterpret_cast<int*>(shared + 5 * TILE_BYTES);
  int* warp_counts = ring + RING;
  u32* covered = reinterpret_cast<u32*>(ring + RING + 16);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
  const int document = tiles[blockIdx.y].x, block = tiles[blockIdx.y].y;
  const int queries = cu_q[document + 1] - cu_q[document], keys = cu_k[document + 1] - cu_k[document],
            ahead = keys - queries;
  const int present = smaller(SIDE, keys - block * SIDE);  // Queries of this tile.
  const i64 row = i64(cu_q[document]) + block * SIDE - ahead;
  const int q_stride = heads * D, kv_stride = kv_heads * D;
  const i64 kv_start = i64(cu_k[document]) * kv_stride + head / (heads / kv_heads) * D;

  // Which key blocks this tile sees. The distances rise, so the first ones count.
  const int* slashes = pattern.slashes + pattern.slash_start[head];
  const int slash_count = pattern.slash_start[head + 1] - pattern.slash_start[head];
  for (int i = threadIdx.x; i < words; i += THREADS) covered[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < slash_count; i += THREADS) {
    const int seen = block - slashes[i];
    if (seen >= 0) atomicOr(covered + seen / 32, 1u << seen % 32);
  }
  __syncthreads();
  Columns columns = {pattern.verticals + pattern.vertical_start[head],
                     ring,
                     warp_counts,
                     covered,
                     pattern.vertical_start[head + 1] - pattern.vertical_start[head],
                     block * SIDE + present,
                     0,
                     0,
                     0};

  // Starts the copies of one round and returns how many keys it has; 0 when nothing is left.
  const auto fetch = [&](int round, int stage) -> int {
    const u32 tile = kv_tiles + stage * 2 * TILE_BYTES;
    int count;
    if (round < slash_count && slashes[round] <= block) {
      const int first = (block - slashes[round]) * SIDE;
      count = smaller(SIDE, keys - first);
      load_tile<D, SIDE, THREADS>(tile, k + kv_start + i64(first) * kv_stride, kv_stride, count);
      load_tile<D, SIDE, THREADS>(tile + TILE_BYTES, v + kv_start + i64(first) * kv_stride, kv_stride, count);
    } else {
      const int start = columns.head;
      count = take_columns(columns, warp, lane);
      if (count == 0) return 0;
      gather_tile<D>(tile, k + kv_start, kv_stride, ring, start, count);
      gather_tile<D>(tile + TILE_BYTES, v + kv_start, kv_stride, ring, start, count);
    }
    copy_commit();
    return count;
  };
  load_tile<D, SIDE, THREADS>(q_tile, q + row * q_stride + head * D, q_stride, present);
  copy_commit();
  int count = fetch(0, 0);
  copy_wait<0>();
  __syncthreads();
  u32 kept[D / 16][4];
  SKRULL_UNROLL
  for (int step = 0; step < D / 16; ++step)
    load_matrices(kept[step], block_address<D / 8>(q_tile, warp * 16, step, lane));
  Rows<D, 1> rows;
  begin(rows);
  for (int round = 0, stage = 0; count > 0; ++round, stage ^= 1) {
    const int start = columns.head - count;  // Where this round's columns lie, if it has columns.
    const int next = fetch(round + 1, stage ^ 1);
    float s[1][TILES][4];
    const u32 k_tile = kv_tiles + stage * 2 * TILE_BYTES;
    score<D>(s, kept, k_tile, lane);
    if (round >= slash_count || slashes[round] > block)
      mask_columns(s, ring, start, count, block * SIDE + warp * 16 + lane / 4, lane);
    else if (slashes[round] == 0) mask_diagonal(s, warp, lane);
    soften(rows, s, scale * LOG2_E);
    gather_values(rows, s, k_tile + TILE_BYTES, lane);
    count = next;
    copy_wait<0>();
    // Everyone's copies are there, and everyone is done with the stage that is filled next.
    __syncthreads();
  }
  write_rows(rows, q_tile, out + (row * heads + head) * D, q_stride, lse + i64(head) * total_queries + row, 0, present,
             scale * LOG2_E, warp, lane);
}

#define SKRULL_VERTICAL_SLASH(name, D)                                                                           \
  SKRULL_KERNEL __launch_bounds__(THREADS, 2)                                                                    \
      name(const bf16* q, const bf16* k, const bf16* v, bf16* out, float* lse, const int* cu_q, const int* cu_k, \
           const int2* tiles, const int* slashes, const int* slash_start, const int* verticals,                  \
           const int* vertical_start, int heads, int kv_heads, int total_queries, int words, float scale) {      \
    attend<D>(q, k, v, out, lse, cu_q, cu_k, tiles, {slashes, slash_start, verticals, vertical_start}, heads,    \
              kv_heads, total_queries, words, scale);                                                            \
  }
SKRULL_VERTICAL_SLASH(vertical_slash_128, 128)
SKRULL_VERTICAL_SLASH(vertical_slash_64, 64)

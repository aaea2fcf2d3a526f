// Feature rows by index, from pinned host memory that is mapped into the device (zero copy), as the sampled
// mini-batches of Legion (arXiv:2305.16588) read the features that no GPU caches. Its time over the bytes gives the
// bandwidth of the host link for random rows, which the model of graph training needs; the cached kernel gives it for a
// hit rate.
//
// A row is `vectors` vectors of 16 bytes (features padded to that), of any element type: bytes are only moved.
// Layouts: host [all rows, vectors], index [rows], out [rows, vectors]; cache [cached rows, vectors].
//
// gather_rows: out[i] = host[index[i]]. A negative index gives zeros (a padded mini-batch).
// gather_rows_cached: slot[r] is the row of the cache that holds feature row r, or -1 when only the host holds it.
// Both: grid any, block 256, a warp per row, no shared memory. FLOPs 0. Bytes per row: 16 * vectors over the link (or
// from device memory when cached), as many written to device memory, and 4 or 8 for the index and the slot.
#include "common.cuh"

constexpr int THREADS = 256;
// Vectors that a lane has in flight. A trip over the link takes a microsecond or more; one load at a time would wait
// for it.
constexpr int IN_FLIGHT = 4;

SKRULL_INLINE void copy_row(const uint4* __restrict__ source, uint4* __restrict__ target, int vectors, int lane) {
  for (int start = lane; start < vectors; start += 32 * IN_FLIGHT) {
    uint4 held[IN_FLIGHT];
    SKRULL_UNROLL
    for (int i = 0; i < IN_FLIGHT; ++i)
      if (start + 32 * i < vectors) held[i] = load_streaming(source + start + 32 * i);
    SKRULL_UNROLL
    for (int i = 0; i < IN_FLIGHT; ++i)
      if (start + 32 * i < vectors) target[start + 32 * i] = held[i];
  }
}

SKRULL_INLINE void zero_row(uint4* __restrict__ target, int vectors, int lane) {
  for (int at = lane; at < vectors; at += 32) target[at] = make_uint4(0, 0, 0, 0);
}

SKRULL_KERNEL __launch_bounds__(THREADS) gather_rows(const uint4* __restrict__ host, const int* __restrict__ index,
                                                     uint4* __restrict__ out, int rows, int vectors) {
  const int lane = threadIdx.x % 32, warps = gridDim.x * (THREADS / 32);
  for (int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; row < rows; row += warps) {
    const int from = index[row];
    uint4* target = out + i64(row) * vectors;
    if (from < 0) zero_row(target, vectors, lane);
    else copy_row(host + i64(from) * vectors, target, vectors, lane);
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    gather_rows_cached(const uint4* __restrict__ host, const uint4* __restrict__ cache, const int* __restrict__ slot,
                       const int* __restrict__ index, uint4* __restrict__ out, int rows, int vectors) {
  const int lane = threadIdx.x % 32, warps = gridDim.x * (THREADS / 32);
  for (int row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; row < rows; row += warps) {
    const int from = index[row];
    uint4* target = out + i64(row) * vectors;
    if (from < 0) {
      zero_row(target, vectors, lane);
      continue;
    }
    const int cached = slot[from];
    const uint4* source = cached >= 0 ? cache + i64(cached) * vectors : host + i64(from) * vectors;
    copy_row(source, target, vectors, lane);
  }
}

// What the host needs on the device besides the kernels that are measured: operands, a look at results, and waiting.
//
// random_bf16: values [count] between -1 and 1, none of them 0, from a hash of seed and position. Grid any, block 256.
// random_fp8: bytes [count] that are finite numbers of E4M3 below 2 in magnitude. Grid any, block 256.
// count_not_finite: adds to found[0] how many of the bf16 values [count] are infinite or no numbers. Grid any, block 256.
// spin: one thread waits until `ns` nanoseconds have passed: host time that no kernel hides. Grid 1, block 1.
#include "common.cuh"

constexpr int THREADS = 256;

// Mixes position and seed so that neighbours have nothing in common.
SKRULL_INLINE u32 hash(u64 at, u32 seed) {
  u32 x = u32(at) * 0x9e3779b9u ^ u32(at >> 32) * 0x85ebca6bu ^ seed;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

SKRULL_KERNEL __launch_bounds__(THREADS) random_bf16(bf16* __restrict__ values, i64 count, u32 seed) {
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < count; at += i64(gridDim.x) * THREADS) {
    const float x = float(int(hash(at, seed) >> 8) - (1 << 23)) * (1.0f / (1 << 23));
    values[at] = float_to_bf16(x == 0.0f ? 0.5f : x);
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS) random_fp8(u8* __restrict__ values, i64 count, u32 seed) {
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < count; at += i64(gridDim.x) * THREADS) {
    // Exponents from 2^-6 to 2^0: the bits 0xxx1111 of the largest exponent hold the NaN and are never reached.
    const u32 bits = hash(at, seed);
    values[at] = u8((bits & 0x87u) | ((1u + (bits >> 8) % 7u) << 3));
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS) count_not_finite(const bf16* __restrict__ values, i64 count, int* found) {
  int mine = 0;
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < count; at += i64(gridDim.x) * THREADS)
    mine += (values[at] & 0x7f80u) == 0x7f80u;
  if (mine > 0) atomicAdd(found, mine);
}

SKRULL_KERNEL spin(i64 ns) {
  const u64 begun = device_time_ns();
  while (device_time_ns() - begun < u64(ns)) {
  }
}

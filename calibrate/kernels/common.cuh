// What all kernels share: bf16 as bits, warp reductions, thin wrappers of PTX instructions, the rows of flash attention.
//
// The sources are compiled at run time by NVRTC on machines without CUDA headers, so nothing is included here.
// bf16 values travel as `bf16` (uint16 bits). Pairs of them travel in a 32-bit word, the lower index in the lower half.
// With SKRULL_EMULATE the same sources compile as plain C++: `emulate/cuda.h` gives the built-in names and the
// instructions with the fragment layouts of the PTX manual, so that a machine without a GPU can prove the arithmetic.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef u16 bf16;

// Indices into register arrays must be compile-time constants, hence the unrolling; and every helper is inlined.
#ifdef SKRULL_EMULATE
#define SKRULL_INLINE inline
#define SKRULL_UNROLL
#define SKRULL_UNROLL_4
#define SKRULL_SHARED(name) u8* const name = emulate::dynamic_shared()
#else
#define SKRULL_INLINE __device__ __forceinline__
#define SKRULL_UNROLL _Pragma("unroll")
#define SKRULL_UNROLL_4 _Pragma("unroll 4")
#define SKRULL_SHARED(name) extern __shared__ __align__(128) u8 name[]
#endif
#define SKRULL_KERNEL extern "C" __global__ void

constexpr u32 ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;

SKRULL_INLINE int ceil_div(int a, int b) { return (a + b - 1) / b; }
SKRULL_INLINE int smaller(int a, int b) { return a < b ? a : b; }
SKRULL_INLINE int larger(int a, int b) { return a > b ? a : b; }

SKRULL_INLINE float minus_infinity() { return __uint_as_float(0xff800000u); }
SKRULL_INLINE float bf16_to_float(bf16 bits) { return __uint_as_float(u32(bits) << 16); }
SKRULL_INLINE float low_half(u32 pair) { return __uint_as_float(pair << 16); }
SKRULL_INLINE float high_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Rounds to nearest, ties to even. A NaN stays a NaN: the rounding increment could carry it into an infinity.
SKRULL_INLINE bf16 float_to_bf16(float value) {
  const u32 bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bf16((bits >> 16) | 0x40u);
  return bf16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Eight bf16 values of a 16-byte vector.
SKRULL_INLINE void unpack(float (&values)[8], uint4 v) {
  const u32 words[4] = {v.x, v.y, v.z, v.w};
  SKRULL_UNROLL
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = low_half(words[i]);
    values[2 * i + 1] = high_half(words[i]);
  }
}

// Two floats to a word of bf16. One instruction on the device.
SKRULL_INLINE u32 pack_bf16(float low, float high) {
#ifdef SKRULL_EMULATE
  return u32(float_to_bf16(low)) | (u32(float_to_bf16(high)) << 16);
#else
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#endif
}

SKRULL_INLINE uint4 pack(const float (&v)[8]) {
  return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

// Nanoseconds of the device's clock.
SKRULL_INLINE u64 device_time_ns() {
#ifdef SKRULL_EMULATE
  static u64 now = 0;
  return now += 10;
#else
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
#endif
}

SKRULL_INLINE float warp_sum(float value) {
  SKRULL_UNROLL
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}

SKRULL_INLINE float warp_max(float value) {
  SKRULL_UNROLL
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
  return value;
}

// The sum over a block, on every thread. The second barrier lets the next call reuse the words.
SKRULL_INLINE float block_sum(float value) {
  __shared__ float parts[32];
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  value = warp_sum(value);
  if (lane == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = warp_sum(lane < warps ? parts[lane] : 0.0f);
  __syncthreads();
  return value;
}

// The sum and the maximum of the four lanes that share a row of an mma accumulator.
SKRULL_INLINE float quad_sum(float value) {
  value += __shfl_xor_sync(ALL_LANES, value, 1);
  return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

SKRULL_INLINE float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
  return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

// Base-2 exponential: a single instruction on the device. Its relative error is about 2^-22.
SKRULL_INLINE float exp2_fast(float x) {
#ifdef SKRULL_EMULATE
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Reads that are used once should not push reused data out of L1.
SKRULL_INLINE uint4 load_streaming(const uint4* address) {
#ifdef SKRULL_EMULATE
  return *address;
#else
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
#endif
}

// Addresses inside shared memory are 32-bit byte offsets: half the registers and half the arithmetic of pointers.
SKRULL_INLINE u32 shared_address(const void* pointer) {
#ifdef SKRULL_EMULATE
  return emulate::shared_address(pointer);
#else
  return u32(__cvta_generic_to_shared(pointer));
#endif
}

SKRULL_INLINE void store_shared(u32 address, u32 word) {
#ifdef SKRULL_EMULATE
  emulate::store_shared(address, &word, 4);
#else
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
#endif
}

SKRULL_INLINE void store_shared(u32 address, uint4 v) {
#ifdef SKRULL_EMULATE
  emulate::store_shared(address, &v, 16);
#else
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
#endif
}

SKRULL_INLINE void store_shared(u32 address, bf16 value) {
#ifdef SKRULL_EMULATE
  emulate::store_shared(address, &value, 2);
#else
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
#endif
}

SKRULL_INLINE uint4 load_shared(u32 address) {
#ifdef SKRULL_EMULATE
  uint4 v;
  emulate::load_shared(address, &v, 16);
  return v;
#else
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
#endif
}

SKRULL_INLINE float2 load_shared_pair(u32 address) {
  float2 v;
#ifdef SKRULL_EMULATE
  emulate::load_shared(address, &v, 8);
#else
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
#endif
  return v;
}

// Adds two neighbouring floats to global memory, without an answer: one request where the chip has that.
SKRULL_INLINE void add_pair(float* address, float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1,%2};" ::"l"(address), "f"(first), "f"(second) : "memory");
#else
  atomicAdd(address, first);
  atomicAdd(address + 1, second);
#endif
}

// Starts a copy of 16 bytes from global to shared memory. Without `wanted` it writes zeros and reads nothing.
SKRULL_INLINE void copy_async(u32 address, const void* source, bool wanted) {
#ifdef SKRULL_EMULATE
  emulate::copy_async(address, source, wanted, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(wanted ? 16 : 0)
               : "memory");
#endif
}

// The same for 4 bytes, which the row statistics need: they start at any row.
SKRULL_INLINE void copy_async_word(u32 address, const void* source, bool wanted) {
#ifdef SKRULL_EMULATE
  emulate::copy_async(address, source, wanted, 4);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(source), "r"(wanted ? 4 : 0)
               : "memory");
#endif
}

SKRULL_INLINE void copy_commit() {
#ifdef SKRULL_EMULATE
  emulate::copy_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `PENDING` of this thread's groups are under way. A barrier must follow: others copied too.
template <int PENDING>
SKRULL_INLINE void copy_wait() {
#ifdef SKRULL_EMULATE
  emulate::copy_wait(PENDING);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Four 8x8 matrices of 16-bit elements. Lanes 8i..8i+7 give the addresses of the rows of matrix i.
// Lane l gets of every matrix the elements 2(l%4) and 2(l%4)+1 of row l/4.
SKRULL_INLINE void load_matrices(u32 (&r)[4], u32 address) {
#ifdef SKRULL_EMULATE
  emulate::load_matrices(r, address, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
#endif
}

// The same with every 8x8 matrix transposed.
SKRULL_INLINE void load_matrices_transposed(u32 (&r)[4], u32 address) {
#ifdef SKRULL_EMULATE
  emulate::load_matrices(r, address, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
#endif
}

// c[16x8] += a[16x16] b[16x8], a row-major and b column-major in registers. With g = lane/4 and t = lane%4:
// a[0] = rows g, columns 2t,2t+1; a[1] = row g+8; a[2] = row g, columns 2t+8,2t+9; a[3] = row g+8, the same columns;
// b[0] = column g, rows 2t,2t+1; b[1] = column g, rows 2t+8,2t+9; c[0],c[1] = row g, columns 2t,2t+1;
// c[2],c[3] = row g+8.
SKRULL_INLINE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef SKRULL_EMULATE
  emulate::mma(c, a, b0, b1);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Byte offset of 16-byte chunk `chunk` of row `row` in a tile of `CHUNKS` chunks per row (a multiple of 8). The chunk
// number is XORed with the row: the eight rows of an 8x8 matrix then lie in eight different groups of banks.
template <int CHUNKS>
SKRULL_INLINE u32 swizzled(int row, int chunk) {
  return u32(row * CHUNKS + (chunk ^ (row & 7))) * 16u;
}

// Where a lane points `load_matrices` for the 16x16 block at `first_row` (a multiple of 8) and columns 16 * step of a
// swizzled tile. Matrices 0 and 1 are the upper and the lower rows of the left half, 2 and 3 of the right half: the
// order of `a` in `mma`. The XOR stays within a row, so all but one operation is shared by the whole loop.
template <int CHUNKS>
SKRULL_INLINE u32 block_address(u32 tile, int first_row, int step, int lane) {
  const u32 column = u32(((lane >> 4) ^ (lane & 7)) << 4) ^ u32(step << 5);
  return tile + u32(first_row * CHUNKS * 16) + u32((lane & 15) * CHUNKS * 16) + column;
}

// Starts copies of `ROWS` rows of `D` bf16 into a swizzled tile; `stride` is in elements. Rows from `valid` on are
// zeros: whatever they are multiplied with, they must not bring a NaN.
template <int D, int ROWS, int THREADS>
SKRULL_INLINE void load_tile(u32 tile, const bf16* source, i64 stride, int valid) {
  constexpr int CHUNKS = D / 8, STEP = THREADS / CHUNKS;
  static_assert(ROWS % STEP == 0, "a whole number of rounds");
  static_assert(STEP % 8 == 0, "the swizzle of a thread's rows is the same");
  const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
  const bf16* from = source + first * stride + chunk * 8;
  const u32 to = tile + swizzled<CHUNKS>(first, chunk);
  SKRULL_UNROLL
  for (int i = 0; i < ROWS / STEP; ++i) {
    copy_async(to + u32(i * STEP * CHUNKS * 16), from, first + i * STEP < valid);
    from += STEP * stride;
  }
}

// Multiplies by the 16x16 block of a row-major tile whose ROWS are the columns of the product (S = Q K^T: rows are
// keys).
SKRULL_INLINE void mma_rows(float (&left)[4], float (&right)[4], const u32 (&a)[4], const u32 (&block)[4]) {
  mma(left, a, block[0], block[2]);
  mma(right, a, block[1], block[3]);
}

// Multiplies by the 16x16 block of a tile whose rows are summed over (O = P V), read by `load_matrices_transposed`.
SKRULL_INLINE void mma_columns(float (&left)[4], float (&right)[4], const u32 (&a)[4], const u32 (&block)[4]) {
  mma(left, a, block[0], block[1]);
  mma(right, a, block[2], block[3]);
}

// Two neighbouring 16x8 accumulators as the left operand of the next product.
SKRULL_INLINE void as_operand(u32 (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack_bf16(left[0], left[1]);
  a[1] = pack_bf16(left[2], left[3]);
  a[2] = pack_bf16(right[0], right[1]);
  a[3] = pack_bf16(right[2], right[3]);
}

// Attention with the maximum subtracted as it grows (flash attention), for M times 16 queries of a warp. A lane has
// parts of the rows g and g + 8 of each 16. The scores and the maximum are as they leave the product; `scale` takes
// them to base 2.
template <int D, int M>
struct Rows {
  float out[M][D / 8][4];
  float maximum[M][2];
  float sum[M][2];  // Of this lane's columns only; added up over the quad at the end.
};

template <int D, int M>
SKRULL_INLINE void begin(Rows<D, M>& rows) {
  SKRULL_UNROLL
  for (int m = 0; m < M; ++m) {
    rows.maximum[m][0] = rows.maximum[m][1] = minus_infinity();
    rows.sum[m][0] = rows.sum[m][1] = 0.0f;
    SKRULL_UNROLL
    for (int n = 0; n < D / 8; ++n)
      SKRULL_UNROLL
      for (int i = 0; i < 4; ++i) rows.out[m][n][i] = 0.0f;
  }
}

// Turns scores into weights relative to the running maximum, and rescales what was gathered under the old one.
template <int D, int M, int TILES>
SKRULL_INLINE void soften(Rows<D, M>& rows, float (&s)[M][TILES][4], float scale) {
  SKRULL_UNROLL
  for (int m = 0; m < M; ++m)
    SKRULL_UNROLL
    for (int half = 0; half < 2; ++half) {
      float top = rows.maximum[m][half];
      SKRULL_UNROLL
      for (int t = 0; t < TILES; ++t) top = fmaxf(top, fmaxf(s[m][t][2 * half], s[m][t][2 * half + 1]));
      top = quad_max(top);
      // A row that has seen no key yet keeps its weights at 0: subtracting -inf from -inf would give NaN.
      const float shift = top == minus_infinity() ? 0.0f : top * scale;
      const float keep = exp2_fast(rows.maximum[m][half] * scale - shift);
      rows.maximum[m][half] = top;
      float sum = 0.0f;
      SKRULL_UNROLL
      for (int t = 0; t < TILES; ++t)
        SKRULL_UNROLL
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[m][t][i] = exp2_fast(s[m][t][i] * scale - shift);
          sum += s[m][t][i];
        }
      rows.sum[m][half] = rows.sum[m][half] * keep + sum;
      SKRULL_UNROLL
      for (int n = 0; n < D / 8; ++n) {
        rows.out[m][n][2 * half] *= keep;
        rows.out[m][n][2 * half + 1] *= keep;
      }
    }
}

// Adds the weighted values of a tile of V, one row per key.
template <int D, int M, int TILES>
SKRULL_INLINE void gather_values(Rows<D, M>& rows, const float (&s)[M][TILES][4], u32 v_tile, int lane) {
  SKRULL_UNROLL
  for (int t = 0; t < TILES; t += 2) {
    u32 p[M][4];
    SKRULL_UNROLL
    for (int m = 0; m < M; ++m) as_operand(p[m], s[m][t], s[m][t + 1]);
    SKRULL_UNROLL
    for (int step = 0; step < D / 16; ++step) {
      u32 v[4];
      load_matrices_transposed(v, block_address<D / 8>(v_tile, t * 8, step, lane));
      SKRULL_UNROLL
      for (int m = 0; m < M; ++m) mma_columns(rows.out[m][2 * step], rows.out[m][2 * step + 1], p[m], v);
    }
  }
}

// Normalises and writes the rows of a warp that lie in [from, to), through its own rows of the Q tile, so that the
// stores to memory are whole 16-byte vectors. `out` and `lse` belong to row 0 of the tile.
template <int D, int M>
SKRULL_INLINE void write_rows(Rows<D, M>& rows, u32 q_tile, bf16* out, i64 stride, float* lse, int from, int to,
                              float scale, int warp, int lane) {
  __syncwarp();
  SKRULL_UNROLL
  for (int m = 0; m < M; ++m)
    SKRULL_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = (warp * M + m) * 16 + half * 8 + lane / 4;
      const float sum = quad_sum(rows.sum[m][half]);
      const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
      if (lane % 4 == 0 && row >= from && row < to)
        lse[row] = sum > 0.0f ? rows.maximum[m][half] * scale * LN_2 + logf(sum) : minus_infinity();
      SKRULL_UNROLL
      for (int n = 0; n < D / 8; ++n)
        store_shared(q_tile + swizzled<D / 8>(row, n) + 4 * (lane % 4),
                     pack_bf16(rows.out[m][n][2 * half] * inverse, rows.out[m][n][2 * half + 1] * inverse));
    }
  __syncwarp();
  constexpr int CHUNKS = D / 8, AT_ONCE = 32 / CHUNKS;
  SKRULL_UNROLL
  for (int i = 0; i < 16 * M / AT_ONCE; ++i) {
    const int row = warp * 16 * M + i * AT_ONCE + lane / CHUNKS, chunk = lane % CHUNKS;
    if (row >= from && row < to)
      *reinterpret_cast<uint4*>(out + row * stride + chunk * 8) = load_shared(q_tile + swizzled<CHUNKS>(row, chunk));
  }
}

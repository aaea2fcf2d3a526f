// Runs CUDA kernels on the CPU, one block at a time, one fiber per thread, so that tests need no GPU.
//
// What is emulated: the built-in indices, barriers, warp shuffles and ballots, atomic additions, shared memory, and the
// instructions of `common.cuh` (mma, ldmatrix, cp.async) with the fragment layouts of the PTX manual.
// What it is strict about: shared memory starts as NaN bits; a cp.async writes NaN bits when issued and its data only
// when waited for; shared accesses are checked for bounds and alignment; warps run in a shuffled order between
// barriers, so a missing barrier shows as a wrong result; all 32 lanes must take part in a warp operation.
#pragma once
#undef _FORTIFY_SOURCE  // Fibers jump between stacks, which the fortified longjmp refuses.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define SKRULL_EMULATE 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

inline float __uint_as_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline uint32_t __float_as_uint(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

namespace emulate {

[[noreturn]] inline void fail(const char* what) {
  std::printf("emulation: %s (block %u,%u,%u thread %u)\n", what, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
  std::fflush(stdout);
  std::_Exit(1);
}

constexpr size_t STACK_BYTES = 64 * 1024;
constexpr uint32_t NOT_A_NUMBER = 0xffffffffu;  // NaN as bf16 and as f32.
enum class State { Ready, Warp, Block, Done };

struct Copy {
  uint32_t address;
  const void* source;
  bool wanted;
  uint32_t bytes;
  int group;
};

struct Fiber {
  ucontext_t start;
  jmp_buf at;
  bool started = false;
  State state = State::Done;
  uint64_t generation = 0;
  int groups = 0;
  std::vector<Copy> copies;
  std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
};

struct Warp {
  uint64_t generation = 0;
  int arrived = 0;
  // Two sets of slots: a lane may deposit for the next operation before others have read the last one.
  uint32_t in[2][32][16];
  float out[2][16][8];
};

struct Machine {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  std::vector<uint32_t> shared;
  size_t shared_bytes = 0;
  std::function<void()> body;
  jmp_buf scheduler;
  ucontext_t main;
  int current = 0;
  uint32_t random = 12345;
};
inline Machine machine;

inline Fiber& self() { return *machine.fibers[machine.current]; }
inline int lane() { return machine.current % 32; }

inline void yield(State state) {
  Fiber& fiber = self();
  fiber.state = state;
  if (_setjmp(fiber.at) == 0) _longjmp(machine.scheduler, 1);
}

inline void entry() {
  machine.body();
  self().state = State::Done;
  if (!self().copies.empty()) fail("a thread ended with copies under way");
  _longjmp(machine.scheduler, 1);
}

inline void resume(int thread) {
  machine.current = thread;
  threadIdx = dim3(unsigned(thread));
  Fiber& fiber = *machine.fibers[thread];
  if (_setjmp(machine.scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

// Deposits `words` of this lane and waits for the other 31. `last` runs once, on the lane that arrives last.
template <typename Last>
inline int rendezvous(const uint32_t* words, int count, Last last) {
  Warp& warp = machine.warps[machine.current / 32];
  const int slot = warp.generation & 1;
  std::memcpy(warp.in[slot][lane()], words, size_t(count) * 4);
  self().generation = warp.generation;
  if (++warp.arrived < 32) {
    yield(State::Warp);
  } else {
    last(warp, slot);
    warp.arrived = 0;
    ++warp.generation;
  }
  return slot;
}

inline uint32_t next_random() {
  machine.random = machine.random * 1664525u + 1013904223u;
  return machine.random >> 8;
}

// Runs every lane of a warp until all wait at the block barrier or have ended.
inline void run_warp(int w) {
  for (;;) {
    int progress = 0, at_warp = 0;
    for (int i = 0; i < 32; ++i) {
      const int thread = w * 32 + i;
      Fiber& fiber = *machine.fibers[thread];
      if (fiber.state == State::Warp && fiber.generation < machine.warps[w].generation) fiber.state = State::Ready;
      if (fiber.state == State::Ready) {
        resume(thread);
        ++progress;
      }
      if (fiber.state == State::Warp) ++at_warp;
    }
    if (progress == 0) {
      if (at_warp > 0) fail("a warp operation without all lanes");
      return;
    }
  }
}

inline void run_block(int threads) {
  // Lanes that a last, short warp lacks have ended before they begin: a warp operation then fails for want of lanes.
  const int warps = (threads + 31) / 32;
  for (int t = threads; t < warps * 32; ++t) machine.fibers[t]->state = State::Done;
  for (int t = 0; t < threads; ++t) {
    Fiber& fiber = *machine.fibers[t];
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = STACK_BYTES;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, entry, 0);
    fiber.started = false;
    fiber.state = State::Ready;
    fiber.groups = 0;
    fiber.copies.clear();
  }
  std::vector<int> order(warps);
  for (int w = 0; w < warps; ++w) {
    order[w] = w;
    machine.warps[w].generation = 0;
    machine.warps[w].arrived = 0;
  }
  for (;;) {
    for (int w = warps - 1; w > 0; --w) std::swap(order[w], order[next_random() % (w + 1)]);
    for (int w : order) run_warp(w);
    bool waiting = false;
    for (int t = 0; t < threads; ++t) waiting |= machine.fibers[t]->state == State::Block;
    if (!waiting) return;
    for (int t = 0; t < threads; ++t)
      if (machine.fibers[t]->state == State::Block) machine.fibers[t]->state = State::Ready;
  }
}

// Launches `kernel(arguments...)` over a grid. `shared_bytes` is the dynamic shared memory of a block.
template <typename Kernel, typename... Arguments>
void launch(Kernel kernel, dim3 grid, int threads, size_t shared_bytes, Arguments... arguments) {
  const size_t warps = (size_t(threads) + 31) / 32;
  while (machine.fibers.size() < warps * 32) machine.fibers.push_back(std::make_unique<Fiber>());
  machine.warps.resize(warps);
  machine.shared.resize(shared_bytes / 4 + 64);
  machine.shared_bytes = shared_bytes;
  machine.body = [&] { kernel(arguments...); };
  gridDim = grid;
  blockDim = dim3(unsigned(threads));
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        std::fill(machine.shared.begin(), machine.shared.end(), NOT_A_NUMBER);
        run_block(threads);
      }
}

inline uint8_t* dynamic_shared() {
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(machine.shared.data()) + 127) / 128 * 128);
}

inline uint8_t* at_shared(uint32_t address, uint32_t bytes) {
  if (address % bytes != 0) fail("a misaligned shared address");
  if (size_t(address) + bytes > machine.shared_bytes) fail("a shared address out of bounds");
  return dynamic_shared() + address;
}

inline uint32_t shared_address(const void* pointer) {
  return uint32_t(static_cast<const uint8_t*>(pointer) - dynamic_shared());
}
inline void store_shared(uint32_t address, const void* data, uint32_t bytes) {
  std::memcpy(at_shared(address, bytes), data, bytes);
}
inline void load_shared(uint32_t address, void* data, uint32_t bytes) {
  std::memcpy(data, at_shared(address, bytes), bytes);
}

inline void copy_async(uint32_t address, const void* source, bool wanted, uint32_t bytes) {
  if (wanted && reinterpret_cast<uintptr_t>(source) % bytes != 0) fail("a misaligned global address");
  std::memset(at_shared(address, bytes), 0xff, bytes);
  self().copies.push_back({address, source, wanted, bytes, self().groups});
}

inline void copy_commit() { ++self().groups; }

inline void copy_wait(int pending) {
  Fiber& fiber = self();
  std::vector<Copy> later;
  for (const Copy& copy : fiber.copies) {
    if (copy.group >= fiber.groups - pending) later.push_back(copy);
    else if (copy.wanted) std::memcpy(at_shared(copy.address, copy.bytes), copy.source, copy.bytes);
    else std::memset(at_shared(copy.address, copy.bytes), 0, copy.bytes);
  }
  fiber.copies.swap(later);
}

inline void load_matrices(uint32_t (&r)[4], uint32_t address, bool transposed) {
  at_shared(address, 16);
  const int slot = rendezvous(&address, 1, [](Warp&, int) {});
  const Warp& warp = machine.warps[machine.current / 32];
  const int row = lane() / 4, pair = lane() % 4;
  for (int m = 0; m < 4; ++m) {
    uint16_t half[2];
    for (int i = 0; i < 2; ++i) {
      const int line = transposed ? 2 * pair + i : row, element = transposed ? row : 2 * pair + i;
      std::memcpy(&half[i], at_shared(warp.in[slot][8 * m + line][0], 16) + 2 * element, 2);
    }
    r[m] = uint32_t(half[0]) | uint32_t(half[1]) << 16;
  }
  // A real warp reads before any lane goes on; without this a lane could overwrite what another has yet to read.
  const uint32_t none = 0;
  rendezvous(&none, 1, [](Warp&, int) {});
}

inline float half_of(uint32_t word, int i) { return __uint_as_float(i ? word & 0xffff0000u : word << 16); }

inline void multiply(Warp& warp, int slot) {
  float a[16][16], b[16][8];
  for (int l = 0; l < 32; ++l) {
    const uint32_t* in = warp.in[slot][l];
    const int g = l / 4, t = l % 4;
    for (int i = 0; i < 2; ++i) {
      a[g][2 * t + i] = half_of(in[0], i);
      a[g + 8][2 * t + i] = half_of(in[1], i);
      a[g][2 * t + 8 + i] = half_of(in[2], i);
      a[g + 8][2 * t + 8 + i] = half_of(in[3], i);
      b[2 * t + i][g] = half_of(in[4], i);
      b[2 * t + 8 + i][g] = half_of(in[5], i);
    }
  }
  for (int i = 0; i < 16; ++i) {
    float sum[8] = {};
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < 8; ++j) sum[j] += a[i][k] * b[k][j];
    for (int j = 0; j < 8; ++j) warp.out[slot][i][j] = sum[j];
  }
}

inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const int slot = rendezvous(words, 6, [](Warp& warp, int s) { multiply(warp, s); });
  const Warp& warp = machine.warps[machine.current / 32];
  const int g = lane() / 4, t = lane() % 4;
  for (int i = 0; i < 4; ++i) c[i] += warp.out[slot][g + 8 * (i / 2)][2 * t + i % 2];
}

template <typename T>
T shuffle(T value, int source) {
  static_assert(sizeof(T) == 4, "shuffles move 32 bits");
  uint32_t word;
  std::memcpy(&word, &value, 4);
  const int slot = rendezvous(&word, 1, [](Warp&, int) {});
  T result;
  std::memcpy(&result, &machine.warps[machine.current / 32].in[slot][source & 31][0], 4);
  return result;
}

}  // namespace emulate

inline void check_mask(uint32_t mask) {
  if (mask != 0xffffffffu) emulate::fail("a warp operation of some lanes only");
}
inline void __syncthreads() { emulate::yield(emulate::State::Block); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  check_mask(mask);
  const uint32_t none = 0;
  emulate::rendezvous(&none, 1, [](emulate::Warp&, int) {});
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int step) {
  check_mask(mask);
  return emulate::shuffle(value, emulate::lane() ^ step);
}
template <typename T>
T __shfl_sync(uint32_t mask, T value, int source) {
  check_mask(mask);
  return emulate::shuffle(value, source);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, int step) {
  check_mask(mask);
  return emulate::shuffle(value, emulate::lane() >= step ? emulate::lane() - step : emulate::lane());
}
inline uint32_t __ballot_sync(uint32_t mask, bool vote) {
  check_mask(mask);
  uint32_t word = vote;
  const int slot = emulate::rendezvous(&word, 1, [](emulate::Warp&, int) {});
  uint32_t result = 0;
  for (int l = 0; l < 32; ++l) result |= emulate::machine.warps[emulate::machine.current / 32].in[slot][l][0] << l;
  return result;
}
template <typename T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <typename T>
T atomicCAS(T* address, T expected, T value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}
inline unsigned atomicOr(unsigned* address, unsigned bits) {
  const unsigned old = *address;
  *address = old | bits;
  return old;
}
inline unsigned atomicMax(unsigned* address, unsigned value) {
  const unsigned old = *address;
  *address = old > value ? old : value;
  return old;
}

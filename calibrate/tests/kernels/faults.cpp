// Kernels with one fault each, to prove that the emulation sees it. Usage: faults NAME. "none" is the same kernel
// without a fault and exits 0; every other name must exit 1.
#include "../../kernels/emulate/check.h"

using namespace check;

enum Fault { NONE, BARRIER, WAIT, COPY_BARRIER, LEFT, BOUNDS, ALIGNMENT, LANES, UNWRITTEN, NOT_A_NUMBER };

// Every thread copies 16 bytes to shared memory and reads what its neighbour in the other warp copied.
static void exchange(const uint4* in, uint4* out, Fault fault) {
  SKRULL_SHARED(shared);
  const u32 base = shared_address(shared);
  const int thread = threadIdx.x, other = (thread + 32) % 64;
  if (fault == BARRIER) {
    store_shared(base + thread * 16, in[thread]);
  } else {
    copy_async(base + thread * 16 + (fault == BOUNDS ? 16 : 0) + (fault == ALIGNMENT ? 4 : 0), in + thread, true);
    copy_commit();
    if (fault != WAIT && fault != LEFT) copy_wait<0>();
    if (fault != COPY_BARRIER) __syncthreads();
    if (fault == WAIT) copy_wait<0>();
  }
  uint4 read = load_shared(base + other * 16);
  if (fault != LANES || thread % 32 < 16) read.x = __shfl_xor_sync(ALL_LANES, read.x, 0);
  if (fault == NOT_A_NUMBER && thread == 3) read.x = 0x7fc07fc0u;
  if (fault != UNWRITTEN || thread != 5) out[other] = read;
}

int main(int, char** arguments) {
  const char* names[] = {"none",   "barrier",   "wait",  "copy-barrier", "left",
                         "bounds", "alignment", "lanes", "unwritten",    "nan"};
  int fault = -1;
  for (int i = 0; i < 10; ++i)
    if (std::string(arguments[1]) == names[i]) fault = i;
  if (fault < 0) return 2;
  auto in = random_bf16(64 * 8);
  Buffer<bf16> out(in.size());
  emulate::launch(exchange, dim3(1), 64, 64 * 16, in.words.data(), out.words.data(), Fault(fault));
  std::vector<double> reference(in.size());
  for (size_t i = 0; i < in.size(); ++i) reference[i] = value_of(in[i]);
  compare(names[fault], out, reference, BF16_LIMIT);
  return finish();
}

// The kernels of moe.cu, known by name.
#define STANDIN_FILE "moe.cu"
#include "kernel.h"

namespace from_moe {
#include "../../kernels/moe.cu"
STANDIN_KERNEL(THREADS, moe_permute)
STANDIN_KERNEL(THREADS, moe_combine)
STANDIN_KERNEL(THREADS, moe_combine_backward)
}  // namespace from_moe

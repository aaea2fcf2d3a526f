// The kernels of tools.cu, known by name.
#define STANDIN_FILE "tools.cu"
#include "kernel.h"

namespace from_tools {
#include "../../kernels/tools.cu"
STANDIN_KERNEL(1, spin)
STANDIN_KERNEL(THREADS, random_bf16)
STANDIN_KERNEL(THREADS, random_fp8)
STANDIN_KERNEL(THREADS, count_not_finite)
}  // namespace from_tools

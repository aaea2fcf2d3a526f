// The kernels of spmm.cu, known by name.
#define STANDIN_FILE "spmm.cu"
#include "kernel.h"

namespace from_spmm {
#include "../../kernels/spmm.cu"
STANDIN_KERNEL(THREADS, spmm_8)
STANDIN_KERNEL(THREADS, spmm_16)
STANDIN_KERNEL(THREADS, spmm_32)
STANDIN_KERNEL(REDUCE_THREADS, spmm_reduce)
}  // namespace from_spmm

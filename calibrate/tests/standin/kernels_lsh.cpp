// The kernels of lsh.cu, known by name.
#define STANDIN_FILE "lsh.cu"
#include "kernel.h"

namespace from_lsh {
#include "../../kernels/lsh.cu"
STANDIN_KERNEL(HASH_THREADS, lsh_hash)
STANDIN_KERNEL(THREADS, lsh_insert)
STANDIN_KERNEL(THREADS, lsh_add)
STANDIN_KERNEL(THREADS, lsh_mean)
STANDIN_KERNEL(THREADS, lsh_restore)
}  // namespace from_lsh

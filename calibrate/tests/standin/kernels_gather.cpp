// The kernels of gather.cu, known by name.
#define STANDIN_FILE "gather.cu"
#include "kernel.h"

namespace from_gather {
#include "../../kernels/gather.cu"
STANDIN_KERNEL(THREADS, gather_rows)
STANDIN_KERNEL(THREADS, gather_rows_cached)
}  // namespace from_gather

// The kernels of vertical_slash.cu, known by name.
#define STANDIN_FILE "vertical_slash.cu"
#include "kernel.h"

namespace from_vertical_slash {
#include "../../kernels/vertical_slash.cu"
STANDIN_KERNEL(THREADS, vertical_slash_128)
STANDIN_KERNEL(THREADS, vertical_slash_64)
}  // namespace from_vertical_slash

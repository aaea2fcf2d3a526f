// The kernels of decode.cu, known by name.
#define STANDIN_FILE "decode.cu"
#include "kernel.h"

namespace from_decode {
#include "../../kernels/decode.cu"
STANDIN_KERNEL(THREADS, decode_128)
STANDIN_KERNEL(THREADS, decode_64)
STANDIN_KERNEL(THREADS, decode_paged_128)
STANDIN_KERNEL(THREADS, decode_paged_64)
STANDIN_KERNEL(THREADS, decode_merge)
}  // namespace from_decode

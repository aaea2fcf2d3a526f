// The kernels of attention_backward.cu, known by name.
#define STANDIN_FILE "attention_backward.cu"
#include "kernel.h"

namespace from_attention_backward {
#include "../../kernels/attention_backward.cu"
STANDIN_KERNEL(THREADS, attention_backward_delta)
STANDIN_KERNEL(THREADS, attention_backward_finish)
STANDIN_KERNEL(THREADS, attention_backward_128)
STANDIN_KERNEL(THREADS, attention_backward_64)
}  // namespace from_attention_backward

// The kernels of attention_forward.cu, known by name.
#define STANDIN_FILE "attention_forward.cu"
#include "kernel.h"

namespace from_attention_forward {
#include "../../kernels/attention_forward.cu"
STANDIN_KERNEL(THREADS, attention_forward_128)
STANDIN_KERNEL(THREADS, attention_forward_64)
}  // namespace from_attention_forward

// The kernels of elementwise.cu, known by name.
#define STANDIN_FILE "elementwise.cu"
#include "kernel.h"

namespace from_elementwise {
#include "../../kernels/elementwise.cu"
STANDIN_KERNEL(THREADS, residual_rms_norm_forward)
STANDIN_KERNEL(THREADS, residual_rms_norm_backward)
STANDIN_KERNEL(THREADS, rms_norm_weight_gradient)
STANDIN_KERNEL(THREADS, swiglu_forward)
STANDIN_KERNEL(THREADS, swiglu_backward)
STANDIN_KERNEL(THREADS, add)
STANDIN_KERNEL(THREADS, adam_step)
}  // namespace from_elementwise

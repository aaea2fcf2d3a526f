// The memory-bound kernels of a transformer layer and of its optimiser. Their times give the bandwidth that the cost
// models of all systems use for norms, activations, residuals and optimiser steps.
//
// Tensors are row-major; `rows` are tokens; bf16 unless said; widths are multiples of 8 because every access is 16
// bytes.
//
// residual_rms_norm_forward: sum = residual + x (bf16, kept for the backward pass); out = sum * inverse_rms * weight
//   with inverse_rms = 1 / sqrt(mean(sum^2) + epsilon), one f32 per row. Grid rows, block 256, width <= 8192. Bytes 8
//   per element. FLOPs 5 per element.
// residual_rms_norm_backward: d_sum = d_residual + inverse_rms * (weight * d_out - n * mean(weight * d_out * n)) with n
//   = sum * inverse_rms; d_sum is the gradient of both x and residual. Grid any (a few per multiprocessor), block 256.
//   Writes f32 partial sums of the weight's gradient, [grid, width]. Bytes 8 per element. FLOPs 12 per element.
// rms_norm_weight_gradient: adds the partial sums, f32 [width]. Grid width / 256 rounded up, block 256.
// swiglu_forward: gate_up [rows, 2 * width], gate first; out = silu(gate) * up. Grid any, block 256. Bytes 6 and FLOPs
//   about 6 per output.
// swiglu_backward: d_gate_up from gate_up and d_out. Grid any, block 256. Bytes 10 and FLOPs about 12 per output.
// add: out = a + b, the plain stream. Grid any, block 256. Bytes 6 and FLOPs 1 per element.
// adam_step: f32 parameters, gradients and both moments, and a bf16 copy of the parameters for the next step. Grid any,
//   block 256. Bytes 30 per parameter, FLOPs about 14. Counts are multiples of 4.
// No kernel uses dynamic shared memory.
#include "common.cuh"

constexpr int THREADS = 256;
// 16-byte vectors per thread and row. Rows stay in registers between the two uses, hence the limit on the width.
constexpr int VECTORS_MAX = 4;

SKRULL_KERNEL __launch_bounds__(THREADS)
    residual_rms_norm_forward(const uint4* __restrict__ x, const uint4* __restrict__ residual,
                              const uint4* __restrict__ weight, uint4* __restrict__ sum, uint4* __restrict__ out,
                              float* __restrict__ inverse_rms, int width, float epsilon) {
  const int vectors = width / 8;
  const i64 row = i64(blockIdx.x) * vectors;
  uint4 kept[VECTORS_MAX];
  float squares = 0.0f;
  SKRULL_UNROLL
  for (int i = 0; i < VECTORS_MAX; ++i) {
    const int at = int(threadIdx.x) + i * THREADS;
    if (at >= vectors) continue;
    float a[8], b[8];
    unpack(a, x[row + at]);
    unpack(b, residual[row + at]);
    SKRULL_UNROLL
    for (int j = 0; j < 8; ++j) a[j] += b[j];
    kept[i] = pack(a);
    sum[row + at] = kept[i];
    // The norm is of the rounded sum: the backward pass sees only that.
    unpack(a, kept[i]);
    SKRULL_UNROLL
    for (int j = 0; j < 8; ++j) squares += a[j] * a[j];
  }
  const float scale = rsqrtf(block_sum(squares) / float(width) + epsilon);
  if (threadIdx.x == 0) inverse_rms[blockIdx.x] = scale;
  SKRULL_UNROLL
  for (int i = 0; i < VECTORS_MAX; ++i) {
    const int at = int(threadIdx.x) + i * THREADS;
    if (at >= vectors) continue;
    float a[8], w[8];
    unpack(a, kept[i]);
    unpack(w, weight[at]);
    SKRULL_UNROLL
    for (int j = 0; j < 8; ++j) a[j] *= scale * w[j];
    out[row + at] = pack(a);
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    residual_rms_norm_backward(const uint4* __restrict__ d_out, const uint4* __restrict__ d_residual,
                               const uint4* __restrict__ sum, const uint4* __restrict__ weight,
                               const float* __restrict__ inverse_rms, uint4* __restrict__ d_sum,
                               float* __restrict__ d_weight_parts, int rows, int width) {
  const int vectors = width / 8;
  float d_weight[VECTORS_MAX][8] = {};
  // A block walks many rows, so the weight's gradient stays in registers and is written once.
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {
    const i64 row = i64(r) * vectors;
    const float scale = inverse_rms[r];
    uint4 kept_s[VECTORS_MAX], kept_g[VECTORS_MAX];
    float dot = 0.0f;
    SKRULL_UNROLL
    for (int i = 0; i < VECTORS_MAX; ++i) {
      const int at = int(threadIdx.x) + i * THREADS;
      if (at >= vectors) continue;
      kept_s[i] = sum[row + at];
      kept_g[i] = d_out[row + at];
      float s[8], g[8], w[8];
      unpack(s, kept_s[i]);
      unpack(g, kept_g[i]);
      unpack(w, weight[at]);
      SKRULL_UNROLL
      for (int j = 0; j < 8; ++j) {
        const float n = s[j] * scale;
        dot += w[j] * g[j] * n;
        d_weight[i][j] += g[j] * n;
      }
    }
    const float mean = block_sum(dot) / float(width);
    SKRULL_UNROLL
    for (int i = 0; i < VECTORS_MAX; ++i) {
      const int at = int(threadIdx.x) + i * THREADS;
      if (at >= vectors) continue;
      float s[8], g[8], w[8], through[8];
      unpack(s, kept_s[i]);
      unpack(g, kept_g[i]);
      unpack(w, weight[at]);
      unpack(through, d_residual[row + at]);
      SKRULL_UNROLL
      for (int j = 0; j < 8; ++j) through[j] += scale * (w[j] * g[j] - s[j] * scale * mean);
      d_sum[row + at] = pack(through);
    }
  }
  SKRULL_UNROLL
  for (int i = 0; i < VECTORS_MAX; ++i) {
    const int at = int(threadIdx.x) + i * THREADS;
    if (at >= vectors) continue;
    float4* part = reinterpret_cast<float4*>(d_weight_parts + i64(blockIdx.x) * width + at * 8);
    part[0] = make_float4(d_weight[i][0], d_weight[i][1], d_weight[i][2], d_weight[i][3]);
    part[1] = make_float4(d_weight[i][4], d_weight[i][5], d_weight[i][6], d_weight[i][7]);
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    rms_norm_weight_gradient(const float* __restrict__ parts, float* __restrict__ d_weight, int count, int width) {
  const int column = blockIdx.x * THREADS + threadIdx.x;
  if (column >= width) return;
  float total = 0.0f;
  for (int i = 0; i < count; ++i) total += parts[i64(i) * width + column];
  d_weight[column] = total;
}

SKRULL_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp2_fast(-LOG2_E * x)); }

SKRULL_KERNEL __launch_bounds__(THREADS)
    swiglu_forward(const uint4* __restrict__ gate_up, uint4* __restrict__ out, int rows, int width) {
  const int vectors = width / 8;
  const i64 total = i64(rows) * vectors;
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < total; at += i64(gridDim.x) * THREADS) {
    const i64 row = at / vectors, gate_at = at + row * vectors;
    float gate[8], up[8];
    unpack(gate, gate_up[gate_at]);
    unpack(up, gate_up[gate_at + vectors]);
    SKRULL_UNROLL
    for (int j = 0; j < 8; ++j) up[j] *= gate[j] * sigmoid(gate[j]);
    out[at] = pack(up);
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    swiglu_backward(const uint4* __restrict__ gate_up, const uint4* __restrict__ d_out, uint4* __restrict__ d_gate_up,
                    int rows, int width) {
  const int vectors = width / 8;
  const i64 total = i64(rows) * vectors;
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < total; at += i64(gridDim.x) * THREADS) {
    const i64 row = at / vectors, gate_at = at + row * vectors;
    float gate[8], up[8], g[8];
    unpack(gate, gate_up[gate_at]);
    unpack(up, gate_up[gate_at + vectors]);
    unpack(g, d_out[at]);
    SKRULL_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float s = sigmoid(gate[j]), silu = gate[j] * s;
      gate[j] = g[j] * up[j] * s * (1.0f + gate[j] - silu);
      up[j] = g[j] * silu;
    }
    d_gate_up[gate_at] = pack(gate);
    d_gate_up[gate_at + vectors] = pack(up);
  }
}

SKRULL_KERNEL __launch_bounds__(THREADS)
    add(const uint4* __restrict__ a, const uint4* __restrict__ b, uint4* __restrict__ out, i64 count) {
  const i64 vectors = count / 8;
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < vectors; at += i64(gridDim.x) * THREADS) {
    float left[8], right[8];
    unpack(left, load_streaming(a + at));
    unpack(right, load_streaming(b + at));
    SKRULL_UNROLL
    for (int j = 0; j < 8; ++j) left[j] += right[j];
    out[at] = pack(left);
  }
}

// The corrections are 1 / (1 - beta1^t) and 1 / (1 - beta2^t): the host knows the step t.
SKRULL_KERNEL __launch_bounds__(THREADS)
    adam_step(float4* __restrict__ parameters, const float4* __restrict__ gradients, float4* __restrict__ first,
              float4* __restrict__ second, uint2* __restrict__ rounded, i64 count, float rate, float beta1, float beta2,
              float epsilon, float correction1, float correction2, float decay) {
  for (i64 at = i64(blockIdx.x) * THREADS + threadIdx.x; at < count / 4; at += i64(gridDim.x) * THREADS) {
    const float4 p4 = parameters[at], g4 = gradients[at], m4 = first[at], v4 = second[at];
    float p[4] = {p4.x, p4.y, p4.z, p4.w}, m[4] = {m4.x, m4.y, m4.z, m4.w}, v[4] = {v4.x, v4.y, v4.z, v4.w};
    const float g[4] = {g4.x, g4.y, g4.z, g4.w};
    SKRULL_UNROLL
    for (int j = 0; j < 4; ++j) {
      m[j] = beta1 * m[j] + (1.0f - beta1) * g[j];
      v[j] = beta2 * v[j] + (1.0f - beta2) * g[j] * g[j];
      const float step = m[j] * correction1 / (sqrtf(v[j] * correction2) + epsilon);
      p[j] -= rate * (step + decay * p[j]);
    }
    parameters[at] = make_float4(p[0], p[1], p[2], p[3]);
    first[at] = make_float4(m[0], m[1], m[2], m[3]);
    second[at] = make_float4(v[0], v[1], v[2], v[3]);
    rounded[at] = make_uint2(pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3]));
  }
}

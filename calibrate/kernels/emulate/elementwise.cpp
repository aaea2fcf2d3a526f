// Runs the kernels of elementwise.cu on the CPU against float64.
#include "check.h"
#include "../elementwise.cu"

using namespace check;

static const uint4* in(Buffer<bf16>& b) { return b.words.data(); }
static uint4* out(Buffer<bf16>& b) { return b.words.data(); }

static void norm_case(int rows, int width) {
  const std::string name = std::to_string(rows) + "x" + std::to_string(width);
  const size_t n = size_t(rows) * width;
  auto x = random_bf16(n), residual = random_bf16(n, 3.0f), weight = random_bf16(width), d_out = random_bf16(n);
  auto d_residual = random_bf16(n);
  Buffer<bf16> sum(n), normed(n), d_sum(n);
  Buffer<float> inverse(rows);
  const float epsilon = 1e-5f;
  emulate::launch(residual_rms_norm_forward, dim3(rows), THREADS, 0, in(x), in(residual), in(weight), out(sum),
                  out(normed), inverse.get(), width, epsilon);
  std::vector<double> sum_ref(n), normed_ref(n), inverse_ref(rows), d_sum_ref(n), d_weight_ref(width, 0.0);
  for (int r = 0; r < rows; ++r) {
    double squares = 0, dot = 0;
    for (int c = 0; c < width; ++c) {
      const size_t i = size_t(r) * width + c;
      sum_ref[i] = value_of(x[i]) + value_of(residual[i]);
      squares += value_of(sum[i]) * value_of(sum[i]);
    }
    inverse_ref[r] = 1.0 / std::sqrt(squares / width + epsilon);
    for (int c = 0; c < width; ++c) {
      const size_t i = size_t(r) * width + c;
      const double n_value = value_of(sum[i]) * inverse_ref[r];
      normed_ref[i] = n_value * value_of(weight[c]);
      dot += value_of(weight[c]) * value_of(d_out[i]) * n_value;
      d_weight_ref[c] += value_of(d_out[i]) * n_value;
    }
    for (int c = 0; c < width; ++c) {
      const size_t i = size_t(r) * width + c;
      const double n_value = value_of(sum[i]) * inverse_ref[r];
      d_sum_ref[i] =
          value_of(d_residual[i]) + inverse_ref[r] * (value_of(weight[c]) * value_of(d_out[i]) - n_value * dot / width);
    }
  }
  compare("residual sum " + name, sum, sum_ref, BF16_LIMIT);
  compare("rms norm " + name, normed, normed_ref, BF16_LIMIT);
  compare("inverse rms " + name, inverse, inverse_ref, F32_LIMIT);
  const int grid = 3;
  Buffer<float> parts(size_t(grid) * width), d_weight(width);
  emulate::launch(residual_rms_norm_backward, dim3(grid), THREADS, 0, in(d_out), in(d_residual), in(sum), in(weight),
                  inverse.get(), out(d_sum), parts.get(), rows, width);
  emulate::launch(rms_norm_weight_gradient, dim3(ceil_div(width, THREADS)), THREADS, 0, parts.get(), d_weight.get(),
                  grid, width);
  compare("rms norm backward " + name, d_sum, d_sum_ref, BF16_LIMIT);
  compare("rms norm weight gradient " + name, d_weight, d_weight_ref, F32_LIMIT);
}

static void swiglu_case(int rows, int width) {
  const std::string name = std::to_string(rows) + "x" + std::to_string(width);
  const size_t n = size_t(rows) * width;
  auto gate_up = random_bf16(2 * n, 2.0f), d_out = random_bf16(n);
  Buffer<bf16> result(n), d_gate_up(2 * n);
  emulate::launch(swiglu_forward, dim3(2), THREADS, 0, in(gate_up), out(result), rows, width);
  emulate::launch(swiglu_backward, dim3(2), THREADS, 0, in(gate_up), in(d_out), out(d_gate_up), rows, width);
  std::vector<double> result_ref(n), d_ref(2 * n);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < width; ++c) {
      const size_t i = size_t(r) * width + c, at = size_t(r) * 2 * width + c;
      const double gate = value_of(gate_up[at]), up = value_of(gate_up[at + width]), s = 1.0 / (1.0 + std::exp(-gate));
      result_ref[i] = gate * s * up;
      d_ref[at] = value_of(d_out[i]) * up * (s + gate * s * (1.0 - s));
      d_ref[at + width] = value_of(d_out[i]) * gate * s;
    }
  compare("swiglu " + name, result, result_ref, BF16_LIMIT);
  compare("swiglu backward " + name, d_gate_up, d_ref, BF16_LIMIT);
}

static void adam_case(int n) {
  auto p = random_float(n), g = random_float(n, 0.1f), m = random_float(n, 0.01f), v = random_float(n, 0.01f);
  for (int i = 0; i < n; ++i) v[i] = std::fabs(v[i]);
  Buffer<bf16> rounded(n);
  const float rate = 3e-2f, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, decay = 0.1f, c1 = 1.25f, c2 = 2.5f;
  std::vector<double> p_ref(n), m_ref(n), v_ref(n);
  for (int i = 0; i < n; ++i) {
    m_ref[i] = double(beta1) * m[i] + (1.0 - beta1) * g[i];
    v_ref[i] = double(beta2) * v[i] + (1.0 - beta2) * g[i] * g[i];
    p_ref[i] = p[i] - rate * (m_ref[i] * c1 / (std::sqrt(v_ref[i] * c2) + epsilon) + double(decay) * p[i]);
  }
  const auto four = [](Buffer<float>& b) { return reinterpret_cast<float4*>(b.get()); };
  emulate::launch(adam_step, dim3(2), THREADS, 0, four(p), four(g), four(m), four(v),
                  reinterpret_cast<uint2*>(rounded.get()), n, rate, beta1, beta2, epsilon, c1, c2, decay);
  compare("adam parameters", p, p_ref, F32_LIMIT);
  compare("adam first moment", m, m_ref, F32_LIMIT);
  compare("adam second moment", v, v_ref, F32_LIMIT);
  compare("adam rounded parameters", rounded, p_ref, BF16_LIMIT);
}

static void add_case(int n) {
  auto a = random_bf16(n), b = random_bf16(n);
  Buffer<bf16> sum(n);
  emulate::launch(add, dim3(3), THREADS, 0, in(a), in(b), out(sum), i64(n));
  std::vector<double> reference(n);
  for (int i = 0; i < n; ++i) reference[i] = value_of(a[i]) + value_of(b[i]);
  compare("add " + std::to_string(n), sum, reference, BF16_LIMIT);
}

int main() {
  norm_case(5, 264);
  norm_case(2, 8192);
  norm_case(7, 2048);
  swiglu_case(3, 40);
  swiglu_case(5, 1032);
  add_case(8 * 1001);
  adam_case(4 * 1234);
  // Rounding to nearest even, and a NaN stays one.
  expect("bf16 rounding", float_to_bf16(1.00390625f) == 0x3f80 && float_to_bf16(1.01171875f) == 0x3f82 &&
                              (float_to_bf16(__uint_as_float(0x7fffffffu)) & 0x7fff) > 0x7f80);
  return finish();
}

// Runs the kernels of tools.cu on the CPU.
#include "check.h"
#include "../tools.cu"

using namespace check;

// Value of an E4M3 byte; its NaN is all ones below the sign.
static double value_of_fp8(u8 bits) {
  const int exponent = (bits >> 3) & 15, fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return std::nan("");
  const double size = exponent == 0 ? std::ldexp(fraction / 8.0, -6) : std::ldexp(1 + fraction / 8.0, exponent - 7);
  return bits & 128 ? -size : size;
}

int main() {
  const int n = 4001;
  Buffer<bf16> values(n);
  emulate::launch(::random_bf16, dim3(3), THREADS, 0, values.get(), i64(n), 7u);
  double sum = 0, squares = 0;
  bool good = true;
  for (int i = 0; i < n; ++i) {
    const double x = value_of(values[i]);
    good &= std::fabs(x) <= 1 && x != 0;
    sum += x, squares += x * x;
  }
  expect("random bf16 lie between -1 and 1", good);
  // Uniform: mean 0 with deviation sqrt(1/3/n) = 0.009, mean square 1/3.
  expect("random bf16 are even", std::fabs(sum / n) < 0.04 && std::fabs(squares / n - 1.0 / 3) < 0.03);
  Buffer<u8> bytes(n);
  emulate::launch(random_fp8, dim3(2), THREADS, 0, bytes.get(), i64(n), 9u);
  bool finite = true;
  for (int i = 0; i < n; ++i) finite &= std::fabs(value_of_fp8(bytes[i])) < 2;
  expect("random fp8 are finite", finite);
  Buffer<int> found(1);
  found[0] = 0;
  values[5] = 0x7f80, values[77] = 0xffc0, values[4000] = 0xff80;
  emulate::launch(count_not_finite, dim3(2), THREADS, 0, values.get(), i64(n), found.get());
  expect("infinities and no numbers are counted", found[0] == 3);
  const u64 before = device_time_ns();
  emulate::launch(spin, dim3(1), 1, 0, i64(1000));
  expect("waiting takes its time", device_time_ns() - before >= 1000);
  return finish();
}

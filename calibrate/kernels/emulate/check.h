// What the harnesses share: random inputs, poisoned outputs, and the comparison with a float64 reference.
#pragma once
#include "cuda.h"
#include "../common.cuh"

#include <random>
#include <string>

namespace check {

constexpr double BF16_LIMIT = 1e-2, F32_LIMIT = 1e-5;

inline std::mt19937 generator(7);
inline bool failed = false;

inline float normal() {
  static std::normal_distribution<float> distribution;
  return distribution(generator);
}
inline int below(int n) { return int(generator() % unsigned(n)); }

// Values of one 16-byte aligned buffer; global memory of the device is aligned at least so.
template <typename T>
struct Buffer {
  explicit Buffer(size_t n) : n(n), words((n * sizeof(T) + 15) / 16 + 1) {
    std::memset(words.data(), 0xff, words.size() * 16);
  }
  T* get() { return reinterpret_cast<T*>(words.data()); }
  T& operator[](size_t i) { return get()[i]; }
  size_t size() const { return n; }
  void fill(T value) {
    for (size_t i = 0; i < n; ++i) get()[i] = value;
  }
  size_t n;
  std::vector<uint4> words;  // Begins as NaN bits: an output that is never written shows.
};

inline Buffer<bf16> random_bf16(size_t n, float scale = 1.0f) {
  Buffer<bf16> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = float_to_bf16(scale * normal());
  return values;
}

inline Buffer<float> random_float(size_t n, float scale = 1.0f) {
  Buffer<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = scale * normal();
  return values;
}

inline double value_of(bf16 x) { return bf16_to_float(x); }
inline double value_of(float x) { return x; }

// Prints one line: the relative error of `out` in the Euclidean norm. A NaN is never below the limit.
template <typename T>
void compare(const std::string& name, Buffer<T>& out, const std::vector<double>& reference, double limit) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double difference = value_of(out[i]) - reference[i];
    error += difference * difference;
    norm += reference[i] * reference[i];
  }
  const double relative = std::sqrt(error) / (std::sqrt(norm) + 1e-300);
  const bool good = out.size() == reference.size() && relative < limit;
  if (!good) failed = true;
  std::printf("%s %s: relative error %.2e, limit %.0e\n", good ? "ok  " : "FAIL", name.c_str(), relative, limit);
}

inline void expect(const std::string& name, bool good) {
  if (!good) failed = true;
  std::printf("%s %s\n", good ? "ok  " : "FAIL", name.c_str());
}

inline int finish() { return failed ? 1 : 0; }

}  // namespace check

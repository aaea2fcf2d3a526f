// A stand-in for cuBLASLt: products in the plainest way, with the library's rules about layouts, types and alignment.
//
// Of the suggestions that it gives one is not supported and is refused when it is used after all. Column-major as the
// library.
#include "machine.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {
constexpr int WRONG = 7, NOT_SUPPORTED = 15;
constexpr int F32 = 0, BF16 = 14, E4M3 = 28, COMPUTE_F32 = 68;
constexpr uint64_t MAGIC = 0x57a4d14;
constexpr size_t SCRATCH = 1 << 20;
constexpr uint64_t LARGE = 1 << 22;
constexpr double OPS_PER_MS = 4e11;

struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t stride;
};
struct Descriptor {
  int compute, scale, transposed[2] = {0, 0};
};
struct Preference {
  uint64_t workspace = 0;
};
struct Algorithm {
  uint64_t data[8];
};
struct Suggestion {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

size_t size_of(int type) { return type == F32 ? 4 : type == BF16 ? 2 : 1; }

float value(int type, const void* data, size_t at) {
  if (type == F32) return static_cast<const float*>(data)[at];
  if (type == BF16) {
    const uint32_t bits = uint32_t(static_cast<const uint16_t*>(data)[at]) << 16;
    float x;
    return std::memcpy(&x, &bits, 4), x;
  }
  const uint8_t bits = static_cast<const uint8_t*>(data)[at];
  const int exponent = (bits >> 3) & 15, fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return NAN;
  const float part = float(fraction) / 8;
  const float size = exponent == 0 ? std::ldexp(part, -6) : std::ldexp(1 + part, exponent - 7);
  return bits & 128 ? -size : size;
}

uint16_t rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Rows, columns and inner dimension, or false for a product that cannot be.
bool fits(const Descriptor& x, const Layout& a, const Layout& b, const Layout& c, const Layout& d,
          uint64_t (&size)[3]) {
  size[0] = x.transposed[0] ? a.columns : a.rows, size[2] = x.transposed[0] ? a.rows : a.columns;
  size[1] = x.transposed[1] ? b.rows : b.columns;
  const uint64_t inner = x.transposed[1] ? b.columns : b.rows;
  for (const Layout* layout : {&a, &b, &c, &d})
    if (layout->rows == 0 || layout->columns == 0 || layout->stride < int64_t(layout->rows)) return false;
  return inner == size[2] && c.rows == size[0] && d.rows == size[0] && c.columns == size[1] && d.columns == size[1];
}

bool supported(const Descriptor& x, const Layout& a, const Layout& b, const Layout& c, const Layout& d,
               const uint64_t (&size)[3]) {
  if (x.compute != COMPUTE_F32 || x.scale != F32) return false;
  if (a.type != b.type || c.type != d.type || d.type != BF16) return false;
  if (a.type == BF16) return true;
  // Of bytes the first operand lies on its side, and rows of all are whole vectors of 16 bytes.
  return a.type == E4M3 && x.transposed[0] && !x.transposed[1] && size[0] % 16 == 0 && size[1] % 16 == 0 &&
         size[2] % 16 == 0;
}
}  // namespace

extern "C" {
int cublasLtCreate(void** handle) { return *handle = new int(1), 0; }
int cublasLtDestroy(void*) { return 0; }
int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  return *layout = new Layout{type, rows, columns, stride}, 0;
}
int cublasLtMatrixLayoutDestroy(Layout* layout) { return delete layout, 0; }
int cublasLtMatmulDescCreate(Descriptor** descriptor, int compute, int scale) {
  return *descriptor = new Descriptor{compute, scale}, 0;
}
int cublasLtMatmulDescDestroy(Descriptor* descriptor) { return delete descriptor, 0; }
int cublasLtMatmulDescSetAttribute(Descriptor* descriptor, int attribute, const void* data, size_t bytes) {
  // 3 and 4 transpose an operand.
  if (attribute < 3 || attribute > 4 || bytes != 4) return WRONG;
  return std::memcpy(&descriptor->transposed[attribute - 3], data, 4), 0;
}
int cublasLtMatmulPreferenceCreate(Preference** preference) { return *preference = new Preference, 0; }
int cublasLtMatmulPreferenceDestroy(Preference* preference) { return delete preference, 0; }
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* data, size_t bytes) {
  if (attribute != 1 || bytes != 8) return WRONG;
  return std::memcpy(&preference->workspace, data, 8), 0;
}

int cublasLtMatmulAlgoGetHeuristic(void*, Descriptor* x, Layout* a, Layout* b, Layout* c, Layout* d,
                                   Preference* preference, int wanted, Suggestion* found, int* n) {
  uint64_t size[3];
  *n = 0;
  if (!fits(*x, *a, *b, *c, *d, size)) return WRONG;
  if (!supported(*x, *a, *b, *c, *d, size)) return NOT_SUPPORTED;
  for (; *n < wanted && *n < 3; ++*n) {
    const size_t workspace = *n == 2 ? SCRATCH : 0;
    if (workspace > preference->workspace) break;
    found[*n] = {{{MAGIC, uint64_t(*n)}}, workspace, *n == 1 ? NOT_SUPPORTED : 0, 1.0f, {}};
  }
  return 0;
}

#ifndef STANDIN_WITHOUT_PRODUCT
int cublasLtMatmul(void*, Descriptor* x, const float* alpha, const void* a, Layout* la, const void* b, Layout* lb,
                   const float* beta, const void* c, Layout* lc, void* d, Layout* ld, const Algorithm* algorithm,
                   void* workspace, size_t bytes, void* stream) {
  uint64_t size[3];
  if (!algorithm || algorithm->data[0] != MAGIC) standin_wrong("a product by an algorithm that was not suggested");
  if (algorithm->data[1] == 1) return NOT_SUPPORTED;
  if (!fits(*x, *la, *lb, *lc, *ld, size) || !supported(*x, *la, *lb, *lc, *ld, size)) return WRONG;
  const auto check = [](const char* what, const void* at, const Layout& layout) {
    if (reinterpret_cast<uintptr_t>(at) % 256 != 0) standin_wrong("an operand of a product that is not aligned");
    standin_range(what, at, (size_t(layout.columns - 1) * size_t(layout.stride) + layout.rows) * size_of(layout.type));
  };
  check("first operand of a product", a, *la), check("second operand of a product", b, *lb);
  check("third operand of a product", c, *lc), check("result of a product", d, *ld);
  const size_t scratch = algorithm->data[1] == 2 ? SCRATCH : 0;
  if (bytes < scratch) return WRONG;
  standin_range("workspace of a product", workspace, bytes);
  const float one = *alpha, zero = *beta;
  if (zero != 0.0f) return NOT_SUPPORTED;
  const double ops = 2.0 * double(size[0]) * double(size[1]) * double(size[2]);
  standin_submit(stream, ops / OPS_PER_MS, [=] {
    std::memset(workspace, 0xff, scratch);
    const auto [m, n, k] = size;
    if (!standin_emulates() || (std::getenv("STANDIN_EFFORT") && m * n * k > LARGE)) {
      auto* column = static_cast<uint16_t*>(d);
      for (size_t j = 0; j < n; ++j, column += ld->stride)
        if (*column == 0xffff) std::memset(column, 0, m * 2);
      return;
    }
    const size_t a_step = size_t(la->stride), b_step = size_t(lb->stride);
    std::vector<float> left(m * k), right(n * k);
    for (size_t i = 0; i < m; ++i)
      for (size_t z = 0; z < k; ++z)
        left[i * k + z] = value(la->type, a, x->transposed[0] ? z + i * a_step : i + z * a_step);
    for (size_t j = 0; j < n; ++j)
      for (size_t z = 0; z < k; ++z)
        right[j * k + z] = value(lb->type, b, x->transposed[1] ? j + z * b_step : z + j * b_step);
    for (size_t j = 0; j < n; ++j)
      for (size_t i = 0; i < m; ++i) {
        float sum = 0;
        for (size_t z = 0; z < k; ++z) sum += left[i * k + z] * right[j * k + z];
        static_cast<uint16_t*>(d)[i + j * size_t(ld->stride)] = rounded(one * sum);
      }
  });
  return 0;
}
#endif
}

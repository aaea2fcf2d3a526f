// How the kernels of `calibrate/kernels` become known to the stand-in: by name, with the sizes of their parameters.
//
// Every kernel file is compiled by itself, in a namespace of its own because helpers of different files share names.
#pragma once
#include "../../kernels/emulate/cuda.h"
#include "../../kernels/common.cuh"

#include <type_traits>
#include <utility>

namespace standin {

struct Parameter {
  size_t size, alignment;  // Alignment of what a pointer points to; 0 for a value.
  bool written;            // Whether the kernel may write there.
};

struct Kernel {
  const char *file, *name;
  int threads;  // Of a block: what the source is written for.
  std::vector<Parameter> parameters;
  std::function<void(dim3, int, size_t, void**)> run;
};

std::vector<Kernel>& kernels();

template <typename T>
constexpr Parameter parameter() {
  if constexpr (std::is_pointer_v<T>) 
    return {sizeof(T), alignof(std::remove_pointer_t<T>), !std::is_const_v<std::remove_pointer_t<T>>};
  else return {sizeof(T), 0, false};
}

template <typename... T, size_t... I>
void call(void (*kernel)(T...), dim3 grid, int threads, size_t shared, void** arguments, std::index_sequence<I...>) {
  emulate::launch(kernel, grid, threads, shared, *static_cast<std::decay_t<T>*>(arguments[I])...);
}

template <typename... T>
bool add(const char* file, const char* name, int threads, void (*kernel)(T...)) {
  kernels().push_back({file, name, threads, {parameter<T>()...},
                       [kernel](dim3 grid, int threads, size_t shared, void** arguments) {
                         call(kernel, grid, threads, shared, arguments, std::index_sequence_for<T...>{});
                       }});
  return true;
}

}  // namespace standin

#define STANDIN_KERNEL(threads, name) \
  static const bool name##_is_known = standin::add(STANDIN_FILE, #name, threads, name);

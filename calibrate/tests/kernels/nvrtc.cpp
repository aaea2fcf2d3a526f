// Compiles one CUDA source with NVRTC for the chips we run on. Usage: nvrtc LIBRARY SOURCE COMMON.
//
// LIBRARY is the path of libnvrtc.so; COMMON is the text that the source includes as "common.cuh".
// Prints the log of every compilation, which includes the registers and the spills of every kernel. Exit 1 on an error.
#include <dlfcn.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

using Program = void*;

template <typename F>
F symbol(void* library, const char* name) {
  void* address = dlsym(library, name);
  if (!address) {
    std::printf("the library lacks %s\n", name);
    std::exit(1);
  }
  return reinterpret_cast<F>(address);
}

static std::string text_of(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A chip, and which results to ask for: with sm_ names NVRTC also assembles, and gives both PTX and machine code.
struct Target {
  const char* architecture;
  std::vector<const char*> sizes;
};

int main(int count, char** arguments) {
  if (count < 4) return 2;
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (!library) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  const auto create = symbol<int (*)(Program*, const char*, const char*, int, const char* const*, const char* const*)>(
      library, "nvrtcCreateProgram");
  const auto compile = symbol<int (*)(Program, int, const char* const*)>(library, "nvrtcCompileProgram");
  const auto log_size = symbol<int (*)(Program, size_t*)>(library, "nvrtcGetProgramLogSize");
  const auto log_text = symbol<int (*)(Program, char*)>(library, "nvrtcGetProgramLog");
  const auto destroy = symbol<int (*)(Program*)>(library, "nvrtcDestroyProgram");
  const std::string source = text_of(arguments[2]), common = text_of(arguments[3]);
  const char* headers[] = {common.c_str()};
  const char* names[] = {"common.cuh"};
  int failures = 0;
  for (const Target& target :
       {Target{"sm_90", {"nvrtcGetCUBINSize", "nvrtcGetPTXSize"}}, Target{"compute_80", {"nvrtcGetPTXSize"}}}) {
    Program program = nullptr;
    if (create(&program, source.c_str(), arguments[2], 1, headers, names) != 0) return 1;
    const std::string architecture = std::string("--gpu-architecture=") + target.architecture;
    std::vector<const char*> options = {architecture.c_str(), "--std=c++17"};
    if (target.architecture[0] == 's') options.push_back("--ptxas-options=-v");
    const int status = compile(program, int(options.size()), options.data());
    size_t bytes = 0;
    log_size(program, &bytes);
    std::string log(bytes, ' ');
    log_text(program, log.data());
    std::printf("%s: status %d\n%s\n", target.architecture, status, log.c_str());
    if (status != 0) ++failures;
    for (const char* name : target.sizes) {
      size_t size = 0;
      if (status == 0) symbol<int (*)(Program, size_t*)>(library, name)(program, &size);
      std::printf("%s %s: %zu bytes\n", target.architecture, name, size);
      failures += size < 100;
    }
    destroy(&program);
  }
  return failures == 0 ? 0 : 1;
}

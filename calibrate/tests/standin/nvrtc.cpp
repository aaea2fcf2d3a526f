// A stand-in for NVRTC: looks at what it is given and answers with the name of the source, which the stand-in driver
// knows. STANDIN_SOURCE_FAULT: no source compiles. STANDIN_NVRTC: its version, 13 otherwise.
#include <cstdlib>
#include <cstring>
#include <string>

namespace {
struct Program {
  std::string name, source, log;
  bool compiled = false;
};
constexpr int WRONG_INPUT = 3, WRONG_PROGRAM = 4, WRONG_OPTION = 5, DOES_NOT_COMPILE = 6;
std::string image(const Program* program) { return "standin " + program->name; }
}  // namespace

extern "C" {
int nvrtcCreateProgram(Program** program, const char* source, const char* name, int headers, const char**,
                       const char**) {
  if (!source || !name || headers != 0) return WRONG_INPUT;
  *program = new Program{name, source, ""};
  return 0;
}
int nvrtcCompileProgram(Program* program, int n, const char** options) {
  bool has_architecture = false;
  for (int i = 0; i < n; ++i) {
    const std::string option = options[i];
    if (option == "--gpu-architecture=sm_90") has_architecture = true;
    else if (option.rfind("--std=c++", 0) != 0) return WRONG_OPTION;
  }
  if (!has_architecture) return WRONG_OPTION;
  const size_t defined = program->source.find("#define SKRULL_KERNEL");
  const bool whole = program->source.find("#include") == std::string::npos && defined != std::string::npos &&
                     program->source.find("SKRULL_KERNEL", defined + 30) != std::string::npos;
  if (!whole || std::getenv("STANDIN_SOURCE_FAULT")) {
    program->log = program->name + "(1): error: this source is told not to compile";
    return DOES_NOT_COMPILE;
  }
  program->compiled = true;
  return 0;
}
int nvrtcGetProgramLogSize(Program* program, size_t* size) { return *size = program->log.size() + 1, 0; }
int nvrtcGetProgramLog(Program* program, char* log) {
  return std::memcpy(log, program->log.c_str(), program->log.size() + 1), 0;
}
int nvrtcGetCUBINSize(Program* program, size_t* size) {
  if (!program->compiled) return WRONG_PROGRAM;
  return *size = image(program).size() + 1, 0;
}
int nvrtcGetCUBIN(Program* program, char* to) {
  if (!program->compiled) return WRONG_PROGRAM;
  return std::memcpy(to, image(program).c_str(), image(program).size() + 1), 0;
}
int nvrtcDestroyProgram(Program** program) { return delete *program, 0; }
const char* nvrtcGetErrorString(int) { return "an error of the compiler"; }
int nvrtcVersion(int* major, int* minor) {
  const char* version = std::getenv("STANDIN_NVRTC");
  return *major = version ? std::atoi(version) : 13, *minor = 0, 0;
}
}

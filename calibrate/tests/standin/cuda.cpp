// A stand-in for the CUDA driver, for tests without a GPU: memory, streams and events on the host, kernels by
// emulation.
//
// It is strict where a GPU is silent or fails late. Memory begins as NaN bits, ends at a page that cannot be touched,
// and is surrounded by bytes that are looked at when it is freed and whenever someone waits. Pointers that a kernel
// gets must lie in an allocation of its device and be aligned as the source wants. A mistake of the caller ends the
// program with a line.
//
// Settings, all from the environment: STANDIN_VERSION (of CUDA, 13000 for 13.0), STANDIN_DEVICES, STANDIN_NAME (of
// each), STANDIN_MEMORY (bytes), STANDIN_L2 (bytes of the second-level cache), STANDIN_SHARED (bytes of shared memory
// that a block may have); STANDIN_LAZY: work runs as late as a GPU may run it, so that a missing wait shows;
// STANDIN_HANG, STANDIN_FAULT and STANDIN_WRONG: the kernel of this name never ends, touches an illegal address, or
// gives zeros; STANDIN_FAULT_AFTER: so many launches go well, and the next one touches an illegal address;
// STANDIN_EFFORT: after so many launches and products, and for a large product, results are zeros and take no time here.
//
// Times of events are those of a machine that does not exist: every stream has a clock, which work moves by a start and
// by what it does at a fixed rate. So they are the same in every run, whatever else uses this computer.
#include "kernel.h"
#include "machine.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>

namespace standin {

constexpr int INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_FOUND = 500,
              NOT_READY = 600, ILLEGAL_ADDRESS = 700;
constexpr uint8_t RED = 0xa5;
// What sending costs the host and starting the device; bytes of device memory and of the host's link, and threads, in a
// millisecond.
constexpr double SEND_MS = 0.002, START_MS = 0.003, DEVICE_BYTES_PER_MS = 2e9, LINK_BYTES_PER_MS = 5e7,
                 THREADS_PER_MS = 1e8;
constexpr size_t SHARED_MAX = 232448, SHARED_PLAIN = 48 * 1024;

std::vector<Kernel>& kernels() {
  static std::vector<Kernel> all;
  return all;
}

struct Memory {
  uint8_t *map, *begin, *end;  // Pages that can be touched are [begin, end).
  size_t bytes, map_bytes;
  int device;  // -1 for the host.
};

struct Work {
  double sent_ms, takes_ms;
  std::function<void()> run;
};

struct Stream {
  std::deque<Work> work;
  bool hung = false;
  double clock_ms = 0;
  int device = 0;
};

struct Event {
  Stream* on = nullptr;
  int pending = 0;
  bool recorded = false;
  double at = 0;
};

struct Function {
  const Kernel* kernel;
  size_t shared_max = SHARED_PLAIN;
};

struct World {
  std::map<uint8_t*, Memory> memory;
  std::map<void*, Stream*> streams;
  size_t used = 0, launched = 0, emulated = 0;
  int sticky = 0;
  double host_ms = 0;
  const char* running = "nothing";
};

static World& world() {
  static World all;
  return all;
}
static thread_local int current = -1;

static size_t setting(const char* name, size_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}
static bool is_named(const char* name, const char* value) {
  const char* text = std::getenv(name);
  return text && std::string(text) == value;
}
static bool lazy() { return std::getenv("STANDIN_LAZY") != nullptr; }

static void check_red(const Memory& x) {
  uint8_t* at = x.end - (x.bytes + 255) / 256 * 256;
  for (uint8_t* p = x.begin; p < x.end; ++p) {
    if (p == at) p += x.bytes;
    if (p < x.end && *p != RED)
      standin_wrong(("memory around an allocation was written, last by " + std::string(world().running)).c_str());
  }
}
static void check_all() {
  for (auto& [at, x] : world().memory) check_red(x);
}

static void* allocate(size_t bytes, int device) {
  const size_t page = size_t(sysconf(_SC_PAGESIZE)), inner = ((bytes + 255) / 256 * 256 + page - 1) / page * page;
  Memory x;
  x.map_bytes = inner + 2 * page;
  x.map = static_cast<uint8_t*>(mmap(nullptr, x.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  x.begin = x.map + page, x.end = x.begin + inner, x.bytes = bytes, x.device = device;
  mprotect(x.begin, inner, PROT_READ | PROT_WRITE);
  uint8_t* at = x.end - (bytes + 255) / 256 * 256;
  std::memset(x.begin, RED, size_t(at - x.begin));
  std::memset(at, 0xff, bytes);
  std::memset(at + bytes, RED, size_t(x.end - at) - bytes);
  world().memory[at] = x;
  return at;
}

static bool release(void* address, bool host) {
  auto found = world().memory.find(static_cast<uint8_t*>(address));
  if (found == world().memory.end() || (found->second.device < 0) != host) return false;
  check_red(found->second);
  if (!host) world().used -= found->second.bytes;
  munmap(found->second.map, found->second.map_bytes);
  world().memory.erase(found);
  return true;
}

static const Memory* holder(const void* address, size_t bytes) {
  auto* at = static_cast<uint8_t*>(const_cast<void*>(address));
  auto next = world().memory.upper_bound(at);
  if (next == world().memory.begin()) return nullptr;
  --next;
  return size_t(at - next->first) + bytes <= next->second.bytes ? &next->second : nullptr;
}

static Stream* stream_of(void* handle) {
  static Stream plain[16];
  if (!handle) {
    Stream* own = &plain[current < 0 ? 0 : current];
    return own->device = std::max(current, 0), own;
  }
  auto found = world().streams.find(handle);
  if (found == world().streams.end()) standin_wrong("a stream that was never made");
  return found->second;
}

// A stream that this thread's device can be told to do something on.
static Stream* own_stream(void* handle) {
  Stream* stream = stream_of(handle);
  if (stream->device != current) standin_wrong("a stream of another device");
  return stream;
}

static bool step(Stream* stream) {
  if (stream->hung || stream->work.empty() || world().sticky) return false;
  const Work work = std::move(stream->work.front());
  stream->work.pop_front();
  stream->clock_ms = std::max(stream->clock_ms, work.sent_ms) + work.takes_ms;
  work.run();
  return true;
}
static void flush(Stream* stream) {
  while (step(stream)) {
  }
  if (stream->hung) standin_wrong("a wait for a stream that never ends");
  world().host_ms = std::max(world().host_ms, stream->clock_ms);
}
static void flush_all() {
  flush(stream_of(nullptr));
  for (auto& [handle, stream] : world().streams) flush(stream);
  check_all();
}
static void submit(Stream* stream, double takes_ms, std::function<void()> work) {
  world().host_ms += takes_ms > 0 ? SEND_MS : 0;
  stream->work.push_back({world().host_ms, takes_ms, std::move(work)});
  if (!lazy())
    while (step(stream)) {
    }
}
static void reach(Event* event) {
  while (event->pending > 0 && step(event->on)) {
  }
}

static void on_fault(int, siginfo_t* info, void*) {
  std::fprintf(stderr, "standin: %s touched %p, which is in no allocation (block %u,%u thread %u)\n", world().running,
               info->si_addr, blockIdx.x, blockIdx.y, threadIdx.x);
  std::_Exit(3);
}

// What every call of the driver that needs a context begins with.
static int ready() {
  if (world().sticky) return world().sticky;
  return current < 0 ? INVALID_CONTEXT : 0;
}

// Milliseconds of a launch: by bytes where the arguments say how many, else by threads.
static double work(const std::string& name, const std::vector<uint64_t>& words, double threads) {
  if (name == "spin") return double(words[0]) / 1e6;
  if (name == "add") return double(words[3]) * 6 / DEVICE_BYTES_PER_MS;
  if (name == "gather_rows") return double(words[3]) * double(words[4]) * 32 / DEVICE_BYTES_PER_MS;
  return threads / THREADS_PER_MS;
}

// Zeros from where a kernel would have written to the end of the memory, unless something is there already.
static void blank(const Kernel& kernel, const std::vector<uint64_t>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (!kernel.parameters[i].written || words[i] == 0) continue;
    auto* at = reinterpret_cast<uint8_t*>(words[i]);
    const Memory* memory = holder(at, 1);
    uint8_t* begin = memory->end - (memory->bytes + 255) / 256 * 256;
    if (*at == 0xff) std::memset(at, 0, size_t(begin + memory->bytes - at));
  }
}

static void launch(Function* function, dim3 grid, int threads, size_t shared, std::vector<uint64_t> words) {
  const Kernel& kernel = *function->kernel;
  if (is_named("STANDIN_FAULT", kernel.name) || ++world().launched > setting("STANDIN_FAULT_AFTER", SIZE_MAX)) {
    world().sticky = ILLEGAL_ADDRESS;
    return;
  }
  const bool is_wrong = is_named("STANDIN_WRONG", kernel.name);
  if (is_wrong || !standin_emulates()) return blank(kernel, words);
  std::vector<void*> arguments;
  for (uint64_t& word : words) arguments.push_back(&word);
  world().running = kernel.name;
  kernel.run(grid, threads, shared, arguments.data());
}

}  // namespace standin

using namespace standin;

void standin_submit(void* stream, double takes_ms, std::function<void()> work) {
  submit(stream_of(stream), START_MS + takes_ms, std::move(work));
}

extern "C" {

void standin_wrong(const char* what) {
  std::fprintf(stderr, "standin: %s\n", what);
  std::_Exit(3);
}
bool standin_emulates() { return world().emulated++ < setting("STANDIN_EFFORT", SIZE_MAX); }
int standin_device_of(void* stream) { return stream_of(stream)->device; }
void standin_range(const char* what, const void* at, size_t bytes) {
  const Memory* memory = holder(at, bytes);
  if (!memory || (memory->device >= 0 && memory->device != current))
    standin_wrong((std::string(what) + ": not memory of this device").c_str());
}

int cuInit(unsigned) {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
  return 0;
}
int cuDriverGetVersion(int* version) { return *version = int(setting("STANDIN_VERSION", 13000)), 0; }
int cuDeviceGetCount(int* count) { return *count = int(setting("STANDIN_DEVICES", 1)), 0; }
int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= int(setting("STANDIN_DEVICES", 1))) return INVALID_DEVICE;
  return *device = ordinal, 0;
}
int cuDeviceGetName(char* name, int length, int) { const char* own = std::getenv("STANDIN_NAME");
  return std::snprintf(name, size_t(length), "%s", own ? own : "Stand-in H200"), 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const std::map<int, int> known = {{13, 1980000},
                                    {16, 132},
                                    {38, int(setting("STANDIN_L2", 4096))},
                                    {75, 9},
                                    {76, 0},
                                    {97, int(setting("STANDIN_SHARED", SHARED_MAX))},
                                    {115, 1}};
  const auto found = known.find(attribute);
  if (found == known.end()) return INVALID_VALUE;
  return *value = found->second, 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  return *context = reinterpret_cast<void*>(intptr_t(device) + 1), 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxGetCurrent(void** context) { return *context = reinterpret_cast<void*>(intptr_t(current) + 1), 0; }
int cuCtxSetCurrent(void* context) { return current = int(reinterpret_cast<intptr_t>(context)) - 1, 0; }
int cuCtxSynchronize() {
  if (int wrong = ready()) return wrong;
  flush_all();
  return world().sticky;
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *total = setting("STANDIN_MEMORY", size_t(256) << 20);
  *free = *total - world().used;
  return ready();
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  if (int wrong = ready()) return wrong;
  if (bytes == 0) return INVALID_VALUE;
  if (bytes > setting("STANDIN_MEMORY", size_t(256) << 20) - world().used) return OUT_OF_MEMORY;
  world().used += bytes;
  *address = reinterpret_cast<uint64_t>(allocate(bytes, current));
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  if (int wrong = ready()) return wrong;
  flush_all();
  if (!release(reinterpret_cast<void*>(address), false)) standin_wrong("freed what was never allocated");
  return world().sticky;
}
int cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  if (int wrong = ready()) return wrong;
  return *address = allocate(bytes, -1), 0;
}
int cuMemFreeHost(void* address) {
  if (int wrong = ready()) return wrong;
  // The real driver need not wait for copies that are under way.
  for (auto& [handle, stream] : world().streams)
    if (!stream->work.empty()) standin_wrong("pinned memory freed while a stream has work");
  if (!release(address, true)) standin_wrong("freed host memory that was never allocated");
  return 0;
}

static int copy(void* to, const void* from, size_t bytes, double bytes_per_ms, void* stream) {
  submit(stream_of(stream), START_MS + double(bytes) / bytes_per_ms, [=] { std::memmove(to, from, bytes); });
  return world().sticky;
}
static void* device_side(const char* what, uint64_t address, size_t bytes) {
  auto* at = reinterpret_cast<void*>(address);
  standin_range(what, at, bytes);
  if (holder(at, bytes)->device < 0) standin_wrong((std::string(what) + ": host memory as device memory").c_str());
  return at;
}
static const void* host_side(const char* what, const void* at) {
  const Memory* memory = holder(at, 1);
  if (memory && memory->device >= 0) standin_wrong((std::string(what) + ": device memory as host memory").c_str());
  return at;
}

// From pageable memory: the driver keeps a copy of its own, and may return before the device has it.
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  if (int wrong = ready()) return wrong;
  device_side("copy to the device", to, bytes);
  const auto* first = static_cast<const uint8_t*>(host_side("copy to the device", from));
  std::vector<uint8_t> staged(first, first + bytes);
  flush(stream_of(nullptr));
  submit(stream_of(nullptr), START_MS + double(bytes) / LINK_BYTES_PER_MS,
         [to, staged] { std::memcpy(reinterpret_cast<void*>(to), staged.data(), staged.size()); });
  return world().sticky;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  if (int wrong = ready()) return wrong;
  device_side("copy from the device", from, bytes);
  host_side("copy from the device", to);
  flush(stream_of(nullptr));
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return world().sticky;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  if (int wrong = ready()) return wrong;
  device_side("copy to the device", to, bytes);
  if (!holder(from, bytes)) standin_wrong("copy to the device: not from pinned memory, so not at once with others");
  return copy(reinterpret_cast<void*>(to), host_side("copy to the device", from), bytes, LINK_BYTES_PER_MS, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  if (int wrong = ready()) return wrong;
  if (!holder(to, bytes)) standin_wrong("copy from the device: not to pinned memory, so not at once with others");
  host_side("copy from the device", to);
  return copy(to, device_side("copy from the device", from, bytes), bytes, LINK_BYTES_PER_MS, stream);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  if (int wrong = ready()) return wrong;
  return copy(device_side("copy", to, bytes), device_side("copy", from, bytes), bytes, DEVICE_BYTES_PER_MS / 2, stream);
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void* stream) {
  if (int wrong = ready()) return wrong;
  void* at = device_side("memset", to, bytes);
  submit(stream_of(stream), START_MS + double(bytes) / DEVICE_BYTES_PER_MS, [=] { std::memset(at, value, bytes); });
  return world().sticky;
}

int cuStreamCreate(void** stream, unsigned flags) {
  if (int wrong = ready()) return wrong;
  if (flags != 1) standin_wrong("a stream that waits for the default stream");
  auto* made = new Stream;
  made->device = current;
  world().streams[made] = made;
  return *stream = made, 0;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  if (int wrong = ready()) return wrong;
  auto* waited = static_cast<Event*>(event);
  if (!waited->recorded) standin_wrong("a wait for an event that was never recorded does nothing");
  Stream* waiting = stream_of(stream);
  submit(waiting, 0, [=] {
    reach(waited);
    waiting->clock_ms = std::max(waiting->clock_ms, waited->at);
  });
  return world().sticky;
}
int cuStreamDestroy_v2(void* stream) {
  if (int wrong = ready()) return wrong;
  Stream* gone = stream_of(stream);
  if (!gone->work.empty()) standin_wrong("a stream that has work was destroyed");
  world().streams.erase(stream);
  delete gone;
  return 0;
}
int cuStreamSynchronize(void* stream) {
  if (int wrong = ready()) return wrong;
  flush(stream_of(stream));
  return world().sticky;
}

int cuEventCreate(void** event, unsigned) {
  if (int wrong = ready()) return wrong;
  return *event = new Event, 0;
}
int cuEventRecord(void* event, void* stream) {
  if (int wrong = ready()) return wrong;
  auto* recorded = static_cast<Event*>(event);
  recorded->on = own_stream(stream), recorded->recorded = true;
  ++recorded->pending;
  submit(recorded->on, 0, [recorded] { recorded->at = recorded->on->clock_ms, --recorded->pending; });
  return world().sticky;
}
int cuEventQuery(void* event) {
  if (int wrong = ready()) return wrong;
  reach(static_cast<Event*>(event));
  if (world().sticky) return world().sticky;
  if (static_cast<Event*>(event)->pending > 0) return NOT_READY;
  world().host_ms = std::max(world().host_ms, static_cast<Event*>(event)->at);
  return 0;
}
int cuEventSynchronize(void* event) {
  const int asked = cuEventQuery(event);
  if (asked == NOT_READY) standin_wrong("a wait for an event that never comes");
  return asked;
}
// STANDIN_OLD: a driver of CUDA 12.2.
#ifdef STANDIN_OLD
#define cuEventElapsedTime_v2 cuEventElapsedTime
#endif
int cuEventElapsedTime_v2(float* ms, void* from, void* to) {
  if (int wrong = ready()) return wrong;
  auto *first = static_cast<Event*>(from), *second = static_cast<Event*>(to);
  if (!first->recorded || !second->recorded) return 400;
  if (first->pending > 0 || second->pending > 0) return NOT_READY;
  return *ms = float(second->at - first->at), 0;
}
int cuEventDestroy_v2(void*) { return ready(); }

int cuModuleLoadData(void** module, const void* image) {
  if (int wrong = ready()) return wrong;
  const char* bytes = static_cast<const char*>(image);
  if (std::memcmp(bytes, "\x7f" "ELF", 4) != 0) {
    const std::string text = bytes;
    if (text.rfind("standin ", 0) != 0) return 200;
    return *module = new std::string(text.substr(8)), 0;
  }
  // Machine code of a real compiler is not run, but tells by its names which source it comes from. Its table of
  // sections ends it.
  uint64_t sections;
  uint16_t size, count;
  std::memcpy(&sections, bytes + 40, 8), std::memcpy(&size, bytes + 58, 2), std::memcpy(&count, bytes + 60, 2);
  const std::string code(bytes, size_t(sections) + size_t(size) * count);
  for (const Kernel& kernel : kernels())
    if (code.find(".text." + std::string(kernel.name)) != std::string::npos)
      return *module = new std::string(kernel.file), 0;
  return 200;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (int wrong = ready()) return wrong;
  for (const Kernel& kernel : kernels())
    if (*static_cast<std::string*>(module) == kernel.file && std::string(name) == kernel.name)
      return *function = new Function{&kernel}, 0;
  return NOT_FOUND;
}
#ifndef STANDIN_OLD
int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* size) {
  const auto& parameters = static_cast<Function*>(function)->kernel->parameters;
  if (index >= parameters.size()) return INVALID_VALUE;
  size_t at = 0;
  for (size_t i = 0; i <= index; ++i) {
    at = (at + parameters[i].size - 1) / parameters[i].size * parameters[i].size;
    if (i < index) at += parameters[i].size;
  }
  *offset = at;
  if (size) *size = parameters[index].size;
  return 0;
}
#endif
int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute != 8 || value < 0 || size_t(value) > setting("STANDIN_SHARED", SHARED_MAX)) return INVALID_VALUE;
  return static_cast<Function*>(function)->shared_max = size_t(value), 0;
}
int cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void**) {
  if (int wrong = ready()) return wrong;
  auto* function = static_cast<Function*>(handle);
  const Kernel& kernel = *function->kernel;
  const auto wrong = [&](const char* what) { standin_wrong((std::string(kernel.name) + ": " + what).c_str()); };
  if (gx == 0 || gy == 0 || gz == 0 || gx > 0x7fffffffu || gy > 65535 || gz > 65535) wrong("a grid that cannot be");
  if (int(bx) != kernel.threads || by != 1 || bz != 1) wrong("a block that the source is not written for");
  if (shared > function->shared_max) return INVALID_VALUE;
  std::vector<uint64_t> words(kernel.parameters.size(), 0);
  for (size_t i = 0; i < words.size(); ++i) {
    std::memcpy(&words[i], arguments[i], kernel.parameters[i].size);
    const size_t alignment = kernel.parameters[i].alignment;
    if (alignment == 0 || words[i] == 0) continue;
    standin_range(kernel.name, reinterpret_cast<void*>(words[i]), 1);
    if (words[i] % alignment != 0) wrong("a pointer that is not aligned");
  }
  Stream* on = own_stream(stream);
  if (is_named("STANDIN_HANG", kernel.name)) on->hung = true;
  const double work_ms = work(kernel.name, words, double(gx) * gy * gz * bx);
  submit(on, START_MS + work_ms, [=] { launch(function, dim3(gx, gy, gz), int(bx), shared, words); });
  return world().sticky == ILLEGAL_ADDRESS ? 0 : world().sticky;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
  return 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = error == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "some other error";
  return 0;
}

}  // extern "C"

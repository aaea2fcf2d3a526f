// A stand-in for NCCL: exchanges between the devices of the stand-in driver, of bf16 and by sums.
//
// What a group holds starts on every rank's stream when all ranks have come to it, as on a GPU. Strict where the
// library would wait for ever or read what it must not: an exchange of several devices outside a group, ranks that do
// not agree, something sent that nobody takes, a stream or memory of another device. STANDIN_WRONG: the function of
// this name moves nothing.
#include "machine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

extern "C" {
int cuCtxGetCurrent(void** context);
int cuCtxSetCurrent(void* context);
int cuEventCreate(void** event, unsigned flags);
int cuEventRecord(void* event, void* stream);
int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
}

namespace {
constexpr int INVALID_ARGUMENT = 4, INVALID_USAGE = 5, BF16 = 9, SUM = 0;
constexpr double BYTES_PER_MS = 4e8;

// Ranks that were started together.
struct Group {
  std::vector<int> devices;
};
struct Comm {
  std::shared_ptr<Group> group;
  int rank;
};
enum Kind { AllReduce, AllGather, ReduceScatter, Broadcast, Send, Receive };
const char* const NAMES[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast", "ncclSend",
                             "ncclRecv"};
struct Call {
  Kind kind;
  const uint16_t* from;
  uint16_t* to;
  size_t count;
  int other;  // Root of a broadcast, or the other end.
  Comm* comm;
  void* stream;
};

int depth = 0;
std::vector<Call> open_calls;

// This thread's device while the library works on another.
struct On {
  void* before = nullptr;
  explicit On(int device) {
    cuCtxGetCurrent(&before);
    cuCtxSetCurrent(reinterpret_cast<void*>(intptr_t(device) + 1));
  }
  ~On() { cuCtxSetCurrent(before); }
};

float value(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float x;
  return std::memcpy(&x, &bits, 4), x;
}
uint16_t rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Elements that a rank gives and takes.
std::pair<size_t, size_t> sizes(const Call& call) {
  const size_t n = call.comm->group->devices.size(), root = size_t(call.other);
  switch (call.kind) {
    case AllGather: return {call.count, call.count * n};
    case ReduceScatter: return {call.count * n, call.count};
    case Broadcast: return {size_t(call.comm->rank) == root ? call.count : 0, call.count};
    case Send: return {call.count, 0};
    case Receive: return {0, call.count};
    default: return {call.count, call.count};
  }
}

// A collective: one call of each rank, in the order of the ranks.
void collect(const std::vector<Call>& ranks) {
  const size_t n = ranks.size(), count = ranks[0].count;
  std::vector<std::vector<uint16_t>> given;  // Results may lie where operands do.
  for (const Call& call : ranks) given.emplace_back(call.from, call.from + sizes(call).first);
  const auto sum = [&](size_t at) {
    float total = 0;
    for (const auto& one : given) total += value(one[at]);
    return rounded(total);
  };
  for (size_t rank = 0; rank < n; ++rank)
    for (size_t i = 0; i < sizes(ranks[rank]).second; ++i) switch (ranks[rank].kind) {
        case AllReduce: ranks[rank].to[i] = sum(i); break;
        case AllGather: ranks[rank].to[i] = given[i / count][i % count]; break;
        case ReduceScatter: ranks[rank].to[i] = sum(rank * count + i); break;
        default: ranks[rank].to[i] = given[size_t(ranks[rank].other)][i];
      }
}

bool is_wrong(Kind kind) {
  const char* name = std::getenv("STANDIN_WRONG");
  return name && std::string(name) == NAMES[kind];
}

using Rounds = std::vector<std::vector<Call>>;

// Sorts the calls of a communicator into exchanges: one of each rank, or both ends.
Rounds rounds(const std::vector<Call>& calls, size_t n) {
  Rounds all;
  std::vector<std::vector<Call>> collectives(n);
  std::map<std::pair<int, int>, std::vector<Call>> sent, taken;
  for (const Call& call : calls) {
    const int rank = call.comm->rank;
    if (call.kind == Send) sent[{rank, call.other}].push_back(call);
    else if (call.kind == Receive) taken[{call.other, rank}].push_back(call);
    else collectives[size_t(rank)].push_back(call);
  }
  for (size_t round = 0; round < collectives[0].size(); ++round) {
    std::vector<Call> ranks;
    for (const auto& own : collectives) {
      if (own.size() != collectives[0].size()) standin_wrong("a collective that a rank does not take part in");
      const Call &first = collectives[0][round], &call = own[round];
      if (call.kind != first.kind || call.count != first.count || call.other != first.other)
        standin_wrong("ranks that ask for different collectives");
      ranks.push_back(call);
    }
    all.push_back(ranks);
  }
  for (const auto& own : collectives)
    if (own.size() != collectives[0].size()) standin_wrong("a collective that a rank does not take part in");
  for (auto& [pair, list] : sent) {
    auto& other = taken[pair];
    for (size_t i = 0; i < list.size(); ++i) {
      if (i >= other.size()) standin_wrong("something was sent that nobody takes");
      if (list[i].count != other[i].count) standin_wrong("a message of another length than is waited for");
      all.push_back({list[i], other[i]});
    }
    if (other.size() > list.size()) standin_wrong("a wait for something that nobody sends");
  }
  for (auto& [pair, list] : taken)
    if (list.size() > sent[pair].size()) standin_wrong("a wait for something that nobody sends");
  return all;
}

void exchange(const Rounds& all) {
  for (const auto& calls : all) {
    if (is_wrong(calls[0].kind)) continue;
    if (calls[0].kind == Send) std::memmove(calls[1].to, calls[0].from, calls[0].count * 2);
    else collect(calls);
  }
}

// Starts the calls of one communicator: on each stream behind what all of them have.
void start(const std::vector<Call>& calls) {
  const Group& group = *calls[0].comm->group;
  std::vector<void*> streams(group.devices.size(), nullptr), events;
  std::vector<bool> takes_part(streams.size(), false);
  double bytes = 0;
  for (const Call& call : calls) {
    const size_t rank = size_t(call.comm->rank);
    const int device = group.devices[rank];
    if (takes_part[rank] && streams[rank] != call.stream) standin_wrong("two streams of a rank in a group");
    if (standin_device_of(call.stream) != device) standin_wrong("an exchange on a stream of another device");
    const On on(device);
    const auto [given, taken] = sizes(call);
    if (given > 0) standin_range(NAMES[call.kind], call.from, given * 2);
    if (taken > 0) standin_range(NAMES[call.kind], call.to, taken * 2);
    bytes = std::max(bytes, double(std::max(given, taken)) * 2);
    streams[rank] = call.stream, takes_part[rank] = true;
  }
  const Rounds all = rounds(calls, streams.size());
  for (size_t rank = 0; rank < streams.size(); ++rank) {
    if (!takes_part[rank]) continue;
    const On on(group.devices[rank]);
    void* event;
    cuEventCreate(&event, 0), cuEventRecord(event, streams[rank]), events.push_back(event);
  }
  auto done = std::make_shared<bool>(false);
  for (size_t rank = 0; rank < streams.size(); ++rank) {
    if (!takes_part[rank]) continue;
    const On on(group.devices[rank]);
    for (void* event : events) cuStreamWaitEvent(streams[rank], event, 0);
    standin_submit(streams[rank], bytes / BYTES_PER_MS, [=] {
      if (!std::exchange(*done, true)) exchange(all);
    });
  }
}

int end() {
  while (!open_calls.empty()) {
    const Group* group = open_calls[0].comm->group.get();
    std::vector<Call> own, others;
    for (const Call& call : open_calls) (call.comm->group.get() == group ? own : others).push_back(call);
    open_calls = others;
    start(own);
  }
  return 0;
}

int add(Kind kind, const void* from, void* to, size_t count, int type, int other, Comm* comm, void* stream) {
  if (!comm || type != BF16 || other < 0 || size_t(other) >= comm->group->devices.size()) return INVALID_ARGUMENT;
  if (depth == 0 && comm->group->devices.size() > 1)
    standin_wrong("an exchange of several devices of one thread outside a group never ends");
  open_calls.push_back({kind, static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to), count, other, comm,
                        stream});
  return depth == 0 ? end() : 0;
}
}  // namespace

extern "C" {
struct UniqueId {
  char bytes[128];
};
int ncclGetVersion(int* version) { return *version = 22803, 0; }
const char* ncclGetErrorString(int status) { return status == 0 ? "no error" : "invalid argument or usage"; }
int ncclGetUniqueId(UniqueId* id) {
  static int made = 0;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->bytes, &++made, sizeof made);
  return 0;
}
int ncclCommInitRank(Comm** comm, int n, UniqueId id, int rank) {
  static std::map<int, std::shared_ptr<Group>> known;
  int number;
  std::memcpy(&number, id.bytes, sizeof number);
  if (n < 1 || rank < 0 || rank >= n) return INVALID_ARGUMENT;
  if (depth == 0 && n > 1) standin_wrong("one thread starts several ranks outside a group");
  auto& group = known[number];
  if (!group) group = std::make_shared<Group>(Group{std::vector<int>(size_t(n), -1)});
  if (group->devices.size() != size_t(n) || group->devices[size_t(rank)] >= 0) return INVALID_USAGE;
  void* context;
  cuCtxGetCurrent(&context);
  group->devices[size_t(rank)] = int(reinterpret_cast<intptr_t>(context)) - 1;
  return *comm = new Comm{group, rank}, 0;
}
int ncclCommInitAll(Comm** comms, int n, const int* devices) {
  auto group = std::make_shared<Group>(Group{std::vector<int>(devices, devices + n)});
  for (int rank = 0; rank < n; ++rank) {
    if (std::count(devices, devices + n, devices[rank]) != 1) return INVALID_USAGE;
    comms[rank] = new Comm{group, rank};
  }
  return 0;
}
int ncclCommDestroy(Comm* comm) { return delete comm, 0; }
int ncclGroupStart() { return ++depth, 0; }
int ncclGroupEnd() {
  if (depth == 0) return INVALID_USAGE;
  return --depth == 0 ? end() : 0;
}
int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, Comm* comm, void* stream) {
  return op == SUM ? add(AllReduce, from, to, count, type, 0, comm, stream) : INVALID_ARGUMENT;
}
int ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, void* stream) {
  return add(AllGather, from, to, count, type, 0, comm, stream);
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op, Comm* comm, void* stream) {
  return op == SUM ? add(ReduceScatter, from, to, count, type, 0, comm, stream) : INVALID_ARGUMENT;
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Comm* comm, void* stream) {
  return add(Broadcast, from, to, count, type, root, comm, stream);
}
int ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, void* stream) {
  return add(Send, from, nullptr, count, type, peer, comm, stream);
}
int ncclRecv(void* to, size_t count, int type, int peer, Comm* comm, void* stream) {
  return add(Receive, nullptr, to, count, type, peer, comm, stream);
}
}

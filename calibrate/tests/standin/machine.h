// What the driver and the library of products share: memory that is checked, streams, and complaints.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

extern "C" {
// Ends the program unless `bytes` from `at` lie in one allocation that the current device can reach.
void standin_range(const char* what, const void* at, size_t bytes);
// Number of the device that a stream is of.
int standin_device_of(void* stream);
// Whether the next launch is worth its time here; each call counts as one.
bool standin_emulates();
// Ends the program: whoever calls the driver made a mistake.
[[noreturn]] void standin_wrong(const char* what);
}
// Puts work behind what a stream has; it takes so many milliseconds beyond its start.
void standin_submit(void* stream, double takes_ms, std::function<void()> work);

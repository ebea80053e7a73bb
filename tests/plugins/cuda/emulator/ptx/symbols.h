// Names of functions of this process, local ones included.
#pragma once

#include <string>

namespace emulator::ptx {

// The mangled name of the function that begins at `address`. Throws std::runtime_error if its file has none.
std::string symbol_at(const void* address);

}  // namespace emulator::ptx

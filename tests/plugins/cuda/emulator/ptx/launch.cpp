// Finds the PTX of a kernel, and runs a grid of it.

#include "launch.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

#include "../emulator.h"
#include "kernel.h"
#include "symbols.h"

namespace emulator::ptx {
namespace {

[[noreturn]] void stop(const std::string& what) {
    std::fprintf(stderr, "cuda emulator: %s\n", what.c_str());
    std::abort();
}

// nvcc puts the file and a hash into the name of an unnamed namespace:
// 44_GLOBAL__N__337bec03_11_last_row_cu_c8083977 for the host's 12_GLOBAL__N_1.
std::string as_on_the_host(const std::string& name) {
    const std::string mark = "_GLOBAL__N__";
    const size_t at = name.find(mark);
    if (at == std::string::npos) return name;
    size_t digits = at;
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
    const size_t length = std::stoul(name.substr(digits, at - digits));
    return name.substr(0, digits) + "12_GLOBAL__N_1" + as_on_the_host(name.substr(at + length));
}

struct Entry {
    std::string text, file;
    int line = 0;
};

// All kernels of a folder by their names on the host, decoded when they are first launched.
class Library {
  public:
    explicit Library(const std::string& folder) {
        for (const auto& file : std::filesystem::directory_iterator(folder))
            if (file.path().extension() == ".ptx") read(file.path());
        if (entries_.empty()) stop("no kernels in " + folder);
    }

    const Kernel& find(const std::string& name) {
        const auto known = kernels_.find(name);
        if (known != kernels_.end()) return known->second;
        const auto entry = entries_.find(name);
        if (entry == entries_.end()) throw std::runtime_error("PTX has no kernel " + name);
        record(name);
        return kernels_[name] = decode(entry->second.text, entry->second.file, entry->second.line);
    }

  private:
    static void record(const std::string& name) {
        if (const char* const file = std::getenv("H2O_EMULATION_PTX_RAN"))
            std::ofstream(file, std::ios::app) << name << '\n';
    }

    // A kernel begins with .entry and ends with the brace that its first one opens.
    void read(const std::filesystem::path& path) {
        std::ifstream file(path);
        std::string line;
        Entry entry;
        bool inside = false;
        std::ptrdiff_t open = 0;
        for (int number = 1; std::getline(file, line); ++number) {
            const size_t at = line.find(".entry ");
            if (at != std::string::npos) {
                entry = {"", path.filename().string(), number};
                inside = true;
            }
            if (inside) entry.text += line + "\n";
            const auto opened = std::count(line.begin(), line.end(), '{');
            const auto closed = std::count(line.begin(), line.end(), '}');
            open += opened - closed;
            if (!inside || closed == 0 || open > 0) continue;
            inside = false;
            const size_t begin = entry.text.find(".entry ") + 7;
            const std::string name = as_on_the_host(entry.text.substr(begin, entry.text.find('(') - begin));
            if (!entries_.emplace(name, entry).second) stop("two kernels have the name " + name);
        }
    }

    std::map<std::string, Entry> entries_;
    std::map<std::string, Kernel> kernels_;
};

const char* folder() {
    static const char* const name = std::getenv("H2O_EMULATION_PTX");
    return name && *name ? name : nullptr;
}

const Kernel& kernel_at(const void* function) try {
    static Library library(folder());
    return library.find(symbol_at(function));
} catch (const std::runtime_error& error) {
    stop(error.what());
}

std::vector<unsigned char> parameters_of(const Kernel& kernel, const std::vector<Argument>& arguments) {
    if (arguments.size() != kernel.parameters.size())
        stop(kernel.name + " takes another number of arguments");
    std::vector<unsigned char> parameters(kernel.parameter_bytes);
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i].bytes != kernel.parameters[i].bytes)
            stop(kernel.name + ": argument " + std::to_string(i) + " has " +
                 std::to_string(arguments[i].bytes) + " bytes on the host and " +
                 std::to_string(kernel.parameters[i].bytes) + " in PTX");
        std::memcpy(&parameters[kernel.parameters[i].offset], arguments[i].value, arguments[i].bytes);
    }
    return parameters;
}

}  // namespace

bool is_wanted() {
    return folder() != nullptr;
}

void run_grid(const void* function, dim3 grid, dim3 block, size_t shared_bytes,
              const std::vector<Argument>& arguments) {
    const Kernel& kernel = kernel_at(function);
    if (block.x * block.y * block.z > kernel.most_threads)
        stop(kernel.name + " is compiled for fewer threads a block");
    const std::vector<unsigned char> parameters = parameters_of(kernel, arguments);
    emulator::run_grid(grid, block, shared_bytes, [&] { Thread(kernel, parameters.data()).run(); });
}

}  // namespace emulator::ptx

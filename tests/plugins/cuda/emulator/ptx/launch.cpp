// Finds the PTX of a kernel, and runs a grid of it.

#include "launch.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

#include "../emulator.h"
#include "../races.h"
#include "kernel.h"
#include "symbols.h"
#include "warp.h"

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
    static size_t end_of_kernel(const std::string& text, size_t at) {
        for (int open = 0; (at = text.find_first_of("{}", at)) != std::string::npos; ++at) {
            open += text[at] == '{' ? 1 : -1;
            if (open == 0) return at;
        }
        return text.size();
    }

    void read(const std::filesystem::path& path) {
        std::ifstream file(path, std::ios::binary);
        std::string text(std::filesystem::file_size(path), ' ');
        file.read(text.data(), static_cast<std::streamsize>(text.size()));
        int line = 1;
        size_t read = 0;
        for (size_t at; (at = text.find(".entry ", read)) != std::string::npos;) {
            line += static_cast<int>(std::count(&text[read], &text[at], '\n'));
            read = end_of_kernel(text, at);
            const std::string name = as_on_the_host(text.substr(at + 7, text.find('(', at) - at - 7));
            const Entry entry = {text.substr(at, read - at), path.filename().string(), line};
            if (!entries_.emplace(name, entry).second) stop("two kernels have the name " + name);
            line += static_cast<int>(std::count(&text[at], &text[read], '\n'));
        }
    }

    std::map<std::string, Entry> entries_;
    std::map<std::string, Kernel> kernels_;
};

// As the library was loaded: who loads it may change the environment for that moment.
const std::string folder = [] {
    const char* const name = std::getenv("H2O_EMULATION_PTX");
    return std::string(name ? name : "");
}();

const Kernel& kernel_at(const void* function) try {
    static Library library(folder);
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

// Warps run in an order of chance, each for a while, until all have ended.
void run_block(std::vector<Warp>& warps) {
    for (Warp& warp : warps) warp.begin_block();
    watch_stack(nullptr, 0);
    for (;;) {
        std::vector<Warp*> ready;
        bool at_barrier = false;
        for (Warp& warp : warps) {
            const Warp::State state = warp.state();
            if (state == Warp::State::kReady) ready.push_back(&warp);
            at_barrier |= state == Warp::State::kBarrier;
        }
        if (!ready.empty()) {
            ready[random_bits() % ready.size()]->run();
        } else if (at_barrier) {
            watch_barrier();
            for (Warp& warp : warps) warp.open_barrier();
        } else {
            return;
        }
    }
}

}  // namespace

bool is_wanted() {
    return !folder.empty();
}

void run_grid(const void* function, dim3 grid, dim3 block, size_t shared_bytes,
              const std::vector<Argument>& arguments) {
    const Kernel& kernel = kernel_at(function);
    if (block.x % kLanes != 0 || block.y != 1 || block.z != 1) stop("blocks are whole warps in x");
    if (block.x > kernel.most_threads) stop(kernel.name + " is compiled for fewer threads a block");
    const std::vector<unsigned char> parameters = parameters_of(kernel, arguments);
    std::vector<Warp> warps;
    for (unsigned first = 0; first < block.x; first += kLanes) warps.emplace_back(kernel, parameters, first);
    run_blocks(grid, block, shared_bytes, [&] { run_block(warps); });
}

}  // namespace emulator::ptx

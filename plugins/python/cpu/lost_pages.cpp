#include "lost_pages.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>

namespace h2o::python::cpu {
namespace {

constexpr size_t kMostFolders = 64;
std::array<std::atomic<const char*>, kMostFolders> folders;  // what the handler reads
std::array<size_t, kMostFolders> owners;                     // how many objects each place has
std::mutex lock;                                             // of whoever changes them
struct sigaction before;

bool is_in_folder(const char* path) {
    for (const auto& folder : folders) {
        const char* name = folder.load();
        if (name == nullptr) continue;
        const size_t length = std::strlen(name);
        if (std::strncmp(path, name, length) == 0 && path[length] == '/') return true;
    }
    return false;
}

// The end of the mapping at this address if it is of a file in the folders, else 0. A load of weights has
// faulted, which interrupts no other function of the C library: these may be called.
uintptr_t end_of_mapping(uintptr_t address) {
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    if (maps == nullptr) return 0;
    char line[4352];  // a path and what is before it
    uintptr_t found = 0;
    while (found == 0 && std::fgets(line, sizeof line, maps) != nullptr) {
        uintptr_t begin = 0, end = 0;
        int path = 0;
        if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &begin, &end, &path) == 2 &&
            begin <= address && address < end && path > 0 && is_in_folder(line + path))
            found = end;
    }
    std::fclose(maps);
    return found;
}

void on_bus_error(int, siginfo_t* info, void*) {
    const int error = errno;
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    const uintptr_t end = info->si_code == BUS_ADRERR ? end_of_mapping(address) : 0;
    const uintptr_t page = address & ~(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
    if (end == 0 || mmap(reinterpret_cast<void*>(page), end - page, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        sigaction(SIGBUS, &before, nullptr);  // the load is tried again, and ends as it does without us
    errno = error;
}

// A name that the handler may read at any time: it stays.
const char* kept(const std::string& folder) {
    static std::set<std::string> names;
    return names.insert(folder).first->c_str();
}

void handle_bus_errors() {
    struct sigaction action{};
    struct sigaction current{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGBUS, &action, &current);
    // Only the first one: a later one may call ours, and the two would call each other for ever.
    static const struct sigaction first = current;
    before = first;
}

}  // namespace

LostPages::LostPages(const std::string& folder) : place_(0) {
    const std::lock_guard<std::mutex> guard(lock);
    const char* const name = kept(folder);
    while (place_ < kMostFolders && folders[place_].load() != name) ++place_;
    if (place_ == kMostFolders)
        for (place_ = 0; place_ < kMostFolders && folders[place_].load() != nullptr;) ++place_;
    if (place_ == kMostFolders) return;
    ++owners[place_];
    folders[place_].store(name);
    handle_bus_errors();
}

LostPages::~LostPages() {
    const std::lock_guard<std::mutex> guard(lock);
    if (place_ < kMostFolders && --owners[place_] == 0) folders[place_].store(nullptr);
}

}  // namespace h2o::python::cpu

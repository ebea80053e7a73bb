// dladdr knows what a library exports; kernels are not exported, but stand in its table of symbols.

#include "symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <vector>

namespace emulator::ptx {
namespace {

using Symbols = std::map<uint64_t, std::string>;  // by address, as the file has it

template <class T>
T at(const std::vector<char>& file, size_t offset) {
    if (offset + sizeof(T) > file.size()) throw std::runtime_error("an ELF file that ends early");
    T value;
    std::memcpy(&value, &file[offset], sizeof(T));
    return value;
}

Symbols symbols_of(const char* path) {
    std::ifstream stream(path, std::ios::binary);
    const std::vector<char> file((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    const auto header = at<ElfW(Ehdr)>(file, 0);
    Symbols symbols;
    const auto section = [&](size_t index) {
        return at<ElfW(Shdr)>(file, header.e_shoff + index * header.e_shentsize);
    };
    for (size_t s = 0; s < header.e_shnum; ++s) {
        const auto table = section(s);
        if (table.sh_type != SHT_SYMTAB) continue;
        const auto names = section(table.sh_link);
        for (size_t offset = 0; offset < table.sh_size; offset += sizeof(ElfW(Sym))) {
            const auto symbol = at<ElfW(Sym)>(file, table.sh_offset + offset);
            if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC)
                symbols[symbol.st_value] = &file.at(names.sh_offset + symbol.st_name);
        }
    }
    return symbols;
}

}  // namespace

std::string symbol_at(const void* address) {
    static std::map<std::string, Symbols> files;
    Dl_info library;
    link_map* map = nullptr;
    if (!dladdr1(address, &library, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP))
        throw std::runtime_error("an address of no file");
    const char* const path = map->l_name && *map->l_name ? map->l_name : "/proc/self/exe";
    auto known = files.find(path);
    if (known == files.end()) known = files.emplace(path, symbols_of(path)).first;
    const auto found = known->second.find(reinterpret_cast<uint64_t>(address) - map->l_addr);
    if (found == known->second.end())
        throw std::runtime_error("a kernel without a symbol: is the file stripped?");
    return found->second;
}

}  // namespace emulator::ptx

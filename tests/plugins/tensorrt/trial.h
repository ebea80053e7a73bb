// A node on the device: its tensors by position, floats drawn at random, integers as a check sets them; and
// its outputs beside the float64 reference.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cases.h"
#include "conformance.h"

namespace conformance {

// Sizes of the nodes, and of the memory that those with one get: rows below 60 of the cache.
constexpr int kN = 20, kHeads = 4, kKvHeads = 2, kD = 64, kDV = 32, kSlots = 12;
using Memory = std::vector<int32_t>;  // [kKvHeads, kSlots]

class Trial {
  public:
    Trial(const Node& node, h2o_dtype model, const Creators& creators, std::mt19937& random);

    template <class T>
    void set(size_t input, const std::vector<T>& values) {
        std::memcpy(integers[input]->host().data(), values.data(), values.size() * sizeof(T));
        integers[input]->reset();
    }
    const std::vector<double>& in(size_t i) const { return floats[i]->exact; }
    std::vector<double> out(size_t i) const;

    void run();
    void compare(const char* what, size_t output, const std::vector<double>& exact,
                 const std::vector<double>& low) const;

    const Node& node;
    const test::Case c;
    std::mt19937& random;
    std::vector<std::unique_ptr<test::Numbers>> floats;  // of the inputs; null for integers
    std::vector<std::unique_ptr<test::Buffer>> integers;
    std::vector<std::unique_ptr<test::Buffer>> outputs;
    Memory memory;

  private:
    const Creators& creators_;
};

inline bool always(int, int) {
    return true;
}
inline const double* no_value(int, int) {
    return nullptr;
}

// Key j of set s in token-major keys; with `memory`, j is looked up there first.
struct TokenMajor {
    const std::vector<double>& values;
    const Memory* memory = nullptr;
    int d = kD;
    const double* operator()(int set, int j) const {
        const int row = memory ? (*memory)[size_t(set) * kSlots + j] : j;
        return &values[(size_t(row) * kKvHeads + set) * d];
    }
};
struct SetMajor {
    const std::vector<double>& values;
    int d = kD;
    const double* operator()(int set, int j) const { return &values[(size_t(set) * kSlots + j) * d]; }
};

// Exact, and as rounded as the node's type is.
template <class K, class V, class S>
std::pair<test::Reference, test::Reference> both(const test::Case& c, const std::vector<double>& q, int n,
                                                 int keys, K&& key, V&& value, S&& visible) {
    return {test::attend(c.shape, q, n, keys, key, value, visible, test::Precision::kExact),
            test::attend(c.shape, q, n, keys, key, value, visible, test::yardstick(c))};
}

}  // namespace conformance

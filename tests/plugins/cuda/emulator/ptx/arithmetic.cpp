// Arithmetic of PTX, each instruction as its manual says. What the manual leaves undefined ends the program.

#include <cfenv>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "../cuda_fp16.h"
#include "../races.h"
#include "warp.h"

namespace emulator::ptx {
namespace {

using half = emulated_half;
using Table = std::unordered_map<std::string, Execute>;
using I = const Instruction&;

template <class T>
using Unsigned = std::make_unsigned_t<T>;

template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 2, int32_t, int64_t>,
                                std::conditional_t<sizeof(T) == 2, uint32_t, uint64_t>>;

// The whole product of two numbers.
template <class T>
using Product = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;

template <class T, class F>
void unary(Warp& w, I i, F f) {
    const Register& x = w.source(i, 1);
    w.assign(i, [&](unsigned lane) { return f(from_bits<T>(x[lane])); });
}
template <class T, class U = T, class F>
void binary(Warp& w, I i, F f) {
    const Register &x = w.source(i, 1), &y = w.source(i, 2);
    w.assign(i, [&](unsigned lane) { return f(from_bits<T>(x[lane]), from_bits<U>(y[lane])); });
}
template <class T, class U = T, class F>
void ternary(Warp& w, I i, F f) {
    const Register &x = w.source(i, 1), &y = w.source(i, 2), &z = w.source(i, 3);
    w.assign(i, [&](unsigned lane) {
        return f(from_bits<T>(x[lane]), from_bits<T>(y[lane]), from_bits<U>(z[lane]));
    });
}

template <class T>
void check_division(T x, T y) {
    if (y == 0) fail("a division by zero");
    if (std::is_signed_v<T> && x == std::numeric_limits<T>::min() && y == static_cast<T>(-1))
        fail("a division that overflows");
}

template <class T>
void add_integers(Table& table, const std::string& type) {
    using U = Unsigned<T>;
    table["add." + type] = [](Warp& w, I i) {
        binary<U>(w, i, [](U x, U y) { return static_cast<U>(x + y); });
    };
    table["sub." + type] = [](Warp& w, I i) {
        binary<U>(w, i, [](U x, U y) { return static_cast<U>(x - y); });
    };
    table["neg." + type] = [](Warp& w, I i) { unary<U>(w, i, [](U x) { return static_cast<U>(0 - x); }); };
    table["min." + type] = [](Warp& w, I i) { binary<T>(w, i, [](T x, T y) { return std::min(x, y); }); };
    table["max." + type] = [](Warp& w, I i) { binary<T>(w, i, [](T x, T y) { return std::max(x, y); }); };
    table["mul.lo." + type] = [](Warp& w, I i) {
        binary<T>(w, i, [](T x, T y) { return static_cast<U>(Product<T>(x) * y); });
    };
    table["mul.hi." + type] = [](Warp& w, I i) {
        binary<T>(w, i, [](T x, T y) { return static_cast<U>((Product<T>(x) * y) >> (8 * sizeof(T))); });
    };
    table["mul.wide." + type] = [](Warp& w, I i) {
        binary<T>(w, i, [](T x, T y) { return static_cast<Wide<T>>(Product<T>(x) * y); });
    };
    table["mad.lo." + type] = [](Warp& w, I i) {
        ternary<T>(w, i, [](T x, T y, T z) { return static_cast<U>(Product<T>(x) * y + z); });
    };
    table["div." + type] = [](Warp& w, I i) {
        binary<T>(w, i, [](T x, T y) { return check_division(x, y), static_cast<T>(x / y); });
    };
    table["rem." + type] = [](Warp& w, I i) {
        binary<T>(w, i, [](T x, T y) { return check_division(x, y), static_cast<T>(x % y); });
    };
    // A shift by all bits or more leaves none, or the sign.
    table["shr." + type] = [](Warp& w, I i) {
        binary<T, uint32_t>(w, i, [](T x, uint32_t by) {
            constexpr uint32_t kBits = 8 * sizeof(T);
            const T none = std::is_signed_v<T> && x < 0 ? static_cast<T>(-1) : T{0};
            return by >= kBits ? none : static_cast<T>(x >> by % kBits);
        });
    };
}

template <class T>
void add_bits(Table& table, const std::string& type) {
    table["and." + type] = [](Warp& w, I i) {
        binary<T>(w, i, [](T x, T y) { return static_cast<T>(x & y); });
    };
    table["or." + type] = [](Warp& w, I i) {
        binary<T>(w, i, [](T x, T y) { return static_cast<T>(x | y); });
    };
    table["xor." + type] = [](Warp& w, I i) {
        binary<T>(w, i, [](T x, T y) { return static_cast<T>(x ^ y); });
    };
    table["shl." + type] = [](Warp& w, I i) {
        binary<T, uint32_t>(w, i, [](T x, uint32_t by) {
            constexpr uint32_t kBits = 8 * sizeof(T);
            return by >= kBits ? T{0} : static_cast<T>(x << by % kBits);
        });
    };
    if constexpr (!std::is_same_v<T, bool>)
        table["not." + type] = [](Warp& w, I i) { unary<T>(w, i, [](T x) { return static_cast<T>(~x); }); };
}

template <class T>
void add_moves(Table& table, const std::string& type) {
    table["mov." + type] = [](Warp& w, I i) { unary<T>(w, i, [](T x) { return x; }); };
    table["cvta.to.global." + type] = table["mov." + type];  // one address space
    table["selp." + type] = [](Warp& w, I i) {
        ternary<T, bool>(w, i, [](T x, T y, bool first) { return first ? x : y; });
    };
}

enum class Comparison { kEq, kNe, kLt, kLe, kGt, kGe };

template <Comparison C, class T>
bool compare(T x, T y) {
    switch (C) {
        case Comparison::kEq:
            return x == y;
        case Comparison::kNe:
            return x < y || x > y;  // false of NaN
        case Comparison::kLt:
            return x < y;
        case Comparison::kLe:
            return x <= y;
        case Comparison::kGt:
            return x > y;
        case Comparison::kGe:
            return x >= y;
    }
    return false;
}

template <Comparison C, class T>
void add_comparison(Table& table, const std::string& name, const std::string& type) {
    table["setp." + name + "." + type] = [](Warp& w, I i) { binary<T>(w, i, compare<C, T>); };
    if constexpr (std::is_floating_point_v<T>)  // true of NaN
        table["setp." + name + "u." + type] = [](Warp& w, I i) {
            binary<T>(w, i, [](T x, T y) { return x != x || y != y || compare<C>(x, y); });
        };
}

template <class T>
void add_comparisons(Table& table, const std::string& type) {
    add_comparison<Comparison::kEq, T>(table, "eq", type);
    add_comparison<Comparison::kNe, T>(table, "ne", type);
    add_comparison<Comparison::kLt, T>(table, "lt", type);
    add_comparison<Comparison::kLe, T>(table, "le", type);
    add_comparison<Comparison::kGt, T>(table, "gt", type);
    add_comparison<Comparison::kGe, T>(table, "ge", type);
}

// Rounded to an integer and brought into its range; NaN becomes 0.
template <class T>
T to_integer(float x, float (*round)(float)) {
    if (x != x) return 0;
    const double rounded = round(x);
    if (rounded <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    if (rounded >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    return static_cast<T>(rounded);
}

template <class To, class From>
void add_conversion(Table& table, const std::string& to, const std::string& from) {
    constexpr bool kToFloat = std::is_same_v<To, float>;
    table[std::string("cvt.") + (kToFloat ? "rn." : "") + to + "." + from] = [](Warp& w, I i) {
        unary<From>(w, i, [](From x) { return static_cast<To>(x); });
    };
}

template <class From>
void add_conversions(Table& table, const std::string& from) {
    add_conversion<int8_t, From>(table, "s8", from);
    add_conversion<uint8_t, From>(table, "u8", from);
    add_conversion<int16_t, From>(table, "s16", from);
    add_conversion<uint16_t, From>(table, "u16", from);
    add_conversion<int32_t, From>(table, "s32", from);
    add_conversion<uint32_t, From>(table, "u32", from);
    add_conversion<int64_t, From>(table, "s64", from);
    add_conversion<uint64_t, From>(table, "u64", from);
    add_conversion<float, From>(table, "f32", from);
}

float flushed(float x) {
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x;
}

// Sums in double precision, of floats and into floats.
void add_doubles(Table& table) {
    using D = double;
    table["add.f64"] = [](Warp& w, I i) { binary<D>(w, i, [](D x, D y) { return x + y; }); };
    table["sub.f64"] = [](Warp& w, I i) { binary<D>(w, i, [](D x, D y) { return x - y; }); };
    table["cvt.f64.f32"] = [](Warp& w, I i) { unary<float>(w, i, [](float x) { return D{x}; }); };
    table["cvt.rn.f32.f64"] = [](Warp& w, I i) { unary<D>(w, i, [](D x) { return static_cast<float>(x); }); };
    add_moves<D>(table, "f64");
}

void add_floats(Table& table) {
    using F = float;
    table["add.f32"] = [](Warp& w, I i) { binary<F>(w, i, [](F x, F y) { return x + y; }); };
    table["sub.f32"] = [](Warp& w, I i) { binary<F>(w, i, [](F x, F y) { return x - y; }); };
    table["mul.f32"] = [](Warp& w, I i) { binary<F>(w, i, [](F x, F y) { return x * y; }); };
    table["div.rn.f32"] = [](Warp& w, I i) { binary<F>(w, i, [](F x, F y) { return x / y; }); };
    table["min.f32"] = [](Warp& w, I i) { binary<F>(w, i, [](F x, F y) { return std::fmin(x, y); }); };
    table["max.f32"] = [](Warp& w, I i) { binary<F>(w, i, [](F x, F y) { return std::fmax(x, y); }); };
    table["fma.rn.f32"] = [](Warp& w, I i) {
        ternary<F>(w, i, [](F x, F y, F z) { return std::fma(x, y, z); });
    };
    table["fma.rm.f32"] = [](Warp& w, I i) {
        std::fesetround(FE_DOWNWARD);
        ternary<F>(w, i, [](F x, F y, F z) { return std::fma(x, y, z); });
        std::fesetround(FE_TONEAREST);
    };
    table["sqrt.rn.f32"] = [](Warp& w, I i) { unary<F>(w, i, [](F x) { return std::sqrt(x); }); };
    table["rcp.rn.f32"] = [](Warp& w, I i) { unary<F>(w, i, [](F x) { return 1 / x; }); };
    table["rcp.approx.ftz.f32"] = [](Warp& w, I i) {
        unary<F>(w, i, [](F x) { return flushed(1 / flushed(x)); });
    };
    table["copysign.f32"] = [](Warp& w, I i) {
        binary<F>(w, i, [](F sign, F x) { return std::copysign(x, sign); });
    };
    table["neg.f32"] = [](Warp& w, I i) { unary<F>(w, i, [](F x) { return -x; }); };
    table["abs.f32"] = [](Warp& w, I i) { unary<F>(w, i, [](F x) { return std::fabs(x); }); };
    table["ex2.approx.ftz.f32"] = [](Warp& w, I i) {
        unary<F>(w, i, [](F x) { return flushed(std::exp2(flushed(x))); });
    };
    table["setp.nan.f32"] = [](Warp& w, I i) { binary<F>(w, i, [](F x, F y) { return x != x || y != y; }); };
    table["cvt.sat.f32.f32"] = [](Warp& w, I i) {
        unary<F>(w, i, [](F x) { return x > 0 ? std::min(x, 1.f) : 0.f; });
    };
    table["cvt.rni.f32.f32"] = [](Warp& w, I i) { unary<F>(w, i, [](F x) { return std::nearbyint(x); }); };
    table["cvt.rzi.s32.f32"] = [](Warp& w, I i) {
        unary<F>(w, i, [](F x) { return to_integer<int32_t>(x, std::trunc); });
    };
    table["cvt.rni.s32.f32"] = [](Warp& w, I i) {
        unary<F>(w, i, [](F x) { return to_integer<int32_t>(x, std::nearbyint); });
    };
    table["cvt.rn.f16.f32"] = [](Warp& w, I i) { unary<F>(w, i, [](F x) { return static_cast<half>(x); }); };
    table["cvt.f32.f16"] = [](Warp& w, I i) { unary<half>(w, i, [](half x) { return static_cast<F>(x); }); };
}

// Two halves in a word.
struct Pair {
    half low, high;
};

half fma_half(half x, half y, half z) {
    return __emulated_fma({x}, {y}, {z}).value;
}

void add_pairs(Table& table) {
    table["cvt.rn.f16x2.f32"] = [](Warp& w, I i) {
        binary<float>(w, i, [](float high, float low) {
            return Pair{static_cast<half>(low), static_cast<half>(high)};
        });
    };
    table["fma.rn.f16x2"] = [](Warp& w, I i) {
        ternary<Pair>(w, i, [](Pair x, Pair y, Pair z) {
            return Pair{fma_half(x.low, y.low, z.low), fma_half(x.high, y.high, z.high)};
        });
    };
    table["mul.f16x2"] = [](Warp& w, I i) {
        binary<Pair>(w, i, [](Pair x, Pair y) {
            const auto zero = static_cast<half>(-0.f);
            return Pair{fma_half(x.low, y.low, zero), fma_half(x.high, y.high, zero)};
        });
    };
    table["sub.f16x2"] = [](Warp& w, I i) {
        binary<Pair>(w, i, [](Pair x, Pair y) {
            const auto minus = static_cast<half>(-1.f);
            return Pair{fma_half(y.low, minus, x.low), fma_half(y.high, minus, x.high)};
        });
    };
    table["mov.b32.pack"] = [](Warp& w, I i) {
        binary<half>(w, i, [](half low, half high) { return Pair{low, high}; });
    };
    table["mov.b32.unpack"] = [](Warp& w, I i) {
        w.each([&](unsigned lane) {
            const auto pair = w.get<Pair>(i, 2, lane);
            w.set(i, 0, lane, pair.low);
            w.set(i, 1, lane, pair.high);
        });
    };
    table["mov.b64.pack"] = [](Warp& w, I i) {
        binary<uint32_t>(w, i, [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; });
    };
    table["mov.b64.unpack"] = [](Warp& w, I i) {
        w.each([&](unsigned lane) {
            const auto both = w.get<uint64_t>(i, 2, lane);
            w.set(i, 0, lane, static_cast<uint32_t>(both));
            w.set(i, 1, lane, static_cast<uint32_t>(both >> 32));
        });
    };
}

void add_single_bits(Table& table) {
    table["not.pred"] = [](Warp& w, I i) { unary<bool>(w, i, [](bool x) { return !x; }); };
    table["popc.b32"] = [](Warp& w, I i) {
        unary<uint32_t>(w, i, [](uint32_t x) { return __builtin_popcount(x); });
    };
    table["bfi.b32"] = [](Warp& w, I i) {
        w.assign(i, [&](unsigned lane) {
            const auto from = w.get<uint32_t>(i, 1, lane), into = w.get<uint32_t>(i, 2, lane);
            const auto first = w.get<uint8_t>(i, 3, lane), length = w.get<uint8_t>(i, 4, lane);
            const uint64_t mask = first > 31 ? 0 : ((uint64_t{1} << std::min<int>(length, 32)) - 1) << first;
            const uint64_t moved = first > 31 ? 0 : uint64_t{from} << first;
            return static_cast<uint32_t>((into & ~mask) | (moved & mask));
        });
    };
    table["prmt.b32"] = [](Warp& w, I i) {
        ternary<uint32_t>(w, i, [](uint32_t low, uint32_t high, uint32_t chosen) {
            const uint64_t bytes = low | uint64_t{high} << 32;
            uint32_t result = 0;
            for (unsigned at = 0; at < 4; ++at) {
                const uint32_t choice = chosen >> 4 * at;
                uint32_t byte = bytes >> 8 * (choice & 7) & 0xff;
                if (choice & 8) byte = byte & 0x80 ? 0xff : 0;  // its sign
                result |= byte << 8 * at;
            }
            return result;
        });
    };
    table["lop3.b32"] = [](Warp& w, I i) {
        ternary<uint32_t>(w, i, [&](uint32_t x, uint32_t y, uint32_t z) {
            uint32_t result = 0;
            for (unsigned bit = 0; bit < 8; ++bit) {
                if (!(i.table >> bit & 1)) continue;
                result |= (bit & 4 ? x : ~x) & (bit & 2 ? y : ~y) & (bit & 1 ? z : ~z);
            }
            return result;
        });
    };
}

template <class T>
void add_integer_type(Table& table, const std::string& type) {
    add_integers<T>(table, type);
    add_comparisons<T>(table, type);
    add_conversions<T>(table, type);
    add_moves<T>(table, type);
}

Table make_table() {
    Table table;
    add_integer_type<int16_t>(table, "s16");
    add_integer_type<uint16_t>(table, "u16");
    add_integer_type<int32_t>(table, "s32");
    add_integer_type<uint32_t>(table, "u32");
    add_integer_type<int64_t>(table, "s64");
    add_integer_type<uint64_t>(table, "u64");
    add_conversions<int8_t>(table, "s8");
    add_conversions<uint8_t>(table, "u8");
    add_bits<bool>(table, "pred");
    add_bits<uint16_t>(table, "b16");
    add_bits<uint32_t>(table, "b32");
    add_bits<uint64_t>(table, "b64");
    add_moves<bool>(table, "pred");
    add_moves<uint16_t>(table, "b16");
    add_moves<uint32_t>(table, "b32");
    add_moves<uint64_t>(table, "b64");
    add_moves<float>(table, "f32");
    add_comparisons<float>(table, "f32");
    add_comparisons<uint16_t>(table, "b16");
    add_comparisons<uint32_t>(table, "b32");
    add_comparisons<uint64_t>(table, "b64");
    add_floats(table);
    add_doubles(table);
    add_pairs(table);
    add_single_bits(table);
    table["bra"] = table["bra.uni"] = [](Warp& w, I i) { w.jump(i.target); };
    table["ret"] = [](Warp& w, I) { w.finish(); };
    return table;
}

}  // namespace

Execute find_arithmetic(const std::string& opcode) {
    static const Table table = make_table();
    const auto found = table.find(opcode);
    return found == table.end() ? nullptr : found->second;
}

}  // namespace emulator::ptx

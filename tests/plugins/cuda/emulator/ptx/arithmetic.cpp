// Arithmetic of PTX, each instruction as its manual says. What the manual leaves undefined ends the program.

#include <cfenv>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "../cuda_fp16.h"
#include "../races.h"
#include "kernel.h"

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
void unary(Thread& t, I i, F f) {
    t.set(i, 0, f(t.get<T>(i, 1)));
}
template <class T, class F>
void binary(Thread& t, I i, F f) {
    t.set(i, 0, f(t.get<T>(i, 1), t.get<T>(i, 2)));
}
template <class T, class F>
void ternary(Thread& t, I i, F f) {
    t.set(i, 0, f(t.get<T>(i, 1), t.get<T>(i, 2), t.get<T>(i, 3)));
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
    table["add." + type] = [](Thread& t, I i) {
        binary<U>(t, i, [](U x, U y) { return static_cast<U>(x + y); });
    };
    table["sub." + type] = [](Thread& t, I i) {
        binary<U>(t, i, [](U x, U y) { return static_cast<U>(x - y); });
    };
    table["neg." + type] = [](Thread& t, I i) { unary<U>(t, i, [](U x) { return static_cast<U>(0 - x); }); };
    table["min." + type] = [](Thread& t, I i) { binary<T>(t, i, [](T x, T y) { return std::min(x, y); }); };
    table["max." + type] = [](Thread& t, I i) { binary<T>(t, i, [](T x, T y) { return std::max(x, y); }); };
    table["mul.lo." + type] = [](Thread& t, I i) {
        binary<T>(t, i, [](T x, T y) { return static_cast<U>(Product<T>(x) * y); });
    };
    table["mul.hi." + type] = [](Thread& t, I i) {
        binary<T>(t, i, [](T x, T y) { return static_cast<U>((Product<T>(x) * y) >> (8 * sizeof(T))); });
    };
    table["mul.wide." + type] = [](Thread& t, I i) {
        binary<T>(t, i, [](T x, T y) { return static_cast<Wide<T>>(Product<T>(x) * y); });
    };
    table["mad.lo." + type] = [](Thread& t, I i) {
        ternary<T>(t, i, [](T x, T y, T z) { return static_cast<U>(Product<T>(x) * y + z); });
    };
    table["div." + type] = [](Thread& t, I i) {
        binary<T>(t, i, [](T x, T y) { return check_division(x, y), static_cast<T>(x / y); });
    };
    table["rem." + type] = [](Thread& t, I i) {
        binary<T>(t, i, [](T x, T y) { return check_division(x, y), static_cast<T>(x % y); });
    };
    // A shift by all bits or more leaves none, or the sign.
    table["shr." + type] = [](Thread& t, I i) {
        constexpr uint32_t kBits = 8 * sizeof(T);
        const T x = t.get<T>(i, 1);
        const uint32_t by = t.get<uint32_t>(i, 2);
        const T none = std::is_signed_v<T> && x < 0 ? static_cast<T>(-1) : T{0};
        t.set(i, 0, by >= kBits ? none : static_cast<T>(x >> by));
    };
}

template <class T>
void add_bits(Table& table, const std::string& type) {
    table["and." + type] = [](Thread& t, I i) {
        binary<T>(t, i, [](T x, T y) { return static_cast<T>(x & y); });
    };
    table["or." + type] = [](Thread& t, I i) {
        binary<T>(t, i, [](T x, T y) { return static_cast<T>(x | y); });
    };
    table["xor." + type] = [](Thread& t, I i) {
        binary<T>(t, i, [](T x, T y) { return static_cast<T>(x ^ y); });
    };
    table["shl." + type] = [](Thread& t, I i) {
        const uint32_t by = t.get<uint32_t>(i, 2);
        t.set(i, 0, by >= 8 * sizeof(T) ? T{0} : static_cast<T>(t.get<T>(i, 1) << by));
    };
    if constexpr (!std::is_same_v<T, bool>)
        table["not." + type] = [](Thread& t, I i) { unary<T>(t, i, [](T x) { return static_cast<T>(~x); }); };
}

template <class T>
void add_moves(Table& table, const std::string& type) {
    table["mov." + type] = [](Thread& t, I i) { t.set(i, 0, t.get<T>(i, 1)); };
    table["cvta.to.global." + type] = table["mov." + type];  // one address space
    table["selp." + type] = [](Thread& t, I i) { t.set(i, 0, t.get<T>(i, t.get<bool>(i, 3) ? 1 : 2)); };
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
    table["setp." + name + "." + type] = [](Thread& t, I i) { binary<T>(t, i, compare<C, T>); };
    if constexpr (std::is_floating_point_v<T>)  // true of NaN
        table["setp." + name + "u." + type] = [](Thread& t, I i) {
            binary<T>(t, i, [](T x, T y) { return x != x || y != y || compare<C>(x, y); });
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
    table[std::string("cvt.") + (kToFloat ? "rn." : "") + to + "." + from] = [](Thread& t, I i) {
        unary<From>(t, i, [](From x) { return static_cast<To>(x); });
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

float fma_rounded_down(float x, float y, float z) {
    std::fesetround(FE_DOWNWARD);
    volatile float result = std::fma(x, y, z);
    std::fesetround(FE_TONEAREST);
    return result;
}

float flushed(float x) {
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x;
}

// Sums in double precision, of floats and into floats.
void add_doubles(Table& table) {
    using D = double;
    table["add.f64"] = [](Thread& t, I i) { binary<D>(t, i, [](D x, D y) { return x + y; }); };
    table["sub.f64"] = [](Thread& t, I i) { binary<D>(t, i, [](D x, D y) { return x - y; }); };
    table["cvt.f64.f32"] = [](Thread& t, I i) { unary<float>(t, i, [](float x) { return D{x}; }); };
    table["cvt.rn.f32.f64"] = [](Thread& t, I i) {
        unary<D>(t, i, [](D x) { return static_cast<float>(x); });
    };
    add_moves<D>(table, "f64");
}

void add_floats(Table& table) {
    using F = float;
    table["add.f32"] = [](Thread& t, I i) { binary<F>(t, i, [](F x, F y) { return x + y; }); };
    table["sub.f32"] = [](Thread& t, I i) { binary<F>(t, i, [](F x, F y) { return x - y; }); };
    table["mul.f32"] = [](Thread& t, I i) { binary<F>(t, i, [](F x, F y) { return x * y; }); };
    table["div.rn.f32"] = [](Thread& t, I i) { binary<F>(t, i, [](F x, F y) { return x / y; }); };
    table["min.f32"] = [](Thread& t, I i) { binary<F>(t, i, [](F x, F y) { return std::fmin(x, y); }); };
    table["max.f32"] = [](Thread& t, I i) { binary<F>(t, i, [](F x, F y) { return std::fmax(x, y); }); };
    table["fma.rn.f32"] = [](Thread& t, I i) {
        ternary<F>(t, i, [](F x, F y, F z) { return std::fma(x, y, z); });
    };
    table["fma.rm.f32"] = [](Thread& t, I i) { ternary<F>(t, i, fma_rounded_down); };
    table["sqrt.rn.f32"] = [](Thread& t, I i) { unary<F>(t, i, [](F x) { return std::sqrt(x); }); };
    table["rcp.rn.f32"] = [](Thread& t, I i) { unary<F>(t, i, [](F x) { return 1 / x; }); };
    table["rcp.approx.ftz.f32"] = [](Thread& t, I i) {
        unary<F>(t, i, [](F x) { return flushed(1 / flushed(x)); });
    };
    table["copysign.f32"] = [](Thread& t, I i) {
        binary<F>(t, i, [](F sign, F x) { return std::copysign(x, sign); });
    };
    table["neg.f32"] = [](Thread& t, I i) { unary<F>(t, i, [](F x) { return -x; }); };
    table["abs.f32"] = [](Thread& t, I i) { unary<F>(t, i, [](F x) { return std::fabs(x); }); };
    table["ex2.approx.ftz.f32"] = [](Thread& t, I i) {
        unary<F>(t, i, [](F x) { return flushed(std::exp2(flushed(x))); });
    };
    table["setp.nan.f32"] = [](Thread& t, I i) {
        binary<F>(t, i, [](F x, F y) { return x != x || y != y; });
    };
    table["cvt.sat.f32.f32"] = [](Thread& t, I i) {
        unary<F>(t, i, [](F x) { return x > 0 ? std::min(x, 1.f) : 0.f; });
    };
    table["cvt.rni.f32.f32"] = [](Thread& t, I i) { unary<F>(t, i, [](F x) { return std::nearbyint(x); }); };
    table["cvt.rzi.s32.f32"] = [](Thread& t, I i) {
        unary<F>(t, i, [](F x) { return to_integer<int32_t>(x, std::trunc); });
    };
    table["cvt.rni.s32.f32"] = [](Thread& t, I i) {
        unary<F>(t, i, [](F x) { return to_integer<int32_t>(x, std::nearbyint); });
    };
    table["cvt.rn.f16.f32"] = [](Thread& t, I i) {
        unary<F>(t, i, [](F x) { return static_cast<half>(x); });
    };
    table["cvt.f32.f16"] = [](Thread& t, I i) {
        unary<half>(t, i, [](half x) { return static_cast<F>(x); });
    };
}

// Two halves in a word.
struct Pair {
    half low, high;
};

half fma_half(half x, half y, half z) {
    return __emulated_fma({x}, {y}, {z}).value;
}

void add_pairs(Table& table) {
    table["cvt.rn.f16x2.f32"] = [](Thread& t, I i) {
        binary<float>(t, i, [](float high, float low) {
            return Pair{static_cast<half>(low), static_cast<half>(high)};
        });
    };
    table["fma.rn.f16x2"] = [](Thread& t, I i) {
        ternary<Pair>(t, i, [](Pair x, Pair y, Pair z) {
            return Pair{fma_half(x.low, y.low, z.low), fma_half(x.high, y.high, z.high)};
        });
    };
    table["mul.f16x2"] = [](Thread& t, I i) {
        binary<Pair>(t, i, [](Pair x, Pair y) {
            const auto zero = static_cast<half>(-0.f);
            return Pair{fma_half(x.low, y.low, zero), fma_half(x.high, y.high, zero)};
        });
    };
    table["sub.f16x2"] = [](Thread& t, I i) {
        binary<Pair>(t, i, [](Pair x, Pair y) {
            const auto minus = static_cast<half>(-1.f);
            return Pair{fma_half(y.low, minus, x.low), fma_half(y.high, minus, x.high)};
        });
    };
    table["mov.b32.pack"] = [](Thread& t, I i) {
        binary<half>(t, i, [](half low, half high) { return Pair{low, high}; });
    };
    table["mov.b32.unpack"] = [](Thread& t, I i) {
        const auto pair = t.get<Pair>(i, 2);
        t.set(i, 0, pair.low);
        t.set(i, 1, pair.high);
    };
    table["mov.b64.pack"] = [](Thread& t, I i) {
        binary<uint32_t>(t, i, [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; });
    };
    table["mov.b64.unpack"] = [](Thread& t, I i) {
        const auto both = t.get<uint64_t>(i, 2);
        t.set(i, 0, static_cast<uint32_t>(both));
        t.set(i, 1, static_cast<uint32_t>(both >> 32));
    };
}

void add_single_bits(Table& table) {
    table["not.pred"] = [](Thread& t, I i) { unary<bool>(t, i, [](bool x) { return !x; }); };
    table["popc.b32"] = [](Thread& t, I i) {
        unary<uint32_t>(t, i, [](uint32_t x) { return __builtin_popcount(x); });
    };
    table["bfi.b32"] = [](Thread& t, I i) {
        const auto from = t.get<uint32_t>(i, 1), into = t.get<uint32_t>(i, 2);
        const auto first = t.get<uint8_t>(i, 3), length = t.get<uint8_t>(i, 4);
        const uint64_t mask = first > 31 ? 0 : ((uint64_t{1} << std::min<int>(length, 32)) - 1) << first;
        const uint64_t moved = first > 31 ? 0 : uint64_t{from} << first;
        t.set(i, 0, static_cast<uint32_t>((into & ~mask) | (moved & mask)));
    };
    table["prmt.b32"] = [](Thread& t, I i) {
        const uint64_t bytes = t.get<uint32_t>(i, 1) | uint64_t{t.get<uint32_t>(i, 2)} << 32;
        const auto chosen = t.get<uint32_t>(i, 3);
        uint32_t result = 0;
        for (unsigned at = 0; at < 4; ++at) {
            const uint32_t choice = chosen >> 4 * at;
            uint32_t byte = bytes >> 8 * (choice & 7) & 0xff;
            if (choice & 8) byte = byte & 0x80 ? 0xff : 0;  // its sign
            result |= byte << 8 * at;
        }
        t.set(i, 0, result);
    };
    table["lop3.b32"] = [](Thread& t, I i) {
        const auto x = t.get<uint32_t>(i, 1), y = t.get<uint32_t>(i, 2), z = t.get<uint32_t>(i, 3);
        uint32_t result = 0;
        for (unsigned bit = 0; bit < 8; ++bit) {
            if (!(i.table >> bit & 1)) continue;
            result |= (bit & 4 ? x : ~x) & (bit & 2 ? y : ~y) & (bit & 1 ? z : ~z);
        }
        t.set(i, 0, result);
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
    table["bra"] = table["bra.uni"] = [](Thread& t, I i) { t.jump(i.target); };
    table["ret"] = [](Thread& t, I) { t.finish(); };
    return table;
}

}  // namespace

Execute find_arithmetic(const std::string& opcode) {
    static const Table table = make_table();
    const auto found = table.find(opcode);
    return found == table.end() ? nullptr : found->second;
}

}  // namespace emulator::ptx

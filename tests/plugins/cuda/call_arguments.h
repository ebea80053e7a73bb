// What the functions of calls.h do with the arguments that many operators have.
#pragma once

#include <type_traits>

#include "h2o/cuda.h"
#include "h2o/operator.h"

namespace calls {

template <class Call, class = void>
struct has_score_heads : std::false_type {};
template <class Call>
struct has_score_heads<Call, std::void_t<decltype(Call::Hs)>> : std::true_type {};

// A call of an operator, with what all of them have.
template <class Call>
Call on(h2o_cuda_stream stream, const h2o_shape* shape) {
    Call c;
    c.context = stream;
    c.shape = shape ? *shape : h2o_shape{};
    if constexpr (has_score_heads<Call>::value) c.Hs = c.shape.score_heads;
    return c;
}

template <class Call>
void read(Call& c, const h2o_kv* kv) {
    c.kv = kv;
    c.cap = kv ? static_cast<int32_t>(kv->rows) : 0;
}

}  // namespace calls

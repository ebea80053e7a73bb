// A few query rows against pieces of a cache: one key/value head's rows of separate pages. They are read in
// place and share one softmax.
#pragma once

#include "simd/decode.h"

namespace {

using h2o::Piece;

constexpr int64_t kPiecesAhead = 4;

// Must be inlined, like fetch().
template <class F>
__attribute__((always_inline)) inline void fetch_rows(const DecodeArgs& args, const StoredHeads& rows,
                                                      const Piece& piece) {
    DecodeArgs there = args;
    there.first = piece.first;
    for (int64_t row = 0; row < piece.keys; ++row) fetch(F::row(rows, there, 0, row), rows.d * F::kSize);
}

template <class F>
inline void dot_pieces(const DecodeArgs& args, const Piece* pieces, int64_t count) {
    DecodeArgs here = args;  // the total of keys is the pitch of p
    for (int64_t i = 0; i < count; ++i) {
        if (i + kPiecesAhead < count) fetch_rows<F>(args, args.k, pieces[i + kPiecesAhead]);
        here.first = pieces[i].first;
        int64_t key = 0;
        for (; key + kTogether <= pieces[i].keys; key += kTogether) dot_rows<F, kTogether>(here, 0, key);
        for (; key < pieces[i].keys; ++key) dot_rows<F, 1>(here, 0, key);
        here.p += pieces[i].keys;
    }
}

template <class F>
inline void weigh_pieces(const DecodeArgs& args, const Piece* pieces, int64_t count) {
    DecodeArgs here = args;
    for (int64_t i = 0; i < count; ++i) {
        if (i + kPiecesAhead < count) fetch_rows<F>(args, args.v, pieces[i + kPiecesAhead]);
        here.first = pieces[i].first;
        for (int64_t key = 0, rows; key < pieces[i].keys; key += rows) {
            rows = F::together(here, key, pieces[i].keys - key);
            weigh_rows<F>(here, 0, key, rows);
        }
        here.p += pieces[i].keys;
    }
}

// For all pieces' rows, one after the other.
template <class F>
inline void list_scales(const DecodeArgs& args, const Piece* pieces, int64_t count, float* k_scales,
                        float* v_scales) {
    DecodeArgs here = args;
    const int64_t heads = args.k.stride / args.k.apart;
    for (int64_t i = 0; i < count; ++i) {
        here.first = pieces[i].first;
        for (int64_t key = 0; key < pieces[i].keys; ++key) {
            const int64_t at = F::place(here, key) * heads;
            *k_scales++ = args.k_scales[at];
            *v_scales++ = args.v_scales[at];
        }
    }
}

template <class F>
inline void decode_pieces_of(const DecodeArgs& args, const Piece* pieces, int64_t count) {
    constexpr bool kScaled = F::kDtype == H2O_I8;
    const int64_t pitch = h2o::round_up(args.keys, 16), width = h2o::round_up(args.v.d, 16);
    float *const k_scales = args.p + args.group * pitch, *const v_scales = k_scales + pitch;
    dot_pieces<F>(args, pieces, count);
    if constexpr (kScaled) list_scales<F>(args, pieces, count, k_scales, v_scales);
    for (int64_t g = 0; g < args.group; ++g) {
        soften<kScaled>(args.p + g * pitch, args.keys, args.visible[g], args.softcap, k_scales, v_scales,
                        args.m + g, args.l + g);
    }
    __builtin_memset(args.o, 0, static_cast<std::size_t>(args.group * width) * sizeof(float));
    weigh_pieces<F>(args, pieces, count);
}

template <bool kHasPages>
inline void decode_stored_pieces(const DecodeArgs& args, const Piece* pieces, int64_t count) {
    if (args.dtype == H2O_I8) {
        decode_pieces_of<Form<H2O_I8, kHasPages>>(args, pieces, count);
    } else if (args.dtype == H2O_F16) {
        decode_pieces_of<Form<H2O_F16, kHasPages>>(args, pieces, count);
    } else {
        decode_pieces_of<Form<H2O_F32, kHasPages>>(args, pieces, count);
    }
}

void decode_pieces(const DecodeArgs& args, const Piece* pieces, int64_t count) {
    if (args.pages != nullptr) {
        decode_stored_pieces<true>(args, pieces, count);
    } else {
        decode_stored_pieces<false>(args, pieces, count);
    }
}

}  // namespace

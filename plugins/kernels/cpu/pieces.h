// A few query rows against pieces of a cache: the rows of one key/value head of pages that lie apart. They
// are read where they lie, and share one softmax.
#pragma once

namespace {

using h2o::Piece;

constexpr int64_t kPiecesAhead = 4;

// Must be inlined, as fetch() must.
template <h2o_dtype kDtype>
__attribute__((always_inline)) inline void fetch_rows(const DecodeArgs& args, const void* rows,
                                                      int64_t count) {
    for (int64_t row = 0; row < count; ++row)
        fetch(cache_row<kDtype>(rows, args, 0, row), args.d * stored_size(kDtype));
}

template <h2o_dtype kDtype>
inline void dot_pieces(const DecodeArgs& args, const Piece* pieces, int64_t count) {
    DecodeArgs here = args;  // keys, all of them, are the pitch of p
    for (int64_t i = 0; i < count; ++i) {
        if (i + kPiecesAhead < count)
            fetch_rows<kDtype>(args, pieces[i + kPiecesAhead].k, pieces[i + kPiecesAhead].keys);
        here.k = pieces[i].k;
        int64_t key = 0;
        for (; key + kTogether <= pieces[i].keys; key += kTogether) dot_rows<kDtype, kTogether>(here, 0, key);
        for (; key < pieces[i].keys; ++key) dot_rows<kDtype, 1>(here, 0, key);
        here.p += pieces[i].keys;
    }
}

template <h2o_dtype kDtype>
inline void weigh_pieces(const DecodeArgs& args, const Piece* pieces, int64_t count) {
    DecodeArgs here = args;
    for (int64_t i = 0; i < count; ++i) {
        if (i + kPiecesAhead < count)
            fetch_rows<kDtype>(args, pieces[i + kPiecesAhead].v, pieces[i + kPiecesAhead].keys);
        here.v = pieces[i].v;
        int64_t key = 0;
        for (; key + kTogether <= pieces[i].keys; key += kTogether)
            weigh_rows<kDtype, kTogether>(here, 0, key);
        for (; key < pieces[i].keys; ++key) weigh_rows<kDtype, 1>(here, 0, key);
        here.p += pieces[i].keys;
    }
}

template <h2o_dtype kDtype>
inline void decode_pieces_of(const DecodeArgs& args, const Piece* pieces, int64_t count) {
    const int64_t pitch = h2o::round_up(args.keys, 16), width = h2o::round_up(args.d, 16);
    dot_pieces<kDtype>(args, pieces, count);
    for (int64_t g = 0; g < args.group; ++g)
        soften(args.p + g * pitch, args.keys, args.visible[g], args.m + g, args.l + g);
    __builtin_memset(args.o, 0, static_cast<std::size_t>(args.group * width) * sizeof(float));
    weigh_pieces<kDtype>(args, pieces, count);
}

void decode_pieces(const DecodeArgs& args, const Piece* pieces, int64_t count) {
    if (args.dtype == H2O_F16) {
        decode_pieces_of<H2O_F16>(args, pieces, count);
    } else {
        decode_pieces_of<H2O_F32>(args, pieces, count);
    }
}

}  // namespace

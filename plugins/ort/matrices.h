// Matrices that are given the same activations, and how work with them is divided among the session's
// threads.
#pragma once

#include <algorithm>
#include <atomic>

#include "h2o/products.h"
#include "tensor.h"

namespace h2o::ort {

constexpr size_t kMostMatrices = 8;
constexpr size_t kMostArrays = 3;
constexpr int64_t kPanel = H2O_PANEL;
// A unit of work: mostly at most this many rows, and panels with at least this many bytes of weights. Smaller
// units cost more in scheduling than threads gain.
constexpr int64_t kMostRows = 96, kPieceBytes = 48 << 10;

constexpr int64_t pieces_of(int64_t all, int64_t one) {
    return (all + one - 1) / one;
}

inline int64_t panels_of(const h2o_block_matrix& matrix) {
    return pieces_of(matrix.outputs, kPanel);
}

// Rows of a unit at most, in whole tiles. Where a unit makes bfloat16 of its weights, that takes as long as
// their products with 96 rows: then as many rows as half a second-level cache has room for.
int64_t most_rows(const h2o_block_matrix& matrix, int64_t tile);

// Units have about the same number of rows, `most` of them, in whole tiles: a small remainder would read all
// weights again.
int64_t rows_of_a_piece(int64_t n, int64_t tile, int64_t most);

int64_t panels_of_a_piece(const h2o_block_matrix& matrix);

// From the attributes gate, an h2o_gate_function, and limit and gain, which are there for H2O_CLAMPED.
Status* read_gate(const Interface& ort, const KernelInfo* info, h2o_gate* gate);

// Whether weights are integers with scales; floats have neither blocks nor scales.
constexpr bool has_blocks(const h2o_block_matrix& matrix) {
    return matrix.bits < 16;
}

// Matrices with the same inputs and format.
struct Matrices {
    const h2o_products* products = nullptr;
    size_t count = 0;
    h2o_block_matrix all[kMostMatrices] = {};

    int64_t tile_rows() const { return h2o_products_tile_rows(products, all); }
    int64_t unit_rows() const { return most_rows(all[0], tile_rows()); }
    bool good() const {
        const bool has_products = all[0].parts > 0 || h2o_products_can_widen(products) != 0;
        return count > 0 && has_products && std::all_of(all, all + count, [](const h2o_block_matrix& one) {
                   return h2o_products_check(&one) == H2O_OK;
               });
    }
    // The best kernels of this machine.
    Status* find_kernels(const Interface& ort) {
        return h2o_products_find(nullptr, &products) == H2O_OK ? nullptr : ort.error("no kernel");
    }
    // From the node's inputs `first`, `first` + 1 and `first` + 2: weights, scales and offsets, of which only
    // so many are given.
    Status* find(const Interface& ort, KernelContext* context, size_t first, size_t given = kMostArrays);
};

// Calls work(piece, worker) for all units; a free worker takes the next one. A worker stays on one thread.
template <class Work>
Status* share(const Interface& ort, KernelContext* context, int64_t pieces, int64_t workers,
              const Work& work) {
    if (pieces == 1) {
        work(0, 0);
        return nullptr;
    }
    struct Queue {
        const Work& work;
        int64_t pieces;
        std::atomic<int64_t> next{0};
    } queue{work, pieces};
    const auto drain = [](void* self, size_t worker) {
        Queue& all = *static_cast<Queue*>(self);
        for (int64_t piece; (piece = all.next++) < all.pieces;) all.work(piece, static_cast<int64_t>(worker));
    };
    return ort.parallel(context, drain, static_cast<size_t>(std::min(workers, pieces)), &queue);
}

// As above, with as many workers as threads.
template <class Work>
Status* share(const Interface& ort, KernelContext* context, int64_t pieces, const Work& work) {
    return share(ort, context, pieces, pieces, [&work](int64_t piece, int64_t) { work(piece); });
}

}  // namespace h2o::ort

#include "matrices.h"

namespace h2o::ort {

int64_t most_rows(const h2o_block_matrix& matrix, int64_t tile) {
    constexpr int64_t kRowsBytes = 1 << 20, kMostWidened = 512;
    int64_t rows = kMostRows;
    if (matrix.parts == 0) rows = std::clamp(kRowsBytes / (2 * matrix.inputs), kMostRows, kMostWidened);
    return rows / tile * tile;
}

int64_t rows_of_a_piece(int64_t n, int64_t tile, int64_t most) {
    const int64_t pieces = std::max<int64_t>(1, pieces_of(n, most));
    return std::max<int64_t>(1, pieces_of(pieces_of(n, pieces), tile)) * tile;
}

int64_t panels_of_a_piece(const h2o_block_matrix& matrix) {
    return std::max<int64_t>(4, pieces_of(kPieceBytes, matrix.inputs * kPanel * matrix.bits / 8));
}

Status* read_gate(const Interface& ort, const KernelInfo* info, h2o_gate* gate) {
    int64_t function = 0;
    H2O_RETURN_IF(ort.attribute(info, "gate", &function));
    if (function < H2O_SILU || function > H2O_CLAMPED) return ort.error("a gate that no kernel has");
    gate->function = static_cast<h2o_gate_function>(function);
    if (gate->function != H2O_CLAMPED) return nullptr;
    return ort.attributes(info, "limit", &gate->limit, "gain", &gate->gain);
}

Status* Matrices::find(const Interface& ort, KernelContext* context, size_t first, size_t given) {
    size_t inputs = 0;
    H2O_RETURN_IF(ort.input_count(context, &inputs));
    inputs = std::min(inputs, first + given);
    Tensor weights, scales, offsets;
    H2O_RETURN_IF(weights.read(ort, context, inputs, first));
    H2O_RETURN_IF(scales.read(ort, context, inputs, first + 1));
    H2O_RETURN_IF(offsets.read(ort, context, inputs, first + 2));
    size_t bytes = 0, blocks = 0;
    for (size_t i = 0; i < count; ++i) {
        h2o_block_matrix& matrix = all[i];
        const int64_t elements = panels_of(matrix) * kPanel * matrix.inputs;
        matrix.weights = static_cast<const uint8_t*>(weights.data) + bytes;
        bytes += static_cast<size_t>(elements * matrix.bits / 8);
        if (!has_blocks(matrix)) continue;
        matrix.scales = static_cast<const float*>(scales.data) + blocks;
        if (offsets.data != nullptr) matrix.offsets = static_cast<const float*>(offsets.data) + blocks;
        blocks += static_cast<size_t>(elements / matrix.block);
    }
    if (weights.elements != bytes) return ort.error("weights are not as long as K, N and bits say");
    if (scales.elements != blocks || (offsets.data != nullptr && offsets.elements != blocks)) {
        return ort.error("a block and column must have one scale, and one offset or none");
    }
    return nullptr;
}

}  // namespace h2o::ort

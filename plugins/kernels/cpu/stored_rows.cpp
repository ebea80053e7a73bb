#include "stored_rows.h"

#include <algorithm>
#include <cstring>

namespace h2o {

constexpr int64_t kPiece = 64;  // elements converted at a time

void convert(const KernelTable& kernels, const char* in, h2o_dtype from, float scale, int64_t count,
             char* out, h2o_dtype to) {
    if (from == to) {
        std::memcpy(out, in, static_cast<size_t>(count * element_size(to)));
        return;
    }
    float piece[kPiece];
    for (int64_t i = 0; i < count; i += kPiece) {
        const int64_t some = std::min(kPiece, count - i);
        kernels.to_float(in + i * element_size(from), from, some, scale, piece);
        kernels.from_float(piece, to, some, 1.0f, out + i * element_size(to));
    }
}

bool pages_in_range(const h2o_kv& kv, int64_t rows) {
    if (kv.pages == nullptr || rows == 0) return true;
    return in_range(kv.pages, (rows + kv.page_rows - 1) / kv.page_rows, kv.pool_rows / kv.page_rows);
}

bool rows_in_range(const h2o_kv& kv, const int32_t* memory, int64_t count) {
    if (!in_range(memory, count, kv.rows)) return false;
    for (int64_t i = 0; kv.pages != nullptr && i < count; ++i) {
        if (!in_range(kv.pages + memory[i] / kv.page_rows, 1, kv.pool_rows / kv.page_rows)) return false;
    }
    return true;
}

}  // namespace h2o

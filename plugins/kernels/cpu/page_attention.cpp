// PageAttention: one token attends to lists of pages, one list per score head. A head's rows are read in
// place, between those of other heads.
#include <algorithm>

#include "stored_rows.h"

namespace h2o {
namespace {

constexpr int64_t kMostGroup = 16;  // query heads of one list

struct PageAttention {
    const h2o_cpu* context;
    const calls::PageAttention& call;

    struct Scratch {
        Piece* pieces;  // [M] the pages, as runs of cache rows
        float* q;       // [group][width], scaled
        float* p;       // [decode_scratch(group, most_rows)] scores
        float* o;       // [group][width]
    };

    int64_t group() const { return call.shape.query_heads / call.shape.score_heads; }
    int64_t d() const { return call.shape.head_size; }
    int64_t width() const { return round_up(d(), 16); }
    int64_t row_bytes() const { return d() * element_size(call.shape.dtype); }
    int64_t most_rows() const { return std::min(int64_t{call.M} * call.page_size, *call.length); }

    Scratch carve(Carver& carver) const {
        return {carver.take<Piece>(call.M), carver.take<float>(group() * width()),
                carver.take<float>(decode_scratch(group(), most_rows())),
                carver.take<float>(group() * width())};
    }

    void attend(int64_t set, const Scratch& scratch) const {
        const h2o_shape& shape = call.shape;
        const int64_t head = set * shape.kv_heads / shape.score_heads, pieces = find(set, scratch.pieces);
        int64_t rows = 0;
        for (int64_t i = 0; i < pieces; ++i) rows += scratch.pieces[i].keys;
        for (int64_t g = 0; g < group(); ++g)
            read_query(*context->kernels, shape, call.q, set * group() + g, scratch.q + g * width());
        int64_t visible[kMostGroup];
        float m[kMostGroup], l[kMostGroup];
        std::fill(visible, visible + group(), rows);
        DecodeArgs args{};
        read_from(shape, *call.kv, 0, &args);
        args.kv_heads = 1;
        args.group = group();
        args.keys = rows;
        args.pieces = scratch.pieces;
        args.piece_count = pieces;
        const int64_t skip = head * d() * element_size(call.kv->dtype);
        args.k.at = static_cast<const char*>(call.kv->k) + skip;
        args.v.at = static_cast<const char*>(call.kv->v) + skip;
        if (call.kv->dtype == H2O_I8) {
            args.k_scales += head;
            args.v_scales += head;
        }
        args.q = scratch.q;
        args.visible = visible;
        args.p = scratch.p;
        args.m = m;
        args.l = l;
        args.o = scratch.o;
        context->kernels->decode(args);
        for (int64_t g = 0; g < group(); ++g) {
            context->kernels->from_float(scratch.o + g * width(), shape.dtype, d(), 1.0f / l[g],
                                         static_cast<char*>(call.o) + (set * group() + g) * row_bytes());
        }
    }

    // The valid rows of the listed pages. Returns the number of pages.
    int64_t find(int64_t set, Piece* out) const {
        const int64_t size = call.page_size;
        int64_t count = 0;
        for (int64_t i = set * call.M; i < (set + 1) * call.M; ++i) {
            const int64_t first = call.page_list[i] * size;
            if (first >= 0) out[count++] = {first, std::min(*call.length - first, size)};
        }
        return count;
    }
};

// Checks that every list names valid pages, each once and rising, then -1; at least one page.
bool are_pages(const int32_t* pages, int64_t sets, int64_t slots, int64_t used) {
    for (int64_t set = 0; set < sets; ++set, pages += slots) {
        int64_t next = 0;
        if (pages[0] < 0) return false;
        for (int64_t i = 0; i < slots; ++i) {
            if (pages[i] == -1) continue;
            if (pages[i] < next || pages[i] >= used) return false;
            next = pages[i] + 1;
        }
    }
    return true;
}

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::PageAttention& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || *call.length <= 0 || call.page_size <= 0 || call.M <= 0)
        return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.kv, *call.length); status != H2O_OK) return status;
    if (!call.q || !call.page_list || !call.o) return H2O_BAD_ARGUMENT;
    if (!are_pages(call.page_list, call.shape.score_heads, call.M,
                   (*call.length + call.page_size - 1) / call.page_size))
        return H2O_BAD_ARGUMENT;
    if (call.shape.query_heads / call.shape.score_heads > kMostGroup) return H2O_UNSUPPORTED;
    const PageAttention op{context, call};
    return guarded(context, [&] {
        const auto own = carve_own(context, [&](Carver& carver) { return op.carve(carver); });
        context->pool.each(call.shape.score_heads,
                           [&](int64_t set, int thread) { op.attend(set, own(thread)); });
    });
}

}  // namespace h2o::cpu

// PageAttention: one token attends to lists of pages, one list per score head. A head's rows are read in
// place, between those of other heads.
#include <algorithm>

#include "stored_rows.h"

namespace h2o {
namespace {

constexpr int64_t kMostGroup = 16;  // query heads of one list

class PageAttention {
  public:
    PageAttention(h2o_cpu* context, const h2o_shape& shape, const void* q, const h2o_kv& kv, int64_t length,
                  int64_t page_size, int64_t slots, const int32_t* pages, void* o)
        : context_(context),
          shape_(shape),
          q_(static_cast<const char*>(q)),
          kv_(kv),
          length_(length),
          page_size_(page_size),
          slots_(slots),
          pages_(pages),
          o_(static_cast<char*>(o)) {
        Carver measure(nullptr);
        carve(measure);
        for (Arena& arena : context->arenas) arena.at_least(measure.used());
    }

    void run() {
        context_->pool.each(shape_.score_heads, [&](int64_t set, int thread) {
            Carver carver(context_->arenas[static_cast<size_t>(thread)].at_least(0));
            attend(set, carve(carver));
        });
    }

  private:
    struct Scratch {
        Piece* pieces;  // [slots] the pages, as runs of cache rows
        float* q;       // [group][width], scaled
        float* p;       // [decode_scratch(group, most_rows)] scores
        float* o;       // [group][width]
    };

    int64_t group() const { return shape_.query_heads / shape_.score_heads; }
    int64_t d() const { return shape_.head_size; }
    int64_t width() const { return round_up(d(), 16); }
    int64_t row_bytes() const { return d() * element_size(shape_.dtype); }
    int64_t most_rows() const { return std::min(slots_ * page_size_, length_); }

    Scratch carve(Carver& carver) const {
        return {carver.take<Piece>(slots_), carver.take<float>(group() * width()),
                carver.take<float>(decode_scratch(group(), most_rows())),
                carver.take<float>(group() * width())};
    }

    void attend(int64_t set, const Scratch& scratch) const {
        const int64_t head = set * shape_.kv_heads / shape_.score_heads, pieces = find(set, scratch.pieces);
        int64_t rows = 0;
        for (int64_t i = 0; i < pieces; ++i) rows += scratch.pieces[i].keys;
        for (int64_t g = 0; g < group(); ++g) {
            float* const to = scratch.q + g * width();
            std::fill(to, to + width(), 0.0f);
            context_->kernels->to_float(q_ + (set * group() + g) * row_bytes(), shape_.dtype, d(),
                                        shape_.scale, to);
        }
        int64_t visible[kMostGroup];
        float m[kMostGroup], l[kMostGroup];
        std::fill(visible, visible + group(), rows);
        DecodeArgs args{};
        read_from(shape_, kv_, 0, &args);
        args.kv_heads = 1;
        args.group = group();
        args.keys = rows;
        const int64_t skip = head * d() * element_size(kv_.dtype);
        args.k.at = static_cast<const char*>(kv_.k) + skip;
        args.v.at = static_cast<const char*>(kv_.v) + skip;
        if (kv_.dtype == H2O_I8) {
            args.k_scales = kv_.k_scales + head;
            args.v_scales = kv_.v_scales + head;
        }
        args.q = scratch.q;
        args.visible = visible;
        args.p = scratch.p;
        args.m = m;
        args.l = l;
        args.o = scratch.o;
        context_->kernels->decode_pieces(args, scratch.pieces, pieces);
        for (int64_t g = 0; g < group(); ++g) {
            context_->kernels->from_float(scratch.o + g * width(), shape_.dtype, d(), 1.0f / l[g],
                                          o_ + (set * group() + g) * row_bytes());
        }
    }

    // The valid rows of the listed pages. Returns the number of pages.
    int64_t find(int64_t set, Piece* out) const {
        int64_t count = 0;
        for (int64_t i = 0; i < slots_; ++i) {
            const int64_t page = pages_[set * slots_ + i], first = page * page_size_;
            if (page < 0) continue;
            out[count++] = {first, std::min(length_ - first, page_size_)};
        }
        return count;
    }

    h2o_cpu* context_;
    const h2o_shape& shape_;
    const char* q_;
    const h2o_kv& kv_;
    int64_t length_, page_size_, slots_;
    const int32_t* pages_;
    char* o_;
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
    return guarded(context, [&] {
        PageAttention(context, call.shape, call.q, *call.kv, *call.length, call.page_size, call.M,
                      call.page_list, call.o)
            .run();
    });
}

}  // namespace h2o::cpu

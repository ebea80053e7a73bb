// Decode if values are the first elements of the keys and many query rows share each key: a block of keys is
// read once for scores and outputs of all of them.
#include <cstring>

#include "cached.h"

namespace h2o {
namespace {

constexpr int64_t kBlock = 64;  // keys: 144 KiB of 576 floats, which fit an L2

// One thread's arrays.
struct LatentScratch {
    LatentScratch(Carver& carver, int64_t d, int64_t dv, int64_t group) {
        const int64_t blocks = (group + kLanes - 1) / kLanes;
        rows = carver.take<float>(kBlock * d);
        q = carver.take<float>(blocks * d * kLanes);
        p = carver.take<float>(kBlock * kLanes);
        m = carver.take<float>(blocks * kLanes);
        l = carver.take<float>(blocks * kLanes);
        o = carver.take<float>(blocks * round_up(dv, kPanel) * kLanes);
    }
    float* rows;   // [kBlock][d] keys as floats
    float* q;      // [blocks][d][R]
    float* p;      // [kBlock][R] scores
    float *m, *l;  // [blocks][R] running state
    float* o;      // [blocks][dv, rounded up to P][R], not divided by l
};

// One key head of a run.
class LatentHead {
  public:
    LatentHead(const KernelTable& kernels, const DecodeArgs& args, const LatentScratch& scratch, int64_t head)
        : kernels_(kernels), args_(args), scratch_(scratch), head_(head) {}

    void run() const {
        const void* rows[kLanes];
        for (int64_t block = 0; block < blocks(); ++block) {
            for (int64_t r = 0; r < lanes(block); ++r)
                rows[r] = args_.q + row(block, r) * round_up(args_.k.d, 16);
            kernels_.float32.pack_queries({rows, H2O_F32, nullptr}, lanes(block), args_.k.d, 1.0f,
                                          scratch_.q + block * args_.k.d * kLanes);
        }
        for (int64_t key = 0; key < args_.keys; key += kBlock) {
            const int64_t count = std::min(kBlock, args_.keys - key);
            int64_t stride = 0;
            const float* const keys = load(key, count, &stride);
            for (int64_t block = 0; block < blocks(); ++block) attend(block, key, count, keys, stride);
        }
        for (int64_t block = 0; block < blocks(); ++block) store(block);
    }

  private:
    int64_t blocks() const { return (args_.group + kLanes - 1) / kLanes; }
    int64_t lanes(int64_t block) const { return std::min(kLanes, args_.group - block * kLanes); }
    int64_t row(int64_t block, int64_t r) const { return head_ * args_.group + block * kLanes + r; }

    // The keys as floats in whole panels: in the cache itself, or as a copy.
    const float* load(int64_t key, int64_t count, int64_t* stride) const {
        const int64_t first = args_.first + key, d = args_.k.d;
        if (args_.dtype == H2O_F32 && args_.pages == nullptr && count % kPanel == 0) {
            *stride = args_.k.stride;
            return static_cast<const float*>(args_.k.at) + first * *stride + head_ * args_.k.apart;
        }
        *stride = d;
        const int64_t whole = round_up(count, kPanel);
        std::memset(scratch_.rows + count * d, 0, static_cast<size_t>((whole - count) * d) * sizeof(float));
        for (int64_t i = 0; i < count; ++i) {
            const int64_t place = this->place(first + i);
            const float scale = args_.k_scales ? args_.k_scales[place * args_.kv_heads + head_] : 1.0f;
            const int64_t at = place * args_.k.stride + head_ * args_.k.apart;
            kernels_.to_float(static_cast<const char*>(args_.k.at) + at * element_size(args_.dtype),
                              args_.dtype, d, scale, scratch_.rows + i * d);
        }
        return scratch_.rows;
    }

    int64_t place(int64_t row) const {
        if (args_.pages == nullptr) return row;
        const int64_t within = row & ((int64_t{1} << args_.page_bits) - 1);
        return (int64_t{args_.pages[row >> args_.page_bits]} << args_.page_bits) + within;
    }

    // The next keys, if they follow these in memory.
    void fetch_later(int64_t key, BlockArgs* args) const {
        const int64_t count = std::min(kBlock, args_.keys - key), bytes = element_size(args_.dtype);
        if (count <= 0 || args_.pages != nullptr) return;
        const int64_t at = (args_.first + key) * args_.k.stride;
        args->ahead = static_cast<const char*>(args_.k.at) + at * bytes;
        args->ahead_bytes = count * args_.k.stride * bytes;
    }

    void attend(int64_t block, int64_t key, int64_t count, const float* keys, int64_t stride) const {
        float visible[kLanes];
        BlockArgs args{};
        args.lanes = lanes(block);
        args.unmasked = count;
        for (int64_t r = 0; r < kLanes; ++r) {
            const int64_t of = block * kLanes + std::min(r, args.lanes - 1);
            const int64_t seen = std::clamp<int64_t>(args_.visible[of] - key, 0, count);
            visible[r] = static_cast<float>(seen);
            args.unmasked = std::min(args.unmasked, seen);
        }
        args.d = args_.k.d;
        args.dv = args_.v.d;
        args.keys = count;
        args.rows = args.lanes <= 16 ? 16 : args.lanes <= 32 ? 32 : 0;
        args.q = scratch_.q + block * args.d * kLanes;
        args.k = args.v = keys;
        args.stride = stride;
        args.visible = visible;
        args.softcap = args_.softcap;
        args.p = scratch_.p;
        args.m = scratch_.m + block * kLanes;
        args.l = scratch_.l + block * kLanes;
        args.o = scratch_.o + block * round_up(args.dv, kPanel) * kLanes;
        args.fresh = key == 0;
        if (block == 0) fetch_later(key + kBlock, &args);
        kernels_.float32.attend(args);
    }

    void store(int64_t block) const {
        const int64_t dv = args_.v.d;
        float one[kLanes];
        void* rows[kLanes];
        for (int64_t r = 0; r < lanes(block); ++r) {
            const int64_t to = row(block, r);
            one[r] = 1.0f;
            rows[r] = args_.o + to * round_up(dv, 16);
            args_.m[to] = scratch_.m[block * kLanes + r];
            args_.l[to] = scratch_.l[block * kLanes + r];
        }
        kernels_.store_rows(scratch_.o + block * round_up(dv, kPanel) * kLanes, nullptr, one, H2O_F32,
                            lanes(block), dv, rows);
    }

    const KernelTable& kernels_;
    const DecodeArgs& args_;
    const LatentScratch& scratch_;
    int64_t head_;
};

}  // namespace

void decode_latent(const KernelTable& kernels, const DecodeArgs& args, char* scratch) {
    Carver carver(scratch);
    const LatentScratch latent_scratch(carver, args.k.d, args.v.d, args.group);
    for (int64_t head = 0; head < args.kv_heads; ++head)
        LatentHead(kernels, args, latent_scratch, head).run();
}

size_t decode_latent_scratch(const h2o_shape& shape, int64_t group) {
    Carver measure(nullptr);
    const LatentScratch sizes(measure, shape.head_size, value_size(shape), group);
    return sizes.rows == nullptr ? measure.used() : 0;
}

}  // namespace h2o

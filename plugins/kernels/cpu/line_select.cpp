// VerticalSlashSelect: chooses the columns and diagonals that carry most of some queries' probability.
//
// The query heads of a key/value head are consecutive rows, so their blocks are full and share packed keys. A
// block computes its probabilities for all keys at once and sums them for each of its heads. Then each head
// adds its blocks' sums and ranks them.
#include "rank.h"
#include "sweep.h"

namespace h2o {
namespace {

struct LineSelect {
    const calls::VerticalSlashSelect& call;

    int64_t length() const { return *call.length; }  // cache rows in use; the last n are the queries' own
    int64_t group() const { return call.shape.query_heads / call.shape.kv_heads; }
    int64_t rows() const { return call.n * group(); }  // of a key/value head
    int64_t blocks() const { return (rows() + kLanes - 1) / kLanes; }

    // One block's sums for one head: by column, and by distance with room for lanes on either side.
    int64_t part_size() const { return 2 * length() + 2 * kLanes; }
    // Parts have the numbers of the rows at which blocks or heads begin.
    int64_t parts() const { return blocks() + group(); }
    int64_t part(int64_t block, int64_t head) const { return block + head; }

    struct Scratch {
        SweepScratch* sweep;
        uint32_t* orders;  // [take_room(length())] of candidates of a head
    };

    // `sums` are the parts of one key/value head.
    void score(const h2o_cpu* context, SweepScratch& scratch, int64_t kv_head, int64_t block,
               float* sums) const {
        Sweep keys = head_sweep(context, call.shape, call.shape.kv_heads, kv_head, call.q, call.n);
        keys.keys = cache_rows(call.shape, kv_head, keys_alone(*call.kv), nullptr, length());
        keys.key_block = length();
        keys.unit = kv_head;
        keys.pack(scratch, 0, length(), true);

        const int64_t from = block * kLanes, used = std::min(kLanes, rows() - from);
        const int64_t row_size = call.shape.head_size * element_size(call.shape.dtype);
        float visible[kLanes];
        int64_t least = length(), most = 0;
        for (int64_t r = 0; r < kLanes; ++r) {
            const int64_t f = from + std::min(r, used - 1), token = f % call.n;
            const int64_t seen = length() - call.n + token + 1;
            visible[r] = static_cast<float>(seen);
            least = std::min(least, seen);
            most = std::max(most, seen);
            if (r >= used) continue;
            scratch.rows[r] = static_cast<const char*>(call.q) +
                              (token * call.shape.query_heads + kv_head * group() + f / call.n) * row_size;
        }
        context->attention->pack_queries({scratch.rows, call.shape.dtype, nullptr}, used,
                                         call.shape.head_size, call.shape.scale, scratch.q);
        BlockArgs args{};
        args.d = args.dv = call.shape.head_size;
        args.keys = most;
        args.unmasked = least;
        args.lanes = used;
        args.rows = round_up(used, 16);
        args.q = scratch.q;
        args.k = scratch.k;
        args.visible = visible;
        args.softcap = call.shape.softcap;
        args.p = scratch.p;
        args.m = scratch.m;
        args.l = scratch.l;
        args.fresh = true;
        context->attention->attend(args);

        for (int64_t r = 0, next; r < used; r = next) {
            const int64_t head = (from + r) / call.n, token = (from + r) % call.n;
            next = std::min(used, r + call.n - token);
            float weight[kLanes] = {};
            for (int64_t i = r; i < next; ++i) weight[i] = 1.0f / args.l[i];
            float* const by_column = sums + part(block, head) * part_size();
            std::memset(by_column, 0, static_cast<size_t>(part_size()) * sizeof(float));
            // Lane r is at distance `position` from key 0; later lanes and keys follow from that.
            float* const by_distance = by_column + length() + kLanes;
            const int64_t first = length() - call.n + token;
            context->kernels->line_sums(args.p, first + next - r, args.rows, weight, by_column,
                                        by_distance + first - r);
        }
    }

    void choose(int64_t kv_head, int64_t head, float* sums, uint32_t* orders) const {
        const int64_t first = head * call.n / kLanes, last = ((head + 1) * call.n - 1) / kLanes;
        float* const all = sums + part(first, head) * part_size();
        for (int64_t block = first + 1; block <= last; ++block) {
            const float* const more = sums + part(block, head) * part_size();
            for (int64_t i = 0; i < part_size(); ++i) all[i] += more[i];
        }
        const int64_t query_head = kv_head * group() + head;
        best(all, call.M, call.sink, orders, call.columns + query_head * call.M);
        best(all + length() + kLanes, call.D, call.near, orders, call.distances + query_head * call.D);
    }

    void best(const float* sums, int64_t count, int64_t forced, uint32_t* orders, int32_t* out) const {
        const int64_t there = std::min(count, length());
        for (int64_t i = 0; i < length(); ++i) orders[i] = i < forced ? UINT32_MAX : order(sums[i]);
        take_first_best(orders, length(), there, out);
        std::fill(out + there, out + count, -1);
    }

    void run(h2o_cpu* context) const {
        const auto own = carve_own(context, [&](Carver& carver) {
            return Scratch{carve(carver, {call.shape.head_size, 0, length(), 1, false, false}),
                           carver.take<uint32_t>(take_room(length()))};
        });
        for (int thread = 0; thread < context->pool.size(); ++thread)
            context->scratch[static_cast<size_t>(thread)] = own(thread).sweep;
        const int64_t of_head = parts() * part_size();
        float* const sums = context->shared_floats(call.shape.kv_heads * of_head);
        context->pool.each(call.shape.kv_heads * blocks(), [&](int64_t item, int thread) {
            const int64_t kv_head = item / blocks();
            score(context, *context->scratch[static_cast<size_t>(thread)], kv_head, item % blocks(),
                  sums + kv_head * of_head);
        });
        context->pool.each(call.shape.query_heads, [&](int64_t item, int thread) {
            const int64_t kv_head = item / group();
            choose(kv_head, item % group(), sums + kv_head * of_head, own(thread).orders);
        });
    }
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::VerticalSlashSelect& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || call.n <= 0 || *call.length < call.n || *call.length > INT32_MAX)
        return H2O_BAD_ARGUMENT;
    if (call.M <= 0 || call.D <= 0 || call.sink < 0 || call.near < 0) return H2O_BAD_ARGUMENT;
    if (!call.q || !call.columns || !call.distances) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_keys(call.kv, *call.length); status != H2O_OK) return status;
    const LineSelect op{call};
    return guarded(context, [&] { op.run(context); });
}

}  // namespace h2o::cpu

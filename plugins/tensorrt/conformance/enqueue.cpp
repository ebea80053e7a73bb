// Runs plugins on the device and compares with the float64 reference: what this finds is a pointer, a size or
// an attribute that the adapter hands to the wrong place; the kernels' own tests go deeper.

#include <numeric>
#include <set>

#include "cases.h"
#include "conformance.h"
#include "products.h"

namespace conformance {
namespace {

using nvinfer1::DataType;
using test::Buffer;
using test::Numbers;
using test::Reference;

// Device tensors of a node by position; floats drawn at random, integers as the case sets them.
struct Tensors {
    Node node;
    h2o_dtype dtype;
    std::vector<std::unique_ptr<Numbers>> floats;  // of the inputs; null for integers
    std::vector<std::unique_ptr<Buffer>> integers;
    std::vector<std::unique_ptr<Buffer>> outputs;

    static size_t count(const std::vector<int64_t>& sizes) {
        return std::accumulate(sizes.begin(), sizes.end(), size_t{1},
                               [](size_t a, int64_t b) { return a * size_t(b); });
    }
    static h2o_dtype dtype_of(DataType type) { return type == DataType::kHALF ? H2O_F16 : H2O_F32; }
    static size_t bytes_of(DataType type) {
        return type == DataType::kHALF ? 2 : type == DataType::kINT64 ? 8 : 4;
    }

    template <class R>
    Tensors(const Node& n, h2o_dtype model, R& random) : node(n), dtype(model) {
        for (size_t i = 0; i < node.inputs.size(); ++i) {
            const DataType type = node.input_types[i];
            const bool integer = type == DataType::kINT32 || type == DataType::kINT64;
            floats.push_back(integer ? nullptr
                                     : std::make_unique<Numbers>(count(node.inputs[i]), dtype_of(type)));
            integers.push_back(
                integer ? std::make_unique<Buffer>(count(node.inputs[i]) * bytes_of(type), false) : nullptr);
            if (!integer) fill_normal(*floats[i], dtype_of(type), 1, random);
        }
        for (size_t i = 0; i < node.outputs.size(); ++i)
            outputs.push_back(
                std::make_unique<Buffer>(count(node.outputs[i]) * bytes_of(node.output_types[i]), true));
    }
    template <class T>
    void set(size_t input, const std::vector<T>& values) {
        std::memcpy(integers[input]->host().data(), values.data(), values.size() * sizeof(T));
        integers[input]->reset();
    }
    const std::vector<double>& in(size_t i) const { return floats[i]->exact; }
    std::vector<double> out(size_t i) const {
        return test::download(*outputs[i], dtype_of(node.output_types[i]));
    }

    void run(const Creators& creators) {
        const Plugin plugin = create(*creators.at(node.op), node.fields, nvinfer1::TensorRTPhase::kRUNTIME);
        const auto dynamic = dynamic_descs(node);
        const int32_t inputs = static_cast<int32_t>(node.inputs.size()),
                      count = static_cast<int32_t>(node.outputs.size());
        const size_t bytes =
            build_of(*plugin)->getWorkspaceSize(dynamic.data(), inputs, dynamic.data() + inputs, count);
        Buffer workspace(bytes, true);
        std::vector<nvinfer1::PluginTensorDesc> descs;
        for (const auto& desc : dynamic) descs.push_back(desc.desc);
        const Plugin attached(
            runtime_of(*plugin)->attachToContext(nullptr));  // what an execution context runs
        nvinfer1::IPluginV3OneRuntime* runtime = runtime_of(*attached);
        EXPECT(runtime->onShapeChange(descs.data(), inputs, descs.data() + inputs, count) == 0);
        std::vector<const void*> from;
        std::vector<void*> to;
        for (size_t i = 0; i < node.inputs.size(); ++i)
            from.push_back(floats[i] ? floats[i]->buffer.device() : integers[i]->device());
        for (auto& output : outputs) {
            output->reset();
            to.push_back(output->device());
        }
        EXPECT(runtime->enqueue(descs.data(), descs.data() + inputs, from.data(), to.data(),
                                workspace.device(), nullptr) == 0);
        test::must(cudaDeviceSynchronize());
    }
};

constexpr int kN = 20, kHeads = 4, kKvHeads = 2, kD = 64, kDV = 32, kSlots = 12, kCapacity = 90;

// Whether the operator's node has values of another size than keys.
bool has_values_of_their_own(const std::string& op) {
    return op == "ChunkedIntraAttention" || op == "MemoryAttention" || op == "MemoryFusedAttention" ||
           op == "CachedAttention";
}

test::Case case_of(const std::string& op, h2o_dtype dtype) {
    return {{kHeads, kKvHeads, kKvHeads, kD, 0.125f, dtype, has_values_of_their_own(op) ? kDV : kD}, 1};
}

// Key j of set s in token-major keys; with `memory`, j is looked up there first.
struct TokenMajor {
    const std::vector<double>& values;
    const std::vector<int32_t>* memory = nullptr;
    int d = kD;
    const double* operator()(int set, int j) const {
        const int row = memory ? (*memory)[size_t(set) * kSlots + j] : j;
        return &values[(size_t(row) * kKvHeads + set) * d];
    }
};
struct SetMajor {
    const std::vector<double>& values;
    int d = kD;
    const double* operator()(int set, int j) const { return &values[(size_t(set) * kSlots + j) * d]; }
};

template <class K, class V, class S>
std::pair<Reference, Reference> both(const test::Case& c, const std::vector<double>& q, int n, int keys,
                                     K&& key, V&& value, S&& visible) {
    return {test::attend(c.shape, q, n, keys, key, value, visible, test::Precision::kExact),
            test::attend(c.shape, q, n, keys, key, value, visible, test::yardstick(c))};
}

// A tile's memory from what its votes give the candidates: 4 rows before `past`, and the 6 best of the
// others.
std::vector<int32_t> chosen(const std::vector<int32_t>& candidates, const double* given, int past) {
    std::vector<std::pair<double, int32_t>> ranked;
    for (int j = 0; j < kSlots; ++j) {
        double score = candidates[j] < 1 ? 1e9 : given[j];
        for (int other = 0; other < kSlots; ++other)
            if (std::abs(candidates[other] - candidates[j]) == 1) score += given[other] / 4;
        if (candidates[j] < past - 4) ranked.emplace_back(-score, candidates[j]);
    }
    std::sort(ranked.begin(), ranked.end());
    std::vector<int32_t> rows;
    for (int j = 0; j < 6; ++j) rows.push_back(ranked[size_t(j)].second);
    std::sort(rows.begin(), rows.end());
    for (int i = past - 4; i < past; ++i) rows.push_back(i);
    return rows;
}

void check_query_select(const test::Case& c, const Creators& creators, Tensors& t,
                        const std::vector<int32_t>& candidates) {
    const int64_t past[] = {60, 63, 70};
    t.set(2, candidates);
    t.set(3, std::vector<int64_t>(past, past + 3));
    t.run(creators);
    const std::vector<int32_t> got = t.outputs[0]->values<int32_t>();
    for (int tile = 0; tile < 3; ++tile) {
        std::vector<double> votes;
        for (int row = tile * 8; row < std::min(tile * 8 + 8, kN); row += 4)
            votes.insert(votes.end(), t.in(0).begin() + row * 4 * kD, t.in(0).begin() + (row + 1) * 4 * kD);
        const Reference r = test::attend(
            c.shape, votes, static_cast<int>(votes.size()) / (4 * kD), kSlots,
            TokenMajor{t.in(1), &candidates}, [](int, int) -> const double* { return nullptr; },
            [](int, int) { return true; }, test::Precision::kExact);
        for (int set = 0; set < kKvHeads; ++set) {
            const std::vector<int32_t> own(candidates.begin() + set * kSlots,
                                           candidates.begin() + (set + 1) * kSlots);
            const auto expected = chosen(own, &r.colsum[size_t(set) * kSlots], static_cast<int>(past[tile]));
            EXPECT(std::equal(expected.begin(), expected.end(), got.begin() + (tile * kKvHeads + set) * 10));
        }
    }
}

// Columns and distances of the highest sums of probabilities, 2 and 3 of which are there whatever they have.
void check_lines(const Tensors& t) {
    const int length = 71;
    for (int h = 0; h < kHeads; ++h) {
        std::vector<std::pair<double, int>> ranks[2];
        for (auto& rank : ranks)
            for (int i = 0; i < length; ++i) rank.emplace_back(0, i);
        for (int r = 0; r < kN; ++r) {
            const int position = length - kN + r;
            std::vector<double> p;
            double sum = 0;
            for (int j = 0; j <= position; ++j) {
                const double* const key = TokenMajor{t.in(1)}(h / (kHeads / kKvHeads), j);
                double dot = 0;
                for (int i = 0; i < kD; ++i) dot += t.in(0)[(size_t(r) * kHeads + h) * kD + i] * key[i];
                p.push_back(std::exp(0.125 * dot));
                sum += p.back();
            }
            for (int j = 0; j <= position; ++j) {
                ranks[0][j].first -= p[j] / sum;
                ranks[1][position - j].first -= p[j] / sum;
            }
        }
        for (int which = 0; which < 2; ++which) {
            for (int i = 0; i < 2 + which; ++i) ranks[which][i].first = -HUGE_VAL;
            std::sort(ranks[which].begin(), ranks[which].end());
            std::vector<int32_t> expected;
            for (int i = 0; i < 6 + which; ++i) expected.push_back(ranks[which][i].second);
            std::sort(expected.begin(), expected.end());
            const std::vector<int32_t> got = t.outputs[which]->values<int32_t>();
            EXPECT(std::equal(expected.begin(), expected.end(), got.begin() + h * (6 + which)));
        }
    }
}

void check_node(const Node& node, h2o_dtype dtype, const Creators& creators, std::mt19937& random) {
    const test::Case c = case_of(node.op, dtype);
    Tensors t(node, dtype, random);
    const auto always = [](int, int) { return true; };
    const auto memory = test::random_memory(kKvHeads, kSlots, 60, random);
    const auto compare = [&](const char* what, size_t output, const std::vector<double>& exact,
                             const std::vector<double>& low) {
        compare_to(c, what, t.out(output), exact, low);
    };

    if (node.op == "ChunkedIntraAttention") {
        t.run(creators);
        const auto [exact, low] =
            both(c, t.in(0), kN, kN, TokenMajor{t.in(1)}, TokenMajor{t.in(2), nullptr, kDV},
                 [](int i, int j) { return j <= i && j / 8 == i / 8; });
        compare("o", 0, exact.o, low.o);
        compare("m", 1, exact.m, low.m);
        compare("l", 2, exact.l, low.l);
        compare("colsum", 3, test::token_major(exact.colsum, kKvHeads, kN),
                test::token_major(low.colsum, kKvHeads, kN));
    } else if (node.op == "MemoryGather") {
        t.set(2, memory);
        t.run(creators);
        for (size_t i = 0; i < 2; ++i) {
            std::vector<double> expected;
            for (int set = 0; set < kKvHeads; ++set)
                for (int j = 0; j < kSlots; ++j) {
                    const int d = i ? kDV : kD;
                    const double* row = TokenMajor{t.in(i), &memory, d}(set, j);
                    expected.insert(expected.end(), row, row + d);
                }
            EXPECT(t.out(i) == expected);
        }
    } else if (node.op == "MemoryAttention") {
        t.run(creators);
        const auto [exact, low] =
            both(c, t.in(0), kN, kSlots, SetMajor{t.in(1)}, SetMajor{t.in(2), kDV}, always);
        compare("o", 0, exact.o, low.o);
        compare("m", 1, exact.m, low.m);
        compare("l", 2, exact.l, low.l);
        compare("colsum", 3, exact.colsum, low.colsum);
    } else if (node.op == "OnlineSoftmaxFusion" || node.op == "MemoryFusedAttention") {
        const bool fused = node.op == "MemoryFusedAttention";
        const size_t state = fused ? 4 : 0;
        for (double& l : t.floats[state + 2]->exact) l = std::fabs(l) + 1;
        if (!fused)
            for (double& l : t.floats[5]->exact) l = std::fabs(l) + 1;
        for (const size_t i : {state + 2, size_t(fused ? 6 : 5)}) {
            for (size_t e = 0; e < t.in(i).size(); ++e)
                test::store(t.floats[i]->buffer.host(), e, H2O_F32, t.floats[i]->exact[e]);
            t.floats[i]->buffer.reset();
        }
        const auto state_at = [&](size_t i) { return Reference{t.in(i), t.in(i + 1), t.in(i + 2), {}}; };
        if (fused) {
            t.set(3, memory);
            t.run(creators);
            const auto [exact, low] = both(c, t.in(0), kN, kSlots, TokenMajor{t.in(1), &memory},
                                           TokenMajor{t.in(2), &memory, kDV}, always);
            compare("o", 0, test::fuse(state_at(4), exact, kDV, test::Precision::kExact).o,
                    test::fuse(state_at(4), low, kDV, test::yardstick(c)).o);
            compare("colsum", 1, exact.colsum, low.colsum);
        } else {
            t.run(creators);
            const Reference exact = test::fuse(state_at(0), state_at(3), kDV, test::Precision::kExact);
            const Reference low = test::fuse(state_at(0), state_at(3), kDV, test::yardstick(c));
            compare("o", 0, exact.o, low.o);
            compare("m", 1, exact.m, low.m);
            compare("l", 2, exact.l, low.l);
        }
    } else if (node.op == "CandidateScore") {
        t.run(creators);
        const auto key = [&](int set, int j) {
            return j < kSlots ? SetMajor{t.in(2)}(set, j) : TokenMajor{t.in(1)}(set, j - kSlots);
        };
        const auto [exact, low] = both(
            c, t.in(0), 5, kSlots + kN, key, [](int, int) -> const double* { return nullptr; },
            [](int i, int j) { return j - kSlots <= kN - 5 + i; });
        const auto part = [&](const Reference& r, int first, int count) {
            std::vector<double> values;
            for (int set = 0; set < kKvHeads; ++set)
                for (int j = 0; j < count; ++j)
                    values.push_back(r.colsum[size_t(set) * (kSlots + kN) + first + j]);
            return first ? test::token_major(values, kKvHeads, count) : values;
        };
        compare("score_mem", 0, part(exact, 0, kSlots), part(low, 0, kSlots));
        compare("score_chunk", 1, part(exact, kSlots, kN), part(low, kSlots, kN));
    } else if (node.op == "MemorySelect") {
        t.set(1, memory);
        t.set(2, std::vector<int64_t>{60, 85});
        t.run(creators);
        const std::vector<int32_t> got = t.outputs[0]->values<int32_t>();
        for (int set = 0; set < kKvHeads; ++set) {
            std::vector<int32_t> all(memory.begin() + set * kSlots, memory.begin() + (set + 1) * kSlots);
            for (int i = 60; i < 81; ++i) all.push_back(i);
            std::stable_sort(all.begin(), all.end(), [&](int32_t a, int32_t b) {
                if ((a < 1) != (b < 1)) return a < 1;
                return t.in(0)[size_t(a) * kKvHeads + set] > t.in(0)[size_t(b) * kKvHeads + set];
            });
            all.resize(8);
            for (int i = 81; i < 85; ++i) all.push_back(i);
            std::sort(all.begin(), all.end());
            EXPECT(std::equal(all.begin(), all.end(), got.begin() + set * 12));
        }
    } else if (node.op == "QuerySelect") {
        check_query_select(c, creators, t, memory);
    } else if (node.op == "CachedAttention") {
        t.set(3, std::vector<int64_t>{71});
        t.run(creators);
        const auto [exact, low] =
            both(c, t.in(0), 1, 71, TokenMajor{t.in(1)}, TokenMajor{t.in(2), nullptr, kDV}, always);
        compare("o", 0, exact.o, low.o);
    } else if (node.op == "LandmarkUpdate") {
        t.set(4, std::vector<int64_t>{20});
        t.set(5, std::vector<int64_t>{43});
        t.run(creators);
        for (size_t i = 0; i < 2; ++i) {
            std::vector<double> expected = t.in(2 + i);
            for (size_t row = 20; row < 43; ++row)
                for (size_t column = 0; column < kKvHeads * kD; ++column) {
                    double& mean = expected[row / 8 * kKvHeads * kD + column];
                    const double count = double(row % 8);
                    mean = (mean * count + t.in(i)[row * kKvHeads * kD + column]) / (count + 1);
                }
            test::compare(i ? "v_mean" : "k_mean", t.out(i), expected, nullptr);
        }
    } else if (node.op == "SubquadraticAttention") {
        t.set(5, std::vector<int32_t>{3, 6});
        t.set(6, std::vector<int64_t>{71});
        t.run(creators);
        // The last token stands at 70; the newest of its eight landmarks is number 7.
        const std::set<int> tokens = {70, 69, 68, 67, 66, 65, 64, 3, 6, 62, 54, 38}, marks = {7, 6, 5, 3};
        const auto either = [&](size_t token, size_t mark) {
            return [&t, token, mark](int set, int j) {
                return j < 71 ? TokenMajor{t.in(token)}(set, j) : TokenMajor{t.in(mark)}(set, j - 71);
            };
        };
        const auto [exact, low] = both(c, t.in(0), 1, 71 + 12, either(1, 3), either(2, 4), [&](int, int j) {
            return j < 71 ? tokens.count(j) > 0 : marks.count(j - 71) > 0;
        });
        compare("o", 0, exact.o, low.o);
    } else if (node.op == "PageBounds") {
        t.set(3, std::vector<int64_t>{20});
        t.set(4, std::vector<int64_t>{43});
        t.run(creators);
        for (size_t i = 0; i < 2; ++i) {
            std::vector<double> expected = t.in(1 + i);
            for (size_t row = 20; row < 43; ++row)
                for (size_t column = 0; column < kKvHeads * kD; ++column) {
                    double& bound = expected[row / 8 * kKvHeads * kD + column];
                    const double x = t.in(0)[row * kKvHeads * kD + column];
                    bound = row % 8 == 0 ? x : i ? std::fmax(bound, x) : std::fmin(bound, x);
                }
            EXPECT(t.out(i) == expected);
        }
    } else if (node.op == "PageSelect") {
        t.set(3, std::vector<int64_t>{71});
        t.run(creators);
        const std::vector<int32_t> got = t.outputs[0]->values<int32_t>();
        for (int set = 0; set < kKvHeads; ++set) {
            std::vector<std::pair<double, int32_t>> bounds;
            for (int page = 0; page < 8; ++page) {
                double best = -HUGE_VAL;
                for (int h = set * 2; h < set * 2 + 2; ++h) {
                    double bound = 0;
                    for (int i = 0; i < kD; ++i) {
                        const double x = t.in(0)[size_t(h) * kD + i];
                        bound += x * TokenMajor{t.in(x > 0 ? 2 : 1)}(set, page)[i];
                    }
                    best = std::fmax(best, bound);
                }
                bounds.emplace_back(-best, page);
            }
            std::sort(bounds.begin(), bounds.end());
            std::vector<int32_t> expected = {bounds[0].second, bounds[1].second, bounds[2].second, 8};
            std::sort(expected.begin(), expected.end());
            EXPECT(std::equal(expected.begin(), expected.end(), got.begin() + set * 4));
        }
    } else if (node.op == "PageAttention") {
        const std::vector<int32_t> pages = {0, 3, 8, -1, 1, 2, 5, 8};
        t.set(3, pages);
        t.set(4, std::vector<int64_t>{71});
        t.run(creators);
        // A key of the reference is a place in a list; the last page has seven rows.
        const auto row = [&](int set, int j) { return std::max(pages[set * 4 + j / 8], 0) * 8 + j % 8; };
        const auto listed = [&](size_t input) {
            return [&, input](int set, int j) { return TokenMajor{t.in(input)}(set, row(set, j)); };
        };
        std::vector<double> o[2];
        for (int h = 0; h < kHeads; ++h) {
            const auto visible = [&](int, int j) {
                return pages[h / 2 * 4 + j / 8] >= 0 && row(h / 2, j) < 71;
            };
            const auto [exact, low] = both(c, t.in(0), 1, 32, listed(1), listed(2), visible);
            for (int i = 0; i < 2; ++i) {
                const auto from = (i ? low : exact).o.begin() + h * kD;
                o[i].insert(o[i].end(), from, from + kD);
            }
        }
        compare("o", 0, o[0], o[1]);
    } else if (node.op == "VerticalSlashSelect") {
        t.set(2, std::vector<int64_t>{71});
        t.run(creators);
        check_lines(t);
    } else if (node.op == "VerticalSlashAttention") {
        t.set(3, std::vector<int32_t>{2, 4, -1, 0, 1, 3, 5, -1, -1, 3, 4, 69});
        t.set(4, std::vector<int32_t>{1, -1, 70, -1, 2, 3, -1, -1});
        t.set(5, std::vector<int64_t>{71});
        t.run(creators);
        // The token stands at 70 in a tile that ends at 134: its runs are 69 ... 197, 0 ... 64 and 70 ...
        // 134, 67 ... 195, and 70 ... 134.
        const std::set<int> listed[] = {{2, 4}, {0, 1, 3}, {5}, {3, 4, 69}};
        const int first[] = {69, 70, 67, 70};
        std::vector<double> o[2];
        for (int h = 0; h < kHeads; ++h) {
            const auto visible = [&](int, int j) {
                return j >= first[h] || (h == 1 && j < 64) || listed[h].count(j) > 0;
            };
            const auto [exact, low] =
                both(c, t.in(0), 1, 71, TokenMajor{t.in(1)}, TokenMajor{t.in(2)}, visible);
            for (int i = 0; i < 2; ++i) {
                const auto from = (i ? low : exact).o.begin() + h * kD;
                o[i].insert(o[i].end(), from, from + kD);
            }
        }
        compare("o", 0, o[0], o[1]);
    } else if (node.op == "BlockProduct") {
        test::BlockMatrix matrix(64, 24, random);
        matrix.scales = t.in(2);
        t.set(1, matrix.words);
        t.run(creators);
        compare("y", 0, matrix.times(t.in(0), false), matrix.times(t.in(0), true));
    } else {
        test::fail("no reference for this operator");
    }
}

}  // namespace

// TensorRT may time a plugin on memory that nobody filled: whatever integers it holds, every address must lie
// within the tensors. Under the emulation, and under compute-sanitizer, one that does not is found.
void check_arbitrary_integers(const Node& node, h2o_dtype dtype, const Creators& creators,
                              std::mt19937& random) {
    Tensors t(node, dtype, random);
    for (int fill : {0x00, 0x7f, 0x80, 0xff, -1}) {
        bool any = false;
        for (auto& integers : t.integers) {
            if (!integers) continue;
            for (unsigned char& byte : integers->host())
                byte = static_cast<unsigned char>(fill < 0 ? random() : static_cast<unsigned>(fill));
            integers->reset();
            any = true;
        }
        if (any) t.run(creators);
    }
}

void check_enqueue(const Creators& creators) {
    std::mt19937 random(7);
    for (const DataType model : {DataType::kFLOAT, DataType::kHALF})
        for (const Node& node : nodes(model)) {
            const h2o_dtype dtype = model == DataType::kHALF ? H2O_F16 : H2O_F32;
            test::context = node.op + (dtype == H2O_F16 ? " enqueue float16" : " enqueue float32");
            check_node(node, dtype, creators, random);
            check_arbitrary_integers(node, dtype, creators, random);
            // A head size without a kernel is a status and a sentence, not a crash.
            Node odd = node;
            for (auto* sizes : {&odd.inputs, &odd.outputs})
                for (auto& size : *sizes)
                    if (size.size() == 3) size[2] = 600;
            if (node.op == "MemorySelect") continue;
            const Plugin plugin =
                create(*creators.at(node.op), node.fields, nvinfer1::TensorRTPhase::kRUNTIME);
            std::vector<nvinfer1::PluginTensorDesc> descs;
            for (const auto& desc : dynamic_descs(odd)) descs.push_back(desc.desc);
            std::vector<void*> nothing(16, nullptr);
            logged.clear();
            EXPECT(runtime_of(*plugin)->enqueue(descs.data(), descs.data() + odd.inputs.size(),
                                                nothing.data(), nothing.data(), nullptr, nullptr) != 0);
            EXPECT(logged.size() == 1);
        }
}

}  // namespace conformance

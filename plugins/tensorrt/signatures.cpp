#include "signatures.h"

namespace h2o::trt {

std::vector<Signature> signatures() {
    constexpr AttributeSpec::Kind integer = AttributeSpec::kInt, real = AttributeSpec::kPositiveFloat;
    constexpr Type T = Type::kModel, F = Type::kFloat, I32 = Type::kInt32, I64 = Type::kInt64;
    constexpr Size n = kTokens, w = kWindow, Hq = kQueryHeads, Hkv = kKvHeads, Hs = kScoreHeads,
                   d = kHeadSize, cap = kRows, M = kSlots, Mp = kPrevious;
    return {
        {"ChunkedIntraAttention",
         {{integer, "chunk_size", 1}, {real, "scale"}, {integer, "score_heads", 1, Hs}},
         {{"q", T, {n, Hq, d}}, {"k", T, {n, Hkv, d}}, {"v", T, {n, Hkv, d}}},
         {{"o", T, {n, Hq, d}}, {"m", F, {n, Hq}}, {"l", F, {n, Hq}}, {"colsum", F, {n, Hs}}}},
        {"MemoryGather",
         {},
         {{"k_cache", T, {cap, Hkv, d}}, {"v_cache", T, {cap, Hkv, d}}, {"memory", I32, {Hs, M}}},
         {{"k_mem", T, {Hs, M, d}}, {"v_mem", T, {Hs, M, d}}}},
        {"MemoryAttention",
         {{real, "scale"}},
         {{"q", T, {n, Hq, d}}, {"k_mem", T, {Hs, M, d}}, {"v_mem", T, {Hs, M, d}}},
         {{"o", T, {n, Hq, d}}, {"m", F, {n, Hq}}, {"l", F, {n, Hq}}, {"colsum", F, {Hs, M}}}},
        {"OnlineSoftmaxFusion",
         {},
         {{"o_a", T, {n, Hq, d}},
          {"m_a", F, {n, Hq}},
          {"l_a", F, {n, Hq}},
          {"o_b", T, {n, Hq, d}},
          {"m_b", F, {n, Hq}},
          {"l_b", F, {n, Hq}}},
         {{"o", T, {n, Hq, d}}, {"m", F, {n, Hq}}, {"l", F, {n, Hq}}}},
        {"MemoryFusedAttention",
         {{real, "scale"}},
         {{"q", T, {n, Hq, d}},
          {"k_cache", T, {cap, Hkv, d}},
          {"v_cache", T, {cap, Hkv, d}},
          {"memory", I32, {Hs, M}},
          {"o_intra", T, {n, Hq, d}},
          {"m_intra", F, {n, Hq}},
          {"l_intra", F, {n, Hq}}},
         {{"o", T, {n, Hq, d}}, {"colsum", F, {Hs, M}}}},
        {"CandidateScore",
         {{real, "scale"}},
         {{"q_window", T, {w, Hq, d}}, {"k", T, {n, Hkv, d}}, {"k_mem", T, {Hs, M, d}}},
         {{"score_mem", F, {Hs, M}}, {"score_chunk", F, {n, Hs}}}},
        {"MemorySelect",
         {{integer, "local", 0, M}, {integer, "heavy", 0, M}, {integer, "sink", 0}},
         {{"score", F, {cap, Hs}}, {"memory", I32, {Hs, Mp}}, {"chunk_range", I64, {kTwo}}},
         {{"memory_next", I32, {Hs, M}}}},
        {"CachedAttention",
         {{real, "scale"}},
         {{"q", T, {n, Hq, d}},
          {"k_cache", T, {cap, Hkv, d}},
          {"v_cache", T, {cap, Hkv, d}},
          {"length", I64, {}}},
         {{"o", T, {n, Hq, d}}}},
    };
}

}  // namespace h2o::trt

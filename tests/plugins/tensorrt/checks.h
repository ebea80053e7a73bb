// Runs a node and compares its outputs with the float64 reference, one function an operator.
#pragma once

#include "trial.h"

namespace conformance {

void check_chunked_intra_attention(Trial& t);
void check_memory_gather(Trial& t);
void check_memory_attention(Trial& t);
void check_online_softmax_fusion(Trial& t);
void check_memory_fused_attention(Trial& t);
void check_candidate_score(Trial& t);
void check_memory_select(Trial& t);
void check_query_select(Trial& t);
void check_cached_attention(Trial& t);

}  // namespace conformance

// StepAttention: attention of a decode step to a cache, whose last row its key and value become first. An
// operator of domain h2o.cpu, with which a whole step is one graph: see h2o_runtime.ort.whole_step.
//
// inputs      q float32 [1, Hq, d], k [1, Hkv, d], v [1, Hkv, dv]
//             k_cache, v_cache float32, float16 or int8 [rows, Hkv, d] and [rows, Hkv, dv]; written
//             length int64 [1], with the new row
//             k_scales, v_scales float32 [rows, Hkv] of int8, or left out; written
// outputs     o float32 [1, Hq, dv]
// attributes  scale, of scores; threads, of the session
#pragma once

#include "interface.h"

namespace h2o::ort {

const Operator* step_attention();

}  // namespace h2o::ort

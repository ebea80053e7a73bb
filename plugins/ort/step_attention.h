// StepAttention: attention of a decode step's rows, each to its own cache; first, the row's key and value
// become the cache's last row. An operator of domain h2o.cpu, with which a whole step is one graph: see
// h2o_runtime.dense_graphs.whole_step.
//
// inputs      q float32 [n, Hq, d], k [n, Hkv, d], v [n, Hkv, dv]; n is 16 at most
//             lengths int64 [n]: of each row's cache, with that row
//             caches uint8 [n, layers, sizeof(h2o_kv)]: an h2o_kv a row and layer, of h2o/kv.h. Where caches
//             lie changes from call to call, so graphs are given addresses
// outputs     o float32 [n, Hq, dv]
// attributes  layer, whose caches these are; scale, of scores; window, rows that a query sees, or 0; threads,
// of
//             the session
#pragma once

#include "interface.h"

namespace h2o::ort {

const Operator* step_attention();

}  // namespace h2o::ort

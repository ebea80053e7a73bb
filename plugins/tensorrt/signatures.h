// The operators of ONNX domain h2o, version 1: their attributes, and their tensors with their sizes by name.
// The same as h2o_runtime/operators.py, which a test compares with this; nothing of TensorRT is needed to
// read it.
#pragma once

#include <cstdint>
#include <vector>

namespace h2o::trt {

enum class Type {
    kModel,
    kFloat,
    kInt32,
    kInt64
};  // kModel: float32 or float16, one and the same for a node

// What a dimension counts. kTwo and kFour are the numbers themselves.
enum Size {
    kNone,
    kTokens,
    kWindow,
    kQueryHeads,
    kKvHeads,
    kScoreHeads,
    kHeadSize,
    kValueSize,
    kRows,
    kSlots,
    kPrevious,
    kTiles,
    kLists,
    kBlocks,
    kDiagonals,
    kInputs,
    kInputBlocks,
    kOutputs,
    kTwo,
    kFour
};
constexpr int kSizeCount = kFour + 1;
constexpr const char* kSizeNames[kSizeCount] = {"",   "n", "w", "Hq", "Hkv", "Hs", "d",  "dv", "cap", "M",
                                                "Mp", "t", "c", "Nb", "D",   "K",  "Kb", "N",  "2",   "4"};

// Every attribute is required: ONNX graphs always carry them all.
struct AttributeSpec {
    enum Kind { kInt, kPositiveFloat } kind;
    const char* name;
    int64_t least = 0;   // of an int
    Size gives = kNone;  // the size that it is, or is a part of, where no input shows that
};

struct TensorSpec {
    const char* name;
    Type type;
    std::vector<Size> shape;
};

struct Signature {
    const char* name;
    std::vector<AttributeSpec> attributes;
    std::vector<TensorSpec> inputs;
    std::vector<TensorSpec> outputs;
};

std::vector<Signature> signatures();

}  // namespace h2o::trt

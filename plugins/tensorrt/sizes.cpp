// What follows from a signature's sizes: the shapes of outputs, whether inputs agree, the shape that kernels
// take.
#include "operator.h"

namespace h2o::trt {

using nvinfer1::Dims;
using nvinfer1::DimsExprs;

namespace {

constexpr int32_t kAnyHeadSize =
    64;  // for operators without one, of which the kernels use nothing but the heads

int64_t from_attributes(const Signature& signature, const Attributes& attributes, Size size) {
    int64_t sum = size == kTwo ? 2 : size == kFour ? 4 : 0;
    for (size_t i = 0; i < signature.attributes.size(); ++i)
        if (signature.attributes[i].gives == size) sum += attributes[i].integer;
    return sum;
}

const nvinfer1::IDimensionExpr* shown_by(const Signature& signature, const DimsExprs* in, Size size) {
    for (size_t i = 0; i < signature.inputs.size(); ++i)
        for (size_t axis = 0; axis < signature.inputs[i].shape.size(); ++axis)
            if (signature.inputs[i].shape[axis] == size) return in[i].d[axis];
    return nullptr;
}

float scale_of(const Signature& signature, const Attributes& attributes) {
    for (size_t i = 0; i < signature.attributes.size(); ++i)
        if (signature.attributes[i].kind == AttributeSpec::kPositiveFloat) return attributes[i].real;
    return 1;  // operators without a scale of their own: the kernels do not use it
}

}  // namespace

void output_shapes(const Signature& signature, const Attributes& attributes, const DimsExprs* in,
                   DimsExprs* out, nvinfer1::IExprBuilder& builder) {
    for (size_t i = 0; i < signature.outputs.size(); ++i) {
        const std::vector<Size>& shape = signature.outputs[i].shape;
        out[i].nbDims = static_cast<int32_t>(shape.size());
        for (size_t axis = 0; axis < shape.size(); ++axis) {
            const nvinfer1::IDimensionExpr* shown = shown_by(signature, in, shape[axis]);
            out[i].d[axis] =
                shown ? shown : builder.constant(from_attributes(signature, attributes, shape[axis]));
        }
    }
}

bool resolve(const Operator& op, const Attributes& attributes, const std::vector<Dims>& in, h2o_dtype dtype,
             Sizes& sizes, h2o_cuda_shape& shape) {
    std::array<bool, kSizeCount> known{};
    sizes = {};
    for (int size = 0; size < kSizeCount; ++size) {
        sizes.of[size] =
            static_cast<int32_t>(from_attributes(op.signature, attributes, static_cast<Size>(size)));
        known[size] = size == kTwo || size == kFour;
    }
    for (size_t i = 0; i < in.size(); ++i)
        for (size_t axis = 0; axis < op.signature.inputs[i].shape.size(); ++axis) {
            const Size size = op.signature.inputs[i].shape[axis];
            const int32_t here = static_cast<int32_t>(in[i].d[axis]);
            if (known[size] && sizes[size] != here) return false;
            sizes.of[size] = here;
            known[size] = true;
        }
    // Heads that do not show: gathered keys lie by set, so each set is a key/value head to the kernel; where
    // queries do not show, each set has one.
    const int32_t sets = sizes[kScoreHeads] ? sizes[kScoreHeads]
                         : sizes[kKvHeads]  ? sizes[kKvHeads]
                                            : sizes[kQueryHeads];
    const int32_t head_size = sizes[kHeadSize]    ? sizes[kHeadSize]
                              : sizes[kValueSize] ? sizes[kValueSize]
                                                  : kAnyHeadSize;
    shape = {sizes[kQueryHeads] ? sizes[kQueryHeads] : sets,
             sizes[kKvHeads] ? sizes[kKvHeads] : sets,
             sets,
             head_size,
             scale_of(op.signature, attributes),
             dtype,
             sizes[kValueSize]};
    const bool headless = !known[kQueryHeads] && !known[kKvHeads] && !known[kScoreHeads];
    const bool heads =
        headless || (shape.query_heads > 0 && shape.kv_heads > 0 && shape.query_heads % shape.kv_heads == 0 &&
                     (sets == shape.query_heads || shape.kv_heads % sets == 0));
    return heads && (!op.fits || op.fits(sizes));
}

}  // namespace h2o::trt

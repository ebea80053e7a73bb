// What follows for a call of an operator from its tensors alone, as TensorRT's plugins have them.
#include <gtest/gtest.h>

#include "h2o/operator.h"

namespace h2o::test {
namespace {

constexpr int32_t kSame = 4;  // every size that has a name

h2o_dtype dtype_of(Type type) {
    switch (type) {
        case Type::kInt32:
            return H2O_I32;
        case Type::kInt64:
            return H2O_I64;
        default:
            return H2O_F32;
    }
}

TEST(Resolve, AnOperatorWithoutScaleGetsOneThatKernelsAccept) {
    int tried = 0;
    for (const OperatorSpec& op : kOperators) {
        if (op.attributes > 0) continue;
        Arguments arguments;
        for (int i = 0; i < op.tensors; ++i) {
            h2o_tensor& tensor = arguments.tensors[static_cast<size_t>(i)];
            tensor.dtype = dtype_of(op.tensor[i].type);
            tensor.rank = op.tensor[i].rank;
            for (int axis = 0; axis < tensor.rank; ++axis) {
                const int size = op.tensor[i].sizes[axis];
                tensor.sizes[axis] = size < 0 ? -size : kSame;
            }
        }
        if (!resolve(op, arguments).empty()) continue;  // sizes that may not be alike
        EXPECT_GT(arguments.shape.scale, 0) << op.name;
        ++tried;
    }
    EXPECT_GE(tried, 2);
}

}  // namespace
}  // namespace h2o::test

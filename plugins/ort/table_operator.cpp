// Operators of the table h2o_runtime/operators.py for ONNX Runtime's CUDA provider: one code for all of them.
#include <algorithm>
#include <string>

#include "cuda_call.h"
#include "h2o/operator.h"
#include "operator_of.h"
#include "operators.h"
#include "tensor.h"

namespace h2o::ort {
namespace {

// One operator for each type of a model: ONNX Runtime chooses among those of a name.
struct TableOperator : Operator {
    const OperatorSpec* spec;
    const h2o_kernel* kernel;
    ElementType model;
};

const TableOperator& self(const Operator* op) {
    return *static_cast<const TableOperator*>(op);
}

// A node. Its calls share nothing that changes.
struct Node {
    Interface ort;
    const TableOperator& op;
    Arguments given;  // its attributes

    Node(const Table* table, const TableOperator& which) : ort(table), op(which) {}

    Status* refuse(const std::string& why) const {
        return ort.error((std::string(op.spec->name) + ": " + why).c_str());
    }
    Status* read(const KernelInfo* info);
    Status* compute(KernelContext* context) const;
};

Status* Node::read(const KernelInfo* info) {
    for (int i = 0; i < op.spec->attributes; ++i) {
        const AttributeSpec& spec = op.spec->attribute[i];
        h2o_attribute& value = given.attributes[static_cast<size_t>(i)];
        if (spec.integer) {
            H2O_RETURN_IF(ort.attribute(info, spec.name, &value.integer));
        } else {
            H2O_RETURN_IF(ort.attribute(info, spec.name, &value.real));
        }
        given.given[static_cast<size_t>(i)] = true;
    }
    return nullptr;
}

bool dtype_of(ElementType type, h2o_dtype& dtype) {
    if (type != kFloat && type != kHalf) return false;
    dtype = type == kFloat ? H2O_F32 : H2O_F16;
    return true;
}

// One call. Where the table has two dimensions, such as rows [n, K], a tensor may have more: those before the
// last are rows too, here of all inputs and outputs alike.
class Run {
  public:
    Run(const Node& node, KernelContext* context)
        : node_(node), spec_(*node.op.spec), context_(context), arguments_(node.given) {}

    Status* inputs();
    Status* outputs();
    Status* enqueue();

  private:
    Status* take(int index, const Tensor& tensor);

    const Node& node_;
    const OperatorSpec& spec_;
    KernelContext* context_;
    Arguments arguments_;
    Tensor first_;  // its leading dimensions are those of the outputs
};

Status* Run::take(int index, const Tensor& tensor) {
    const TensorSpec& spec = spec_.tensor[index];
    h2o_tensor& to = arguments_.tensors[static_cast<size_t>(index)];
    if (tensor.dimensions > kMostDimensions || !dtype_of(tensor.type, to.dtype))
        return node_.refuse(std::string(spec.name) +
                            " has a type or a number of dimensions without a kernel");
    const int more = std::max(static_cast<int>(tensor.dimensions) - spec.rank, 0);
    int64_t rows = 1;
    for (int axis = 0; axis < more; ++axis) rows *= tensor.sizes[axis];
    to.data = tensor.data;
    to.rank = static_cast<int32_t>(tensor.dimensions) - more;
    for (int axis = 0; axis < to.rank; ++axis) to.sizes[axis] = tensor.sizes[more + axis];
    if (to.rank > 0) to.sizes[0] *= rows;
    return nullptr;
}

Status* Run::inputs() {
    size_t count = 0;
    H2O_RETURN_IF(node_.ort.input_count(context_, &count));
    for (int i = 0; i < spec_.inputs; ++i) {
        Tensor tensor;
        H2O_RETURN_IF(tensor.read(node_.ort, context_, count, static_cast<size_t>(i)));
        H2O_RETURN_IF(take(i, tensor));
        if (i == 0) first_ = tensor;
    }
    arguments_.shape.dtype = arguments_.tensors[0].dtype;
    arguments_.outputs = false;
    const std::string wrong = h2o::resolve(spec_, arguments_);
    return wrong.empty() ? nullptr : node_.ort.error(wrong.c_str());
}

Status* Run::outputs() {
    for (int i = spec_.inputs; i < spec_.tensors; ++i) {
        const TensorSpec& spec = spec_.tensor[i];
        const size_t leading = first_.dimensions - static_cast<size_t>(spec_.tensor[0].rank);
        int64_t sizes[2 * kMostDimensions];
        std::copy_n(first_.sizes, leading + 1, sizes);
        for (int axis = 1; axis < spec.rank; ++axis)
            sizes[leading + static_cast<size_t>(axis)] =
                arguments_.sizes[static_cast<size_t>(spec.sizes[axis])];
        const size_t index = static_cast<size_t>(i - spec_.inputs);
        const size_t dimensions = leading + static_cast<size_t>(spec.rank);
        H2O_RETURN_IF(output(node_.ort, context_, index, sizes, dimensions,
                             &arguments_.tensors[static_cast<size_t>(i)].data));
    }
    return nullptr;
}

Status* Run::enqueue() {
    h2o_call call = arguments_.call(nullptr);
    H2O_RETURN_IF(node_.ort.stream(context_, &call.context));
    return told(node_.ort, node_.op.spec->name, call.context, node_.op.kernel->run(&call));
}

Status* Node::compute(KernelContext* context) const {
    Run run(*this, context);
    H2O_RETURN_IF(run.inputs());
    H2O_RETURN_IF(run.outputs());
    return run.enqueue();
}

Status* create(const Operator* op, const Table* table, const KernelInfo* info, void** out) {
    std::unique_ptr<Node> node(new (std::nothrow) Node(table, self(op)));
    if (node == nullptr) return Interface(table).error("no memory");
    H2O_RETURN_IF(node->read(info));
    *out = node.release();
    return nullptr;
}

ElementType element_type(const TableOperator& op, size_t tensor) {
    const Type type = op.spec->tensor[tensor].type;
    return type == Type::kModel ? op.model : kFloat;
}

TableOperator operator_of_table(const char* name, ElementType model) {
    TableOperator op{operator_of<Node>([](const Operator* op) { return self(op).spec->name; }, create),
                     find_operator(name), h2o_cuda_kernel(name), model};
    op.provider = [](const Operator*) { return kCudaProvider; };
    op.inputs = [](const Operator* op) { return static_cast<size_t>(self(op).spec->inputs); };
    op.outputs = [](const Operator* op) {
        return static_cast<size_t>(self(op).spec->tensors - self(op).spec->inputs);
    };
    op.input_type = [](const Operator* op, size_t i) { return element_type(self(op), i); };
    op.output_type = [](const Operator* op, size_t i) {
        return element_type(self(op), static_cast<size_t>(self(op).spec->inputs) + i);
    };
    return op;
}

}  // namespace

const std::vector<const Operator*>& dense_operators() {
    static const TableOperator all[] = {
#define H2O_OPERATOR(Name) operator_of_table(#Name, kFloat), operator_of_table(#Name, kHalf),
        H2O_DENSE_OPERATORS(H2O_OPERATOR)
#undef H2O_OPERATOR
    };
    static const std::vector<const Operator*> list = [] {
        std::vector<const Operator*> pointers;
        for (const TableOperator& op : all) pointers.push_back(&op);
        return pointers;
    }();
    return list;
}

}  // namespace h2o::ort

// Binds the names of sizes to what a call's tensors have.
#include <algorithm>
#include <cstring>

#include "h2o/operator.h"

namespace h2o {
namespace {

constexpr int32_t kUnknown = -1;
// Of operators without one, whose kernels do not use it.
constexpr int32_t kAnyHeadSize = 64;
constexpr float kAnyScale = 1;

const char* name_of(h2o_dtype dtype) {
    static const char* const names[] = {"float32", "float16", "int8", "int32", "int64"};
    return names[dtype];
}

std::string list_of(const h2o_tensor& tensor) {
    std::string text = "(";
    for (int i = 0; i < tensor.rank; ++i) text += (i ? ", " : "") + std::to_string(tensor.sizes[i]);
    return text + ")";
}

class Binding {
  public:
    Binding(const OperatorSpec& op, Arguments& arguments) : op_(op), arguments_(arguments) {
        arguments.sizes.fill(kUnknown);
        know(kSize_Hq, arguments.shape.query_heads);
        know(kSize_Hkv, arguments.shape.kv_heads);
        know(kSize_d, arguments.shape.head_size);
        know(kSize_dv, arguments.shape.value_size);
    }

    std::string run() {
        const int count = arguments_.outputs ? op_.tensors : op_.inputs;
        for (int i = 0; i < count && error_.empty(); ++i) bind(i);
        for (int i = 0; i < op_.attributes && error_.empty(); ++i) complete(i);
        for (int i = 0; i < op_.attributes && error_.empty(); ++i) check(i);
        if (error_.empty()) check_relations();
        if (error_.empty()) finish();
        return error_;
    }

  private:
    void know(int size, int32_t value) {
        if (value > 0) arguments_.sizes[size] = value;
    }
    int32_t& size(int which) { return arguments_.sizes[which]; }

    bool type_fits(const TensorSpec& spec, h2o_dtype dtype) const {
        const bool stored = spec.part == Part::kKeys || spec.part == Part::kValues;
        return dtype == dtype_of(spec.type, arguments_.shape.dtype) ||
               (stored && (dtype == H2O_F16 || dtype == H2O_I8));
    }

    std::string types(const TensorSpec& spec) const {
        if (spec.type == Type::kInt32) return "int32";
        if (spec.type == Type::kInt64) return "int64";
        const bool half = spec.type == Type::kModel && arguments_.shape.dtype == H2O_F16;
        if (spec.part == Part::kNone) return half ? "float16" : "float32";
        return half ? "float16 or int8" : "float32, float16 or int8";
    }

    void refuse(const std::string& what) { error_ = std::string(op_.method) + ": " + what; }

    void bind(int index) {
        const TensorSpec& spec = op_.tensor[index];
        const h2o_tensor& tensor = arguments_.tensors[static_cast<size_t>(index)];
        if (tensor.rank < 0) {
            if (!spec.optional) refuse(std::string(spec.name) + " is missing");
            return;
        }
        if (!type_fits(spec, tensor.dtype))
            return refuse(std::string(spec.name) + " must be " + types(spec) + ", but is " +
                          name_of(tensor.dtype));
        // Values that are a part of the keys come as these, and have their size.
        const bool in_keys = index > 0 && tensor.data != nullptr &&
                             tensor.data == arguments_.tensors[static_cast<size_t>(index) - 1].data;
        if (!shape_fits(spec, tensor, in_keys))
            return refuse(std::string(spec.name) + " must have shape " + wanted(spec, in_keys) + " but has " +
                          list_of(tensor));
    }

    // A scalar may come as an array of one number.
    bool shape_fits(const TensorSpec& spec, const h2o_tensor& tensor, bool in_keys) {
        if (spec.rank == 0) return tensor.rank == 0 || (tensor.rank == 1 && tensor.sizes[0] == 1);
        if (tensor.rank != spec.rank) return false;
        for (int axis = 0; axis < spec.rank; ++axis) {
            const int64_t here = tensor.sizes[axis];
            int which = spec.sizes[axis];
            if (which == kSize_dv && in_keys) which = kSize_d;
            if (here > INT32_MAX || (which < 0 && here != -which)) return false;
            if (which < 0) continue;
            if (size(which) != kUnknown && size(which) != here) return false;
            size(which) = static_cast<int32_t>(here);
        }
        return true;
    }

    std::string wanted(const TensorSpec& spec, bool in_keys) {
        std::string text = "(";
        for (int axis = 0; axis < spec.rank; ++axis) {
            int which = spec.sizes[axis];
            if (which == kSize_dv && in_keys) which = kSize_d;
            if (axis) text += ", ";
            if (which < 0) {
                text += std::to_string(-which);
            } else {
                text += kSizeNames[which];
                if (size(which) != kUnknown) text += " = " + std::to_string(size(which));
            }
        }
        return text + ")";
    }

    // The sum of the given attributes that a size is, and how many of them are not given.
    int64_t given_of(int which, int& missing) const {
        int64_t sum = 0;
        missing = 0;
        for (int i = 0; i < op_.attributes; ++i) {
            if (op_.attribute[i].gives != which) continue;
            if (arguments_.given[static_cast<size_t>(i)]) {
                sum += arguments_.attributes[static_cast<size_t>(i)].integer;
            } else {
                ++missing;
            }
        }
        return sum;
    }

    void complete(int index) {
        const AttributeSpec& spec = op_.attribute[index];
        const size_t at = static_cast<size_t>(index);
        if (arguments_.given[at]) return;
        h2o_attribute& value = arguments_.attributes[at];
        if (spec.of_model != OfModel::kNothing) {
            const h2o_shape& shape = arguments_.shape;
            value = {shape.window, spec.of_model == OfModel::kScale ? shape.scale : shape.softcap};
        } else if (spec.gives < 0) {
            return refuse(std::string(spec.name) + " is missing");
        } else {
            int missing = 0;
            const int64_t sum = given_of(spec.gives, missing);
            int64_t whole = size(spec.gives);
            if (whole == kUnknown && spec.gives == kSize_Hs) whole = size(kSize_Hkv);
            if (whole == kUnknown || missing != 1) return refuse(std::string(spec.name) + " is missing");
            value.integer = static_cast<int32_t>(whole - sum);
        }
        arguments_.given[at] = true;
    }

    void check(int index) {
        const AttributeSpec& spec = op_.attribute[index];
        const h2o_attribute& value = arguments_.attributes[static_cast<size_t>(index)];
        if (spec.integer && value.integer < spec.least)
            return refuse(std::string(spec.name) + " is out of range: " + std::to_string(value.integer) +
                          " is below " + std::to_string(spec.least));
        if (spec.gives >= 0) {
            int missing = 0;
            const int64_t whole = given_of(spec.gives, missing);
            if (size(spec.gives) == kUnknown) size(spec.gives) = static_cast<int32_t>(whole);
            if (size(spec.gives) != whole)
                return refuse(std::string(spec.name) + ": " + kSizeNames[spec.gives] + " is " +
                              std::to_string(whole) + " by the attributes, but " +
                              std::to_string(size(spec.gives)) + " by the tensors");
        }
        if (spec.tiles >= 0) check_tiles(value.integer, spec.tiles);
    }

    void check_tiles(int32_t tile, int which) {
        const int64_t n = size(kSize_n), tiles = std::max<int64_t>((n + tile - 1) / tile, 1);
        if (size(which) == tiles) return;
        for (int i = 0; i < op_.tensors; ++i) {
            const TensorSpec& spec = op_.tensor[i];
            if (spec.rank == 0 || spec.sizes[0] != which) continue;
            const std::string has = list_of(arguments_.tensors[static_cast<size_t>(i)]);
            size(which) = static_cast<int32_t>(tiles);
            return refuse(std::string(spec.name) + " must have shape " + wanted(spec, false) + " but has " +
                          has + ": " + std::to_string(n) + " tokens are cut into tiles of " +
                          std::to_string(tile));
        }
    }

    // What names of sizes say of each other.
    void check_relations() {
        const auto both = [&](int a, int b) { return size(a) != kUnknown && size(b) != kUnknown; };
        const auto say = [&](int which) {
            return std::string(kSizeNames[which]) + " is " + std::to_string(size(which));
        };
        if (both(kSize_w, kSize_n) && size(kSize_w) > size(kSize_n))
            return refuse(say(kSize_w) + " and " + say(kSize_n) + ": voters must be tokens of the call");
        if (both(kSize_Hq, kSize_Hkv) && (size(kSize_Hkv) <= 0 || size(kSize_Hq) % size(kSize_Hkv) != 0))
            return refuse(say(kSize_Hq) + " and " + say(kSize_Hkv) + ": heads must divide");
        const int heads = size(kSize_Hkv) != kUnknown ? kSize_Hkv : kSize_Hq;
        if (!both(kSize_Hs, heads)) return;
        const int32_t sets = size(kSize_Hs), keys = size(heads);
        const bool divides = sets > 0 && (sets == size(kSize_Hq) || keys % sets == 0);
        if (!divides) refuse(say(kSize_Hs) + " and " + say(heads) + ": score heads must divide them");
    }

    // The shape that kernels take. Heads that do not show: gathered keys lie by score head, each of which is
    // a key/value head then.
    void finish() {
        h2o_shape& shape = arguments_.shape;
        const auto first = [&](std::initializer_list<int> which, int32_t otherwise) {
            for (const int each : which)
                if (size(each) > 0) return size(each);
            return otherwise;
        };
        shape.score_heads = first({kSize_Hs, kSize_Hkv, kSize_Hq}, 0);
        shape.query_heads = first({kSize_Hq}, shape.score_heads);
        shape.kv_heads = first({kSize_Hkv}, shape.score_heads);
        shape.head_size = first({kSize_d, kSize_dv}, kAnyHeadSize);
        shape.value_size = first({kSize_dv, kSize_d}, kAnyHeadSize);
        if (shape.scale == 0) shape.scale = kAnyScale;
        shape.window = 0;  // of operators without the attribute
        shape.softcap = 0;
        for (int i = 0; i < op_.attributes; ++i) {
            const h2o_attribute& value = arguments_.attributes[static_cast<size_t>(i)];
            switch (op_.attribute[i].of_model) {
                case OfModel::kNothing:
                    break;
                case OfModel::kScale:
                    shape.scale = value.real;
                    break;
                case OfModel::kWindow:
                    shape.window = value.integer;
                    break;
                case OfModel::kSoftcap:
                    shape.softcap = value.real;
            }
        }
        for (int32_t& each : arguments_.sizes)
            if (each == kUnknown) each = 0;
    }

    const OperatorSpec& op_;
    Arguments& arguments_;
    std::string error_;
};

}  // namespace

const OperatorSpec* find_operator(const std::string& name) {
    const OperatorSpec* const end = kOperators + sizeof kOperators / sizeof *kOperators;
    const OperatorSpec* const found =
        std::find_if(kOperators, end, [&](const OperatorSpec& op) { return name == op.name; });
    return found == end ? nullptr : found;
}

std::string resolve(const OperatorSpec& op, Arguments& arguments) {
    return Binding(op, arguments).run();
}

}  // namespace h2o

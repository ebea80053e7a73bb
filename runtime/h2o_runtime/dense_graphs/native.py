"""Dense graphs with native products: PackedProduct, PackedMlp and PackedExperts of plugins/ort.

With integer weights, activations become integers in blocks of the same size. Those of a head are rounded
twice, first themselves and then the rounding error, 15 bits together, because errors go directly into the
logits. Under the precision "bfloat16" integers of a prompt's products become bfloat16, as its activations do. Those
of steps stay integers (`multiply_in_integers`).

With float weights nothing is rounded, unless weights become bfloat16, and on some processors activations too.
Products that read the same activations are one node, which prepares them once. For one token of a small model
each node costs as much as a matrix. So a product's node also includes its neighbours: the norm or the gate of an
MLP before it, block offsets, the residual added to its result, the rotation of queries and keys. A gated MLP is
one node: in a long prompt, the activations between its products never leave the caches.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from h2o_plugins import NativeKernelsMissing, cpu_kernels, onnxruntime_operators
from h2o_runtime.dense_graphs.graph_view import GraphView, Rotation, keep_needed, mixtures, with_nodes
from h2o_runtime.dense_graphs.matrices import FloatProduct
from h2o_runtime.dense_graphs.packed import Kind, Pack, Product, pack_matrices, products
from h2o_runtime.dense_graphs.packed_nodes import (
    DOMAIN,
    After,
    Arrays,
    Before,
    ExpertsNode,
    MlpNode,
    ProductNode,
)
from h2o_runtime.errors import BackendError
from h2o_runtime.names import DensePrecision

MOST_MATRICES = 8  # of one node
ROTATED_STEP = 32  # head sizes that it can rotate


def is_fast() -> bool:
    """Whether the native products are built and this CPU has instructions for them."""
    kernels = cpu_kernels()
    if kernels is None or kernels.product_instructions() == "scalar":
        return False
    try:
        onnxruntime_operators()
    except NativeKernelsMissing:
        return False
    return True


def is_fast_with_float16() -> bool:
    """Whether the native products, of such weights as bfloat16, are faster than ONNX Runtime's with float16.

    x86-64 makes floats of these. AArch64 may multiply them, which was not measured: without instructions for
    bfloat16 it is left to ONNX Runtime.
    """
    kernels = cpu_kernels()
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_fast() and kernels is not None and (on_x86 or kernels.products_multiply_bfloat16())


def can_widen() -> bool:
    """Whether integers and activations can become bfloat16 for products here: with AMX."""
    kernels = cpu_kernels()
    return is_fast() and kernels is not None and kernels.products_widen_integers()


def operators() -> Path:
    """The library that ONNX Runtime loads. Raises BackendError if it is missing."""
    try:
        return onnxruntime_operators()
    except NativeKernelsMissing as error:
        raise BackendError(f"{error}, or choose another `dense_form`") from None


def multiply_natively(
    model: Any,
    path: Path,
    threads: int,
    pack: Pack = pack_matrices,
    precision: DensePrecision = "float32",
) -> tuple[Any, Arrays]:
    """A ModelProto that was loaded from `path` → one with products of our own, and weights to give its session.

    `precision` is that of the products with float weights; "bfloat16" also of a prompt's with integers.

    The model only names these weights: inside the model they would be in memory three times while a session
    is created, and limited to two gigabytes. ONNX Runtime needs a file name for each; that is `path`, from
    which it reads nothing.
    """
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[Any] = list(graph.node)
    arrays: dict[str, NDArray[Any]] = {}
    view = GraphView(graph)
    for node in _with_experts(list(_with_mlps(list(_nodes(view, precision)), view, threads)), view):
        packed, weights = node.build(pack, tensors, path.parent)
        fresh = {name for node in packed for name in node.output}
        nodes = [*(node for node in nodes if fresh.isdisjoint(node.output)), *packed]
        arrays.update(weights)
    initializers = [*graph.initializer, *(_named(name, array, path) for name, array in arrays.items())]
    result = with_nodes(model, nodes, initializers, DOMAIN, 1)
    keep_needed(result.graph)
    return result, arrays


def _named(name: str, array: NDArray[Any], path: Path) -> Any:
    from onnx import TensorProto, helper

    tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
    tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    for key, value in {"location": path.name, "offset": 0, "length": array.nbytes}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _nodes(view: GraphView, precision: DensePrecision) -> Iterator[ProductNode]:
    rotations = {rotation.x: rotation for rotation in view.rotations()}
    if len({(rotation.cos, rotation.sin) for rotation in rotations.values()}) > 1:
        rotations = {}  # a node has one pair of tables
    together: dict[tuple[str, Kind], list[Product]] = {}
    for product in products(view.graph, precision):
        together.setdefault((product.product.input[0], Kind.of(product)), []).append(product)
    for group in together.values():
        for start in range(0, len(group), MOST_MATRICES):
            part = group[start : start + MOST_MATRICES]
            ends = [(product, _after(product, view, rotations, alone=len(part) == 1)) for product in part]
            ends.sort(key=lambda end: end[1].rotation is None)
            head = part[0].output in view.results  # only its product is single; others go through more nodes
            yield ProductNode(
                tuple(product for product, _ in ends),
                _before(part[0].product.input[0], view),
                tuple(after for _, after in ends),
                head=head,
                parts=_parts(Kind.of(part[0]), head, precision),
            )


def _parts(kind: Kind, head: bool, precision: DensePrecision) -> int:
    """Integers that make an activation: none where it becomes bfloat16."""
    if not kind.block:
        return 1
    if head:
        return 2
    return 0 if precision == "bfloat16" else 1


def _with_mlps(
    nodes: Sequence[ProductNode], view: GraphView, threads: int
) -> Iterator[ProductNode | MlpNode]:
    """Combine gate and up with the product that reads them into one node."""
    makers = {after.out: node for node in nodes for after in node.after}
    mlps: dict[str, MlpNode] = {}  # by their results
    taken: list[ProductNode] = []
    for node in nodes:
        between = makers.get(node.before.x) if node.before.up else None
        if between is not None and _is_mlp(between, node, view):
            outputs = {
                after.out: product for product, after in zip(between.products, between.after, strict=True)
            }
            gate, up = outputs[node.before.x], outputs[node.before.up]
            (down,), (after,) = node.products, node.after
            bias = {product.out: product.bias for product in (*between.after, after) if product.bias}
            biases = tuple(bias[name] for name in (node.before.x, node.before.up, after.out) if bias)
            mlps[after.out] = MlpNode(
                gate, up, down, between.before, after, node.before.gate, threads, node.parts, biases
            )
            taken.append(between)
    for node in nodes:
        if not any(node is known for known in taken):
            yield mlps.get(node.after[0].out, node)


def _with_experts(
    nodes: Sequence[ProductNode | MlpNode], view: GraphView
) -> Iterator[ProductNode | MlpNode | ExpertsNode]:
    """Combine the MLPs of a mixture, and what brings rows to them and back, into one node."""
    mlps = {node.after.out: node for node in nodes if isinstance(node, MlpNode)}
    makers = {
        out for node in nodes for out in node.outputs
    }  # a shared expert's product adds the mixture's sum
    for mixture in mixtures(view, {name: mlp.before.x for name, mlp in mlps.items()}):
        experts = tuple(mlps[name] for name in mixture.said)
        if len({(Kind.of(expert.gate), expert.function, bool(expert.biases)) for expert in experts}) == 1:
            added = _added(mixture.out, view)
            after = added if added and added.out not in makers else After(mixture.out)
            yield ExpertsNode(mixture, experts, after)
            mlps = {name: mlp for name, mlp in mlps.items() if name not in mixture.said}
    yield from (node for node in nodes if not isinstance(node, MlpNode) or node.after.out in mlps)


def _is_mlp(between: ProductNode, down: ProductNode, view: GraphView) -> bool:
    """Whether `between` produces gate and up of `down` and nothing else, and no other node reads them."""
    gated = (down.before.x, down.before.up)
    products = (*between.products, *down.products)
    return (
        len(down.products) == 1
        and not down.head
        and not down.after[0].heads
        and not between.before.up
        and sorted(after.out for after in between.after) == sorted(gated)
        and all(after == After(after.out, after.bias) for after in between.after)
        and all(len(view.readers(name)) == 1 and name not in view.results for name in gated)
        and len({Kind.of(product) for product in products}) == 1
        and len({bool(after.bias) for after in (*between.after, *down.after)}) == 1
    )


def _before(x: str, view: GraphView) -> Before:
    gate = view.gate(x)
    if gate is not None:
        return Before(gate.x, up=gate.up, gate=gate.function)
    norm = view.norm(x)
    if norm is not None:
        return Before(norm.x, norm=norm.weight, epsilon=norm.epsilon)
    reshape = view.maker(x, "Reshape")
    shape = () if reshape is None else view.shape(reshape.input[0])
    if reshape is not None and len(shape) == 3 and shape[1] > 1:
        return Before(reshape.input[0])  # [n, heads, K / heads]
    return Before(x)


def _after(product: Product, view: GraphView, rotations: Mapping[str, Rotation], alone: bool) -> After:
    out, bias = _biased(product, view)
    if bias:
        return After(out, bias)
    readers = view.readers(out)
    if len(readers) != 1 or out in view.results:
        return After(out)
    (reader,) = readers
    if alone and (added := _added(out, view)) is not None:
        return added
    if reader.op_type == "Reshape":
        rotation = rotations.get(out)
        # Only the rotation may read the unrotated result.
        if rotation and rotation.size % ROTATED_STEP == 0 and len(view.readers(reader.output[0])) == 1:
            return After(rotation.out, heads=rotation.heads, rotation=rotation)
        shape = view.shape(reader.output[0])
        if len(shape) == 3 and reader.output[0] in view.results:
            return After(reader.output[0], heads=shape[1])
    return After(out)


def _biased(product: Product, view: GraphView) -> tuple[str, str]:
    """What a product's result is with its bias, and this constant, or ""."""
    out = product.output
    if isinstance(product, FloatProduct) and product.bias:
        return out, product.bias
    readers = view.readers(out)
    if len(readers) == 1 and out not in view.results and readers[0].op_type == "Add":
        (operand,) = (name for name in readers[0].input if name != out)
        if operand in view.constants and len(view.constants[operand].dims) == 1:
            return readers[0].output[0], operand
    return out, ""


def _added(out: str, view: GraphView) -> After | None:
    """The sum of `out` and another tensor of its size, if nothing else reads `out`."""
    readers = view.readers(out)
    if len(readers) != 1 or out in view.results or readers[0].op_type != "Add":
        return None
    (operand,) = (name for name in readers[0].input if name != out)
    # A constant is a bias, which is smaller.
    return None if operand in view.constants else After(readers[0].output[0], addend=operand)

"""Nodes with native products of plugins/ort: what each computes, and how it is added to a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from h2o_runtime.dense_graphs.graph_view import SWIGLU, GateFunction, Mixture, Rotation, make_node
from h2o_runtime.dense_graphs.packed import Kind, Pack, Packed, Product, name_of

DOMAIN = "h2o.cpu"
PRODUCT, MLP, EXPERTS = "PackedProduct", "PackedMlp", "PackedExperts"

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Before:
    """What a node makes of its activations: x itself, a gate and `up`, or a norm."""

    x: str
    up: str = ""
    gate: GateFunction = SWIGLU
    norm: str = ""
    epsilon: float = 0.0


@dataclass(frozen=True)
class After:
    """Where a product's result goes.

    bias      a constant [N] that is added to it, or ""; the other fields are then empty
    addend    what is added to it, or ""
    heads     how many heads it is cut into, or 0
    rotation  what turns them, or None
    """

    out: str
    bias: str = ""
    addend: str = ""
    heads: int = 0
    rotation: Rotation | None = None


@dataclass(frozen=True)
class ProductNode:
    """One PackedProduct of matrices that read the same activations; those with rotated results come first.

    parts  integers that make an activation, see plugins/kernels/include/h2o/products.h; those of a head are two
    """

    products: tuple[Product, ...]
    before: Before
    after: tuple[After, ...]
    head: bool
    parts: int

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(after.out for after in self.after)

    def build(self, pack: Pack, tensors: Mapping[str, Any], folder: Path) -> tuple[list[Any], Arrays]:
        """The node, with what adds biases behind it, and its weights."""
        kind = Kind.of(self.products[0])
        packed = pack(self.products, tensors, folder)
        name = self.after[0].out
        names, arrays = _weights(self.products, packed)
        biases = {after.out: after.bias for after in self.after if after.bias}
        outs = [f"{after.out}/product" if after.out in biases else after.out for after in self.after]
        turned = [after.rotation for after in self.after if after.rotation is not None]
        tables = [turned[0].cos, turned[0].sin] if turned else ["", ""]
        before = self.before
        product = make_node(
            PRODUCT,
            [before.x, *names, before.up, before.norm, self.after[0].addend, *tables],
            f"{name}/scratch",
            *outs,
            name=name,
            domain=DOMAIN,
            K=packed.inputs,
            N=packed.outputs,
            heads=[after.heads for after in self.after],
            block=kind.block,
            bits=kind.bits,
            parts=self.parts,
            rotated=len(turned),
            epsilon=before.epsilon,
            **before.gate.settings,
        )
        sums = [
            make_node("Add", [f"{out}/product", bias], out, name=f"{out}/Add") for out, bias in biases.items()
        ]
        return [product, *sums], arrays


@dataclass(frozen=True)
class MlpNode:
    """One PackedMlp: gate and up read the same activations, and `down` reads the gated product of both.

    gate, up, down  matrices of one kind
    before          of gate and up
    after           of down
    function        of the gate
    threads         that share its rows
    parts           as ProductNode has them
    biases          of gate, up and down, or none
    """

    gate: Product
    up: Product
    down: Product
    before: Before
    after: After
    function: GateFunction
    threads: int
    parts: int
    biases: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.after.out,)

    def build(self, pack: Pack, tensors: Mapping[str, Any], folder: Path) -> tuple[list[Any], Arrays]:
        """The node and its weights."""
        name = self.after.out
        packed = self.pack(pack, tensors, folder)
        node = make_node(
            MLP,
            [self.before.x, *packed.names, self.before.norm, self.after.addend, *self.biases],
            *(f"{name}/scratch", name),
            name=name,
            domain=DOMAIN,
            epsilon=self.before.epsilon,
            threads=self.threads,
            parts=self.parts,
            **packed.sizes,
        )
        return [node], packed.arrays

    def pack(self, pack: Pack, tensors: Mapping[str, Any], folder: Path) -> PackedMlp:
        kind = Kind.of(self.gate)
        between = pack((self.gate, self.up), tensors, folder)
        down = pack((self.down,), tensors, folder)
        names, arrays = _weights((self.gate, self.up), between)
        down_names, down_arrays = _weights((self.down,), down)
        sizes = {
            "K": between.inputs,
            "inner": down.inputs,
            "N": down.outputs[0],
            "block": kind.block,
            "bits": kind.bits,
            **self.function.settings,
        }
        return PackedMlp((*names, *down_names), sizes, {**arrays, **down_arrays})


@dataclass(frozen=True)
class PackedMlp:
    """The matrices of an MLP: the six inputs of a node that has them, its attributes, and arrays by name."""

    names: tuple[str, ...]
    sizes: Mapping[str, Any]
    arrays: Arrays


@dataclass(frozen=True)
class ExpertsNode:
    """One PackedExperts: all of a mixture.

    experts  MLPs of one kind and size
    after    of the sum
    """

    mixture: Mixture
    experts: tuple[MlpNode, ...]
    after: After

    def build(self, pack: Pack, tensors: Mapping[str, Any], folder: Path) -> tuple[list[Any], Arrays]:
        """The node and its weights."""
        name, mixture = self.after.out, self.mixture
        packed = [expert.pack(pack, tensors, folder) for expert in self.experts]
        given = [
            name
            for matrices, expert in zip(packed, self.experts, strict=True)
            for name in (*matrices.names, *expert.biases)
            if name
        ]
        node = make_node(
            EXPERTS,
            [mixture.x, mixture.chosen, mixture.shares, self.after.addend, *given],
            *(f"{name}/order", f"{name}/scratch", name),
            name=name,
            domain=DOMAIN,
            experts=len(packed),
            biased=int(bool(self.experts[0].biases)),
            threads=self.experts[0].threads,
            parts=1,  # an expert has few rows
            **packed[0].sizes,
        )
        return [node], {key: array for matrices in packed for key, array in matrices.arrays.items()}


def _weights(matrices: Sequence[Product], packed: Packed) -> tuple[list[str], Arrays]:
    """The names of a node's weights, scales and offsets, "" where there are none, and the arrays by name."""
    name, given = name_of(matrices), packed.arrays
    names = [f"{name}/{key}" if key in given else "" for key in ("weights", "scales", "offsets")]
    return names, {f"{name}/{key}": array for key, array in given.items()}

"""Looks up int8 rows as int32 words.

TensorRT accepts int8 only directly before a conversion to floats, so it would convert a whole table in every
call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

BYTES = 4  # of a word: int32, for which every TensorRT has a lookup


def use_words(model: Any) -> None:
    """Replace lookups in a table of int8, if `model` has one, by lookups in int32 words over the same
    bytes.
    """
    graph = model.graph
    tables = {t.name: t for t in graph.initializer if t.data_type == TensorProto.INT8}
    found = [node for node in graph.node if node.op_type == "Gather" and node.input[0] in tables]
    if not found:
        return
    nodes: list[Any] = []
    for node in graph.node:
        if node in found:
            table = tables[node.input[0]]
            rows, columns = table.dims
            table.data_type = TensorProto.INT32
            table.dims[:] = [rows, columns // BYTES]
            nodes += _look_up(node, columns)
            graph.initializer.extend(_constants())
        elif node.op_type == "DequantizeLinear" and any(
            node.input[0] == gather.output[0] for gather in found
        ):
            nodes += _scale(node)
            graph.initializer.extend(_shapes(node))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _look_up(gather: Any, columns: int) -> list[Any]:
    """Words [n, D / 4] → their bytes as floats [n, D], each from -128 to 127.

    Mod has the sign of its divisor, so it gives the lowest byte of a word of either sign. The rest is a
    multiple of 256, which Div halves eight times without a remainder.
    """
    name = gather.output[0]
    nodes = [helper.make_node("Gather", gather.input, [f"{name}/word0"], axis=0)]
    byte_columns = []
    for i in range(BYTES):
        word, byte = f"{name}/word{i}", f"{name}/byte{i}"
        nodes += [
            helper.make_node("Mod", [word, "words/256"], [byte]),
            helper.make_node("Sub", [word, byte], [f"{word}/rest"]),
            helper.make_node("Div", [f"{word}/rest", "words/256"], [f"{name}/word{i + 1}"]),
            helper.make_node("Unsqueeze", [byte, "words/last"], [f"{byte}/column"]),
        ]
        byte_columns.append(f"{byte}/column")
    nodes += [
        helper.make_node("Concat", byte_columns, [f"{name}/bytes"], axis=2),
        helper.make_node("Add", [f"{name}/bytes", "words/128"], [f"{name}/shifted"]),
        helper.make_node("Mod", [f"{name}/shifted", "words/256"], [f"{name}/wrapped"]),
        helper.make_node("Sub", [f"{name}/wrapped", "words/128"], [name]),
    ]
    return nodes


def _scale(dequantize: Any) -> list[Any]:
    """Rows of integers times rows of scales, one for each block."""
    q, scales = dequantize.input
    out = dequantize.output[0]
    return [
        helper.make_node("Reshape", [q, f"{out}/blocks"], [f"{out}/integers"]),
        helper.make_node("CastLike", [f"{out}/integers", scales], [f"{out}/floats"]),
        helper.make_node("Unsqueeze", [scales, "words/last"], [f"{out}/scales"]),
        helper.make_node("Mul", [f"{out}/floats", f"{out}/scales"], [f"{out}/scaled"]),
        helper.make_node("Flatten", [f"{out}/scaled"], [out], axis=1),
    ]


def _constants() -> list[Any]:
    return [
        numpy_helper.from_array(np.array(256, np.int32), "words/256"),
        numpy_helper.from_array(np.array(128, np.int32), "words/128"),
        numpy_helper.from_array(np.array([2], np.int64), "words/last"),
    ]


def _shapes(dequantize: Any) -> list[Any]:
    size = next(attribute.i for attribute in dequantize.attribute if attribute.name == "block_size")
    blocks = numpy_helper.from_array(np.array([0, -1, size], np.int64), f"{dequantize.output[0]}/blocks")
    return [blocks]

"""Compares single products, ours with those of ONNX Runtime and torch, with integer and float weights, interleaved.

    python -m bench.dense.products [--bits 8] [--threads 1] [--rounds 9]

Prints milliseconds (minimum over the rounds) and the rate of floating-point operations. Of bfloat16 the share of
torch's rate is the median over rounds; torch is given activations that are already bfloat16, ours rounds them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from h2o_plugins import load_cpu_kernels
from h2o_runtime.dense_graphs.integer_products import INTEGER_ACTIVATIONS, MICROSOFT
from h2o_runtime.dense_graphs.native import is_fast, operators
from h2o_runtime.dense_graphs.packed_nodes import DOMAIN, PRODUCT
from h2o_runtime.dense_graphs.panels import pack, pack_bfloat16, pack_floats, pack_scales
from h2o_runtime.ort.library import import_onnxruntime

onnxruntime = import_onnxruntime()

BLOCK = 32
SHAPES = ((576, 3072), (1536, 576), (2048, 2048))  # K, N
ROWS = (1, 16, 1024)
ALONE: dict[str, Any] = {
    "heads": [0],
    "rotated": 0,
    "epsilon": 0.0,
    "gate": 0,
}  # the product alone

Arrays = dict[str, NDArray[Any]]
Product = Callable[[NDArray[np.float32]], object]
OURS, TORCHS = "ours, bfloat16", "torch, bfloat16"
WIDENED = "ours, integers as bfloat16"
WIDEN = ("amx", "avx512bf16")  # instructions that have such products


def session(
    op_type: str, domain: str, constants: Arrays, outputs: list[str], threads: int, **settings: Any
) -> Product:
    node = helper.make_node(op_type, ["x", *constants], outputs, domain=domain, **settings)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(str(operators()))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return lambda x: session.run(["y"], {"x": x})


def contestants(k: int, n: int, bits: Literal[4, 8], threads: int) -> dict[str, Product]:
    draw = np.random.default_rng(0)
    q = draw.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (n, k)).astype(np.int8)
    scales = draw.random((n, k // BLOCK), np.float32)
    theirs: Arrays = {
        "q": draw.integers(0, 256, (n, k // BLOCK, BLOCK * bits // 8)).astype(np.uint8),
        "scales": scales,
    }
    ours: Arrays = {"q": pack(q, bits, BLOCK).reshape(-1), "scales": pack_scales(scales).reshape(-1)}
    products = {
        f"ours, {8 * parts - parts + 1} bits" if parts else WIDENED: session(
            PRODUCT,
            DOMAIN,
            ours,
            ["scratch", "y"],
            threads,
            K=k,
            N=[n],
            block=BLOCK,
            bits=bits,
            parts=parts,
            **ALONE,
        )
        for parts in (((0,) if load_cpu_kernels().product_instructions() in WIDEN else ()) + (1, 2))
    }
    products["MatMulNBits"] = session(
        "MatMulNBits",
        MICROSOFT,
        theirs,
        ["y"],
        threads,
        K=k,
        N=n,
        bits=bits,
        block_size=BLOCK,
        accuracy_level=INTEGER_ACTIVATIONS,
    )
    return products | float_contestants(k, n, threads)


def float_contestants(k: int, n: int, threads: int) -> dict[str, Product]:
    matrix = np.random.default_rng(2).standard_normal((k, n)).astype(np.float32)
    products = {
        "MatMul": session("MatMul", "", {"w": matrix}, ["y"], threads),
        "ours, floats": float_product(pack_floats(matrix.T), 32, k, n, threads),
    }
    if is_fast():
        products[OURS] = float_product(pack_bfloat16(np.ascontiguousarray(matrix.T)), 16, k, n, threads)
    if load_cpu_kernels().products_multiply_bfloat16():  # torch takes seconds elsewhere
        products[TORCHS] = torch_product(matrix)
    return products


def float_product(weights: NDArray[Any], bits: Literal[16, 32], k: int, n: int, threads: int) -> Product:
    packed = {"w": weights.reshape(-1).view(np.uint8)}
    return session(
        PRODUCT,
        DOMAIN,
        packed,
        ["scratch", "y"],
        threads,
        K=k,
        N=[n],
        block=0,
        bits=bits,
        parts=1,
        **ALONE,
    )


def torch_product(matrix: NDArray[np.float32]) -> Product:
    w = torch.from_numpy(matrix).to(torch.bfloat16)
    rounded: dict[int, torch.Tensor] = {}  # by rows

    def run(x: NDArray[np.float32]) -> object:
        if len(x) not in rounded:
            rounded[len(x)] = torch.from_numpy(x).to(torch.bfloat16)
        return torch.mm(rounded[len(x)], w)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bits", type=int, choices=(4, 8), default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(
        f"{load_cpu_kernels().product_instructions()}, ONNX Runtime {onnxruntime.__version__}, {args.bits} bits,"
        f" {args.threads} threads"
    )
    for k, n in SHAPES:
        products = contestants(k, n, args.bits, args.threads)
        for rows in ROWS:
            x = np.random.default_rng(1).standard_normal((rows, k)).astype(np.float32)
            seconds: dict[str, list[float]] = {name: [] for name in products}
            for _ in range(args.rounds if rows > 100 else 30 * args.rounds):
                for name, run in products.items():
                    begin = time.perf_counter()
                    run(x)
                    seconds[name].append(time.perf_counter() - begin)
            told = [
                f"{name} {min(each) * 1e3:.3f} ({2e-9 * rows * k * n / min(each):.0f})"
                for name, each in seconds.items()
            ]
            for name in {OURS, WIDENED} & seconds.keys() if TORCHS in seconds else ():
                ratios = [theirs / ours for ours, theirs in zip(seconds[name], seconds[TORCHS], strict=True)]
                told.append(f"{name}: {statistics.median(ratios):.0%} of torch's bfloat16")
            print(f"{rows:5} rows, {k} x {n}: {', '.join(told)}", flush=True)


if __name__ == "__main__":
    main()

# By nanobind 3.1.0: make stubs
"""
Attention operators of ONNX domain `h2o` on the CPU.

h2o_runtime.operators has their tensors and attributes. Arrays are C-contiguous.
"""

from typing import Annotated

import numpy
from numpy.typing import NDArray

def product_instructions() -> str:
    """
    What products with integer weights run on here: amx, avx512bf16, avx512vnni, avxvnni, i8mm, dotprod, or scalar, which is slow.
    """

def products_widen_integers() -> bool:
    """
    Whether there are products here for which integers and activations become bfloat16.
    """

def products_multiply_bfloat16() -> bool:
    """
    Whether these products round activations to bfloat16 where weights are: others multiply floats.
    """

def pack_integers(
    q: Annotated[NDArray[numpy.int8], dict(shape=(None, None), device="cpu", writable=False)],
    bits: int,
    block: int,
    packed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """
    int8 [N, K], with contiguous rows or columns, to `packed`, uint8: h2o/products.h has the layout.

    ValueError: sizes that no product takes.
    """

class LostPages:
    """
    While one lives, files below its folder may be cut off while they are mapped: what is lost reads as zeros, instead of SIGBUS.

    folder: without links in its path. At most 64 at a time count.
    """

    def __init__(self, folder: str) -> None: ...

class KV:
    """
    One layer's cache, as h2o_runtime's KV has it. ValueError: arrays that do not agree.
    """

    def __init__(
        self,
        k: object,
        v: object,
        length: int,
        pages: object | None = None,
        page_rows: int = 0,
        scales: object | None = None,
    ) -> None: ...

class Kernels:
    """
    One model shape's operators and the threads that run them. threads <= 0: all that the process may use.

    ValueError: an argument that the kernels refuse; MemoryError: no room for their scratch.
    """

    def __init__(
        self,
        threads: int,
        isa: str | None,
        query_heads: int,
        kv_heads: int,
        head_size: int,
        scale: float,
        half: bool,
        value_size: int = 0,
        window: int = 0,
        softcap: float = 0,
        precision: str = "float32",
    ) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...
    @property
    def scratch_bytes(self) -> int: ...
    @staticmethod
    def multiplies(precision: str, isa: str | None = None) -> bool:
        """
        Whether this machine has products of that precision, with that instruction set.
        """

    @staticmethod
    def fastest_precision() -> str:
        """That of this machine's fastest attention."""

    def run(self, operator: str, kv: KV | None, arguments: dict) -> None:
        """
        Runs an operator of the table by its name. The arguments are its tensors, without those of kv, and its attributes, by their names.
        """

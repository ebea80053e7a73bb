# By nanobind 3.1.0: make stubs
from typing import Annotated

import numpy
from numpy.typing import NDArray

def product_instructions() -> str: ...
def products_widen_integers() -> bool: ...
def products_multiply_bfloat16() -> bool: ...
def pack_integers(
    q: Annotated[NDArray[numpy.int8], dict(shape=(None, None), device="cpu", writable=False)],
    bits: int,
    block: int,
    packed: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> None: ...

class LostPages:
    def __init__(self, folder: str) -> None: ...

class KV:
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
    def multiplies(precision: str, isa: str | None = None) -> bool: ...
    @staticmethod
    def fastest_precision() -> str: ...
    def run(self, operator: str, kv: KV | None, arguments: dict) -> None: ...

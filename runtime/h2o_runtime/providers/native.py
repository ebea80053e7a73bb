"""The attention operators on the CPU kernels of h2o_plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from h2o_plugins import load_cpu_kernels
from h2o_runtime.attention.provider import AttentionShape
from h2o_runtime.kv import KV
from h2o_runtime.names import AttentionPrecision
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import SCORED_ATTENTION
from h2o_runtime.providers.host_operators import run_on_host

if TYPE_CHECKING:
    from h2o_plugins import _cpu

MOST_SCORED = 16  # query heads that share a key, in ScoredAttention
KEY_UNIT, VALUE_UNIT = 8, 4  # sizes of keys and values must be multiples of these


class NativeCpuProvider:
    """Raises h2o_plugins.NativeKernelsMissing on construction if the kernels are not built.

    `threads` None: all cores that the process may use. `isa`: an instruction set ("scalar", "avx2", "avx512",
    "amx", "neon") instead of the best of this machine. `precision`: of the factors of attention's products over
    many rows; sums, states and decode are always float32. activate() raises ValueError if the instruction set
    lacks the precision.
    """

    name = "native"

    def __init__(
        self, threads: int | None = None, isa: str | None = None, precision: AttentionPrecision = "float32"
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, but is {threads}")
        self._module = load_cpu_kernels()
        self._threads = threads
        self._isa = isa
        self.precision = precision
        self.in_graphs = isa is None  # these use the best instruction set
        self._kernels: _cpu.Kernels | None = None

    @staticmethod
    def takes(shape: AttentionShape) -> bool:
        return shape.head_size % KEY_UNIT == 0 and shape.value_size % VALUE_UNIT == 0

    def activate(self, shape: AttentionShape) -> None:
        self._group = shape.query_heads // shape.kv_heads
        self._kernels = self._module.Kernels(
            threads=self._threads or 0,
            isa=self._isa,
            **shape.of_kernels,
            precision=self.precision,
        )

    def deactivate(self) -> None:
        self._kernels = None

    def run(self, operator: Operator, kv: KV | None = None, **arguments: Any) -> None:
        if "cpu" not in operator.kernels or (operator is SCORED_ATTENTION and self._group > MOST_SCORED):
            run_on_host(self, operator, kv, arguments)
            return
        self._active.run(operator.name, None if kv is None else self._kv(kv), arguments)

    def _kv(self, kv: KV) -> _cpu.KV:
        length = kv.length if isinstance(kv.length, int) else int(kv.length[0])
        view: _cpu.KV = self._module.KV(kv.k, kv.v, length, kv.pages, kv.page_rows, kv.scales)
        return view

    @property
    def _active(self) -> _cpu.Kernels:
        if self._kernels is None:
            raise RuntimeError("activate() the attention provider before its operators")
        return self._kernels

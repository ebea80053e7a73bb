"""How a bundle is loaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from h2o_runtime.caches import Cache, Contiguous
from h2o_runtime.layers.live import LayerSettings
from h2o_runtime.names import (
    BackendName,
    DenseChoice,
    DensePrecisionChoice,
    DeviceChoice,
    PrecisionChoice,
    ProviderChoice,
    Speculation,
)
from h2o_runtime.policies.decode import DecodePolicy, FullDecode

Fields = ParamSpec("Fields")
Loaded = TypeVar("Loaded")


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What runs a bundle, where, and how its sessions are kept.

    backend       executes the dense graphs
    context       most tokens that prompt and answer can have together; by default what the model was trained for,
                  at most 8192
    attention     executes the attention operators; "auto" takes the native kernels where they are built
    attention_precision  of the factors of prefill attention's products; "auto" is the processor's fastest where
                  weights are integers, else float32
    threads       of the CPU; by default one a core
    device        "auto" takes a GPU where the backend can use it
    cache         owns keys and values
    decoding      what a generated token sees
    dense_precision  of the factors of products with float weights on a CPU; "auto" is bfloat16 where weights are
                  float16 and the processor multiplies such numbers, else float32. "bfloat16" also of a prompt's
                  products with integer weights, with AMX; "auto" there as measured
    dense_form    how ONNX Runtime multiplies with integer weights; "auto" as measured on this machine
    speculate     "lookup" drafts tokens from the conversation's own text, "mtp" by the model's draft layer, "auto"
                  by what was right more often, and each of them those that a grammar forces. No answer changes.
                  "off" drafts none
    layers        settings of the model's layer kinds, by the names of their options
    slots         sessions that are live at once, so that as many answers can run together; None is as many as
                  `slot_bytes` hold, up to 8, and at least 4 where they share memory
    slot_bytes    for their rows together; None is half of the free memory. A cache on pages keeps to it; others
                  reserve a whole context for each
    pool_bytes    of memory for sessions that wait while others take their turn
    folder        where sessions are written that memory has no room for, and those that are there in the end
    folder_bytes  most bytes that they take there
    folder_shared whether other processes use the folder: sessions are written as soon as they have grown
    packed_weights  folder for weights as a CPU reads them: later starts map them, and processes share the memory
    chat_template of conversations in a TextModel, a Jinja file; None is the bundle's own
    verify        first compare every file's content with its hash in the manifest
    """

    backend: BackendName = "onnxruntime"
    context: int | None = None
    attention: ProviderChoice = "auto"
    attention_precision: PrecisionChoice = "auto"
    threads: int | None = None
    device: DeviceChoice = "auto"
    cache: Cache = field(default_factory=Contiguous)
    decoding: DecodePolicy[Any] = field(default_factory=FullDecode)
    dense_form: DenseChoice = "auto"
    dense_precision: DensePrecisionChoice = "auto"
    speculate: Speculation = "auto"
    layers: LayerSettings = field(default_factory=dict)
    slots: int | None = 1
    slot_bytes: int | None = None
    pool_bytes: int = 0
    folder: str | Path | None = None
    folder_bytes: int = 4 << 30
    folder_shared: bool = False
    packed_weights: str | Path | None = None
    chat_template: Path | None = None
    verify: bool = False


def by_fields(
    options: Callable[Fields, LoadOptions],
) -> Callable[
    [Callable[[type[Loaded], str | Path, LoadOptions], Loaded]],
    Callable[Concatenate[type[Loaded], str | Path, Fields], Loaded],
]:
    """Have `load(cls, path, options)` take the options' fields as keywords."""

    def of(
        load: Callable[[type[Loaded], str | Path, LoadOptions], Loaded],
    ) -> Callable[Concatenate[type[Loaded], str | Path, Fields], Loaded]:
        def with_fields(
            cls: type[Loaded], path: str | Path, /, *args: Fields.args, **fields: Fields.kwargs
        ) -> Loaded:
            return load(cls, path, options(*args, **fields))

        functools.update_wrapper(with_fields, load)
        return with_fields

    return of

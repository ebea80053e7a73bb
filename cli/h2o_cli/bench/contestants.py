"""The contestants: our policies and every installed peer, each with the settings worth trying."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from h2o_cli.bench.benchmark_model import BenchmarkModel, is_gguf
from h2o_cli.bench.convert import gguf_as_folder
from h2o_cli.bench.systems.system import OWN_SYSTEM, Absent
from h2o_runtime.components.options import spelled
from h2o_runtime.errors import H2OError
from h2o_runtime.names import (
    BackendName,
    DenseChoice,
    DensePrecisionChoice,
    DeviceName,
    PrecisionChoice,
    ProviderChoice,
)
from h2o_runtime.policies.decode import DECODE, DecodePolicy, FullDecode
from h2o_runtime.policies.prefill import PREFILL, Full, PrefillPolicy

MICRO_BATCHES = (512, 1024, 2048)
WHOLE = 0  # as batch size: the whole prompt at once
OPENVINO_BATCHES = (512, 1024, WHOLE)
OPENVINO = "openvino-genai"
PEERS = ("llama.cpp", "transformers", "onnxruntime-genai", OPENVINO)
ATTENTION_PEERS = ("torch SDPA", "onnxruntime GQA")


@dataclass(frozen=True)
class Contestant:
    """name is the same for all settings of one peer: the best of them stands for it.

    exact    computes full attention
    prepare  makes a peer's files of the weights and returns the settings that name them
    """

    name: str
    system: str
    label: str
    settings: dict[str, Any]
    exact: bool = True
    prepare: Callable[[], dict[str, Any]] = field(default=dict)

    def sensible(self, length: int) -> bool:
        """Whether its setting differs from a smaller one: a micro-batch beyond the prompt does not."""
        size = self.settings.get("micro_batch", 0)
        return bool(size < 2 * length or size == MICRO_BATCHES[0])

    def ready(self) -> Contestant:
        """With its files prepared. Raises Absent if that fails."""
        try:
            return replace(self, settings=self.settings | self.prepare())
        except (ImportError, H2OError) as error:
            raise Absent(str(error)) from None


@dataclass(frozen=True)
class Entry:
    """What all contestants of a run have in common, and which of our policies take part.

    prefill     the configured policy, which all others are compared with
    beside      prefill policies besides it and full attention
    decoding    a decode policy beside the exact one
    prompt      what is read, as far as a length goes; random tokens where there is nothing
    dense_form  of our integer weights, of peers' never
    attention_precision  of ours; dense_precision likewise
    openvino_model  converted before, in whatever precision; else it is made of the checkpoint
    """

    model: BenchmarkModel
    threads: int
    prefill: PrefillPolicy[Any]
    backend: BackendName
    device: DeviceName
    attention: ProviderChoice
    beside: tuple[PrefillPolicy[Any], ...] = ()
    decoding: DecodePolicy[Any] = field(default_factory=FullDecode)
    prompt: tuple[int, ...] = ()
    dense_form: DenseChoice = "auto"
    attention_precision: PrecisionChoice = "auto"
    dense_precision: DensePrecisionChoice = "auto"
    openvino_model: Path | None = None

    @property
    def exact(self) -> PrefillPolicy[Any]:
        return Full(batch_size=self.prefill.batch_size)

    @property
    def policies(self) -> tuple[PrefillPolicy[Any], ...]:
        """Our contestants: the configured one first, full attention last."""
        return tuple(dict.fromkeys((self.prefill, *self.beside, self.exact)))

    def name_of(self, policy: PrefillPolicy[Any]) -> str:
        """Its name in rows, short where no other policy of the run has it."""
        alike = [known for known in self.policies if known.name == policy.name]
        return policy.name if policy == self.prefill or len(alike) == 1 else str(policy)

    @property
    def decodings(self) -> tuple[DecodePolicy[Any], ...]:
        return (FullDecode(),) if self.decoding.exact else (FullDecode(), self.decoding)

    @property
    def common(self) -> dict[str, Any]:
        model = self.model.manifest.model
        return {
            "threads": self.threads,
            "device": self.device,
            "dtype": model.dtype,
            "vocabulary": model.vocab_size,
            "prompt": self.prompt,
        }

    def settings_of(self, policy: PrefillPolicy[Any]) -> str:
        """Our settings, as reported in rows."""
        suffix = "" if self.dense_form == "auto" else f" form={self.dense_form}"
        if self.attention_precision != "auto":
            suffix += f" attention={self.attention_precision}"
        if self.dense_precision != "auto":
            suffix += f" dense={self.dense_precision}"
        return spelled(policy, whole=True) + suffix

    def need(self, module: str, packages: str) -> None:
        """For a peer that is measured on the CPU only. Raises Absent if it cannot be, or is not installed."""
        if self.device != "cpu":
            raise Absent("measured on the CPU only: use --device cpu")
        if importlib.util.find_spec(module) is None:
            raise Absent(f"not installed: pip install {packages}")

    def checkpoint(self) -> Path:
        if self.model.checkpoint is None:
            source = self.model.manifest.checkpoint.source
            raise Absent(f"the bundle's checkpoint ({source}) is not here: name it with --checkpoint")
        return self.model.checkpoint

    def folder(self) -> Path:
        """The checkpoint as a folder: of a GGUF file one is made, with the weights as floats. Raises Absent."""
        if not is_gguf(found := self.checkpoint()):
            return found
        return self.model.converted("checkpoint", lambda empty: gguf_as_folder(found, empty))

    @property
    def weights(self) -> str:
        """The format of the bundle's matrices."""
        model = self.model.manifest.model
        return model.weights.projections.removesuffix("+offset") if model.weights else model.dtype


def models(entry: Entry, peers: tuple[str, ...], decoding: bool) -> list[Contestant]:
    """Whole models, ours first."""
    makers: dict[str, Callable[[Entry, bool], list[Contestant]]] = {
        "llama.cpp": _llama_cpp,
        "transformers": _transformers,
        "onnxruntime-genai": _onnxruntime_genai,
        OPENVINO: _openvino_genai,
    }
    # The decode policy decides what a generated token sees, so one prefill policy fills the cache.
    policies, decodings = (
        ((entry.prefill,), entry.decodings) if decoding else (entry.policies, (FullDecode(),))
    )
    found = [contestant for each in decodings for contestant in _ours(entry, OWN_SYSTEM, policies, each)]
    return [*found, *(contestant for peer in peers for contestant in makers[peer](entry, decoding))]


def attentions(entry: Entry, peers: tuple[str, ...]) -> list[Contestant]:
    """One layer's attention, ours first."""
    common = entry.common | {"bundle": str(entry.model.bundle)}
    ours = _ours(entry, "attention", entry.policies, FullDecode())
    return [*ours, *(Contestant(peer, peer, "causal", common) for peer in peers)]


def _ours(
    entry: Entry, system: str, policies: tuple[PrefillPolicy[Any], ...], decoding: DecodePolicy[Any]
) -> list[Contestant]:
    found = []
    for policy in policies:
        settings = entry.common | {
            "bundle": str(entry.model.bundle),
            "prefill": PREFILL.settings_of(policy),
            "decoding": DECODE.settings_of(decoding),
            "backend": entry.backend,
            "attention": entry.attention,
            "dense_form": entry.dense_form,
            "attention_precision": entry.attention_precision,
            "dense_precision": entry.dense_precision,
        }
        name, label = entry.name_of(policy), entry.settings_of(policy)
        if not decoding.exact:
            name, label = f"{name}, {decoding.name}", f"{label}; {spelled(decoding, whole=True)}"
        exact = policy.exact and decoding.exact
        found.append(Contestant(name, system, label, settings, exact))
    return found


def _llama_cpp(entry: Entry, decoding: bool) -> list[Contestant]:
    from h2o_cli.bench.gguf_file import FILE, write_gguf

    def prepare() -> dict[str, Any]:
        entry.need("llama_cpp", "llama-cpp-python gguf")
        checkpoint, model = entry.checkpoint(), entry.model.manifest.model
        if is_gguf(checkpoint):
            return {"file": str(checkpoint)}
        weights = model.weights
        formats = (entry.weights, weights.head if weights else model.dtype)
        folder = entry.model.converted(
            f"gguf-{'-'.join(formats)}", lambda empty: write_gguf(checkpoint, empty, *formats)
        )
        return {"file": str(folder / FILE)}

    sizes = MICRO_BATCHES[:1] if decoding else MICRO_BATCHES  # one token has no batch
    cache = entry.model.manifest.model.dtype
    return [
        Contestant(
            "llama.cpp",
            "llama.cpp",
            f"flash attention {'on' if flash else 'off'}, micro-batch {size}, cache in {cache}",
            entry.common | {"flash_attention": flash, "micro_batch": size},
            prepare=prepare,
        )
        for flash in (True, False)
        for size in sizes
    ]


def _transformers(entry: Entry, decoding: bool) -> list[Contestant]:
    def prepare() -> dict[str, Any]:
        return {"checkpoint": str(entry.folder())}

    name = "transformers"
    return [Contestant(name, name, "SDPA, eager, dynamic cache", entry.common, prepare=prepare)]


def _onnxruntime_genai(entry: Entry, decoding: bool) -> list[Contestant]:
    """With the bundle's weight format; beside int8 also with int4, which is what this peer is mostly used with."""
    from h2o_cli.bench.systems.onnxruntime_genai import INTEGERS, build_model

    def made_of(weights: str) -> dict[str, Any]:
        entry.need("onnxruntime_genai", "onnxruntime-genai")
        checkpoint = entry.folder()
        folder = entry.model.converted(
            f"onnxruntime-genai-{weights}", lambda empty: build_model(checkpoint, empty, weights)
        )
        return {"folder": str(folder)}

    system = "onnxruntime-genai"
    if entry.weights not in INTEGERS:
        prepare = partial(made_of, entry.weights)
        return [Contestant(system, system, "CPU, its own builder", entry.common, prepare=prepare)]
    return [
        Contestant(
            f"{system} {weights}",
            system,
            f"CPU, its own builder, {weights} weights and int8 activations",
            entry.common,
            prepare=partial(made_of, weights),
        )
        for weights in INTEGERS[INTEGERS.index(entry.weights) :]
    ]


def _openvino_genai(entry: Entry, decoding: bool) -> list[Contestant]:
    from h2o_cli.bench.systems.openvino_genai import build_model

    def prepare() -> dict[str, Any]:
        entry.need("openvino_genai", "openvino-genai")
        if entry.openvino_model is not None:
            return {"folder": str(entry.openvino_model), "own_precision": True}
        checkpoint, weights = entry.folder(), entry.weights
        folder = entry.model.converted(
            f"openvino-{weights}", lambda empty: build_model(checkpoint, empty, weights)
        )
        return {"folder": str(folder), "own_precision": entry.model.manifest.model.quantized}

    # What is sparse in different ways loses differently, so each way has a name of its own.
    sparse_modes = () if decoding else ("trishape", "xattention")
    batches = (WHOLE,) if decoding else OPENVINO_BATCHES
    return [
        Contestant(
            f"openvino-genai {mode or 'dense'}",
            "openvino-genai",
            f"continuous batching, {mode or 'dense'} prefill, {f'batch {batch}' if batch else 'whole prompt'}",
            entry.common | {"sparse": mode, "micro_batch": batch},
            exact=not mode,
            prepare=prepare,
        )
        for mode in ("", *sparse_modes)
        for batch in ((WHOLE,) if mode else batches)
    ]

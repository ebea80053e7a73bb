"""A model in a GGUF file, or in the shards of a split one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.checkpoints.base import CheckpointInFiles
from h2o_export.checkpoints.gguf import latent, names
from h2o_export.checkpoints.gguf.architectures import ARCHITECTURES
from h2o_export.checkpoints.gguf.blocks import BLOCKS
from h2o_export.checkpoints.gguf.config import (
    ROPE_TENSORS,
    architecture,
    huggingface_config,
    model_config,
)
from h2o_export.checkpoints.gguf.header import Header, TensorEntry, read_header
from h2o_export.checkpoints.gguf.tokenizer import tokenizer_files, write_files
from h2o_runtime.bundles.manifest import file_sha256
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from h2o_export.formats.quantized import QuantizedTensor

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class GGUFCheckpoint(CheckpointInFiles):
    """`header` has the tensors of all shards; `tokenizer` the text of each tokenizer file.

    `own_names` maps a tensor's name in transformers to its name in the file. Building it takes longer than
    reading a tensor.
    """

    header: Header
    own_names: gguf.TensorNameMap
    shards: tuple[Path, ...]
    raw: dict[str, Any]
    tokenizer: dict[str, str]

    @classmethod
    def takes(cls, path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return path.suffix == ".gguf" or stream.read(4) == b"GGUF"

    @classmethod
    def open(cls, path: Path, source: str) -> GGUFCheckpoint:
        shards, header = _read_shards(path)
        raw = huggingface_config(header)
        config = model_config(header, raw)
        _check_kinds(header)
        known = gguf.get_tensor_name_map(ARCHITECTURES[architecture(header)].kind, config.layers)
        return cls(path, source, config, header, known, shards, raw, tokenizer_files(header))

    @property
    def config_file(self) -> Path:
        return self.header.path

    def unused(self, used: Collection[str]) -> frozenset[str]:
        return (
            frozenset(self.header.tensors) - {own for name in used for own in self._own(name)} - ROPE_TENSORS
        )

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read one tensor as float32. The file is opened each time, so no mapping outlives the call."""
        entries = [self._stored(name, own) for own in self._own(name)]
        with np.errstate(all="ignore"):  # the code that stores the values checks for NaN
            values = [gguf.dequantize(_read(entry), entry.kind).reshape(entry.shape) for entry in entries]
        whole = values[0] if len(values) == 1 else latent.joined(*values)
        if whole.shape != shape:
            raise CheckpointError(
                f"{entries[0].path}: tensor '{entries[0].name}' has shape {list(whole.shape)}, but the metadata "
                f"imply {list(shape)}"
            )
        tensor = torch.from_numpy(np.ascontiguousarray(self._halves(name, whole)))
        less = self.config.arrangement.lessened(name)  # added by llama.cpp's converter
        return tensor - less if less else tensor

    def blocks(self, name: str) -> QuantizedTensor | None:
        own = self._own(name)
        if len(own) > 1:
            return None
        stored = self._stored(name, own[0])
        unpack = BLOCKS.get(stored.kind)
        if unpack is None or len(stored.shape) != 2:
            return None
        with np.errstate(all="ignore"):
            matrix = unpack(_read(stored), *stored.shape)

        def rows(values: NDArray[Any]) -> NDArray[Any]:
            return np.ascontiguousarray(self._halves(name, values))

        offsets = None if matrix.offsets is None else rows(matrix.offsets)
        return replace(matrix, q=rows(matrix.q), scales=rows(matrix.scales), offsets=offsets)

    def sha256(self) -> str:
        """Hash over the hashes of the shards."""
        total = hashlib.sha256()
        for path in self.shards:
            total.update(bytes.fromhex(file_sha256(path)))
        return total.hexdigest()

    def write_tokenizer(self, folder: Path) -> None:
        write_files(self.tokenizer, folder)

    def transformers_config(self) -> Any:
        from transformers import AutoConfig

        rope = dict(self.raw["rope_parameters"])
        if self.config.rope.factors:
            rope |= self.config.rope.in_transformers()
            rope |= {"original_max_position_embeddings": self.config.max_position_embeddings}
        # Before version 5, transformers used another name.
        spellings = {"rope_parameters": rope}
        if "rope_theta" in rope:
            spellings |= {"rope_scaling": rope, "rope_theta": rope["rope_theta"]}
        # The family's padding token may be outside a small vocabulary, and nothing is padded.
        return AutoConfig.for_model(**{**self.raw, **spellings, "pad_token_id": None})

    def _stored(self, name: str, own: str) -> TensorEntry:
        stored = self.header.tensors.get(own)
        if stored is None:
            raise CheckpointError(f"{self.source}: has no tensor '{own}'; download it again")
        experts = self.config.experts
        return stored if experts is None else names.one_expert(name, stored, experts.count)

    def _own(self, name: str) -> tuple[str, ...]:
        """The tensors of the file that hold `name`: one, except for W_uk and W_uv."""
        several = latent.own_names(name, self.header.tensors)
        single = names.own_name(name) or self.own_names.get_name(names.mapped(name), (".weight", ".bias"))
        return several or (single or name,)

    def _halves(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows of q and k in transformers' order. In some families llama.cpp rotates pairs of neighbours."""
        heads = {"q_proj": self.config.query_heads, "k_proj": self.config.kv_heads}.get(name.split(".")[-2])
        if heads is None or not ARCHITECTURES[architecture(self.header)].neighbours:
            return rows
        pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
        return pairs.swapaxes(1, 2).reshape(rows.shape)


def _read(stored: TensorEntry) -> NDArray[np.uint8]:
    """The tensor's bytes, one row per row of the tensor; [bytes] for a vector."""
    try:
        data = np.fromfile(stored.path, np.uint8, stored.length, offset=stored.offset)
    except OSError as error:
        raise CheckpointError(f"{stored.path}: cannot read tensor '{stored.name}': {error}") from error
    if data.size != stored.length:
        raise CheckpointError(f"{stored.path}: cannot read tensor '{stored.name}': the file became shorter")
    return data.reshape(*stored.shape[:-1], -1)


def _read_shards(path: Path) -> tuple[tuple[Path, ...], Header]:
    """The file, or all shards of a split one; the header is the first shard's with the tensors of all."""
    named = _SHARD.fullmatch(path.name)
    header = read_header(path)
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return (path,), header
    if named is None or int(named["count"]) != count:
        raise CheckpointError(
            f"{path}: is one of {count} files of a model, which are found by names such as "
            f"model-00001-of-{count:05d}.gguf; restore its name"
        )
    shards = tuple(
        path.with_name(f"{named['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)
    )
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise CheckpointError(
            f"{path.parent}: file {missing[0]} is missing ({len(missing)} in all); download it"
        )
    headers = [read_header(shard) for shard in shards]
    tensors: dict[str, TensorEntry] = {}
    for index, shard in enumerate(headers):
        if shard.metadata.get("split.no") != index or shard.metadata.get("split.count") != count:
            raise CheckpointError(
                f"{shard.path}: is not file {index + 1} of {count}, as its name says; download it again"
            )
        tensors.update(shard.tensors)
    promised = headers[0].metadata.get("split.tensors.count")
    if promised != len(tensors):
        raise CheckpointError(
            f"{path}: its {count} files have {len(tensors)} tensors, its header says {promised}; download them "
            "again"
        )
    return shards, replace(headers[0], tensors=tensors)


def _check_kinds(header: Header) -> None:
    """Refuse types that cannot be dequantized before hours of work, by dequantizing one block of zeros of
    each.
    """
    kinds: dict[GGMLQuantizationType, str] = {}
    for tensor in header.tensors.values():
        kinds.setdefault(tensor.kind, tensor.name)
    for kind, name in kinds.items():
        try:
            gguf.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:
            raise UnsupportedModelError(
                f"{header.path}: tensor '{name}' has the type {kind.name}, which the package gguf cannot dequantize"
            ) from None

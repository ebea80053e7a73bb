"""A model in a GGUF file, or in the shards of a split one."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.architecture.delta import DeltaConfig
from h2o_export.checkpoint_files import SHARD, is_gguf, shards_of
from h2o_export.checkpoints.checkpoint import CheckpointInFiles
from h2o_export.checkpoints.gguf import latent, mamba, names, rope, states
from h2o_export.checkpoints.gguf.architectures import ARCHITECTURES
from h2o_export.checkpoints.gguf.blocks import BLOCK, BLOCKS, integers_of
from h2o_export.checkpoints.gguf.config import architecture, huggingface_config, model_config
from h2o_export.checkpoints.gguf.header import Header, TensorEntry, read_header
from h2o_export.checkpoints.gguf.tokenizer import tokenizer_files, write_files
from h2o_export.tensors import Integers, QuantizedTensor
from h2o_runtime.bundles.manifest import EmbeddingSpec, file_sha256
from h2o_runtime.errors import CheckpointError, UnsupportedModelError
from h2o_runtime.names import Pooling

DECAY = ".A_log"  # of layers with a state; a file has -exp of it
_POOLINGS = {1: Pooling.MEAN, 3: Pooling.LAST}  # llama.cpp's numbers


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
        return is_gguf(path)

    @classmethod
    def open(cls, path: Path, source: str) -> GGUFCheckpoint:
        shards, header = _read_shards(path)
        raw = huggingface_config(header)
        config = model_config(header, raw)
        _check_kinds(header)
        layers = raw["num_hidden_layers"] + (1 if config.draft else 0)
        known = gguf.get_tensor_name_map(ARCHITECTURES[architecture(header)].kind, layers)
        return cls(path, source, config, header, known, shards, raw, tokenizer_files(header))

    @property
    def config_file(self) -> Path:
        return self.header.path

    def unused(self, used: Collection[str]) -> frozenset[str]:
        return (
            frozenset(self.header.tensors) - {own for name in used for own in self._own(name)} - rope.TENSORS
        )

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        for name, shape in tensors.items():
            _check_shape(name, [self._stored(name, own) for own in self._own(name)], shape)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read one tensor as float32. The file is opened each time, so no mapping outlives the call."""
        entries = [self._stored(name, own) for own in self._own(name)]
        _check_shape(name, entries, shape)
        with np.errstate(all="ignore"):  # the code that stores the values checks for NaN
            values = [gguf.dequantize(_read(entry), entry.kind).reshape(entry.shape) for entry in entries]
        whole = values[0] if len(values) == 1 else _joined(name, values)
        rows, columns = self._rows(name, whole.reshape(shape), len(entries)), self._column_order(name)
        ordered = rows if columns is None else rows[:, columns]
        tensor = torch.from_numpy(np.ascontiguousarray(ordered))
        if name.endswith(DECAY):
            return (-tensor).log()
        less = self.config.arrangement.lessened(name)  # added by llama.cpp's converter
        return tensor - less if less else tensor

    def integers(self, name: str) -> Integers | None:
        found = [integers_of(self._stored(name, own).kind) for own in self._own(name)]
        return max(found, key=lambda one: 32 if one is None else one.bits)

    def blocks(self, name: str) -> QuantizedTensor | None:
        matrices = [_unpacked(self._stored(name, own)) for own in self._own(name)]
        matrix = _stacked(matrices)
        if matrix is None:
            return None
        columns = self._column_order(name)
        if columns is not None and (len(columns) != matrix.q.shape[1] or self._cuts_blocks):
            return None

        def ordered(values: NDArray[Any]) -> NDArray[Any]:
            rows = self._rows(name, values, len(matrices))
            if columns is None:
                return np.ascontiguousarray(rows)
            each = matrix.q.shape[1] // values.shape[1]  # 1, or a block
            return np.ascontiguousarray(rows[:, columns[::each] // each])

        offsets = None if matrix.offsets is None else ordered(matrix.offsets)
        return replace(matrix, q=ordered(matrix.q), scales=ordered(matrix.scales), offsets=offsets)

    def sha256(self) -> str:
        """Hash over the hashes of the shards."""
        total = hashlib.sha256()
        for path in self.shards:
            total.update(bytes.fromhex(file_sha256(path)))
        return total.hexdigest()

    def write_tokenizer(self, folder: Path) -> None:
        write_files(self.tokenizer, folder)

    @property
    def embedding(self) -> EmbeddingSpec:
        said = self.header.metadata.get(f"{architecture(self.header)}.pooling_type")
        return EmbeddingSpec(pooling=_POOLINGS[said]) if said in _POOLINGS else EmbeddingSpec()

    def transformers_config(self) -> Any:
        from transformers import AutoConfig

        angles = dict(self.raw["rope_parameters"])
        if self.config.rope.factors:
            angles |= self.config.rope.in_transformers()
            angles |= {"original_max_position_embeddings": self.config.max_position_embeddings}
        # Before version 5, transformers used another name.
        spellings = {"rope_parameters": angles}
        if "rope_theta" in angles:
            spellings |= {"rope_scaling": angles, "rope_theta": angles["rope_theta"]}
        # The family's padding token may be outside a small vocabulary, and nothing is padded.
        return AutoConfig.for_model(**{**self.raw, **spellings, "pad_token_id": None})

    def _stored(self, name: str, own: str) -> TensorEntry:
        stored = self.header.tensors.get(own)
        if stored is None:
            raise CheckpointError(f"{self.source}: has no tensor '{own}'; download it again")
        experts = 0 if self.config.experts is None else self.config.experts.count
        return names.inside(names.numbered(name, self.config), stored, experts, self.config.layers)

    def _own(self, name: str) -> tuple[str, ...]:
        """The tensors of the file that hold `name`: one, except W_uk and W_uv, some layers' q, k, v and z, and
        Granite's gates and ups.
        """
        stored, name = self.header.tensors, names.numbered(name, self.config)
        several = (
            latent.own_names(name, stored) or states.own_names(name, stored) or mamba.own_names(name, stored)
        )
        single = names.own_name(name, stored) or self.own_names.get_name(
            names.mapped(name), (".weight", ".bias")
        )
        return several or (single or name,)

    def _rows(self, name: str, rows: NDArray[Any], tensors: int) -> NDArray[Any]:
        """Rows in transformers' order. In some families llama.cpp rotates pairs of neighbours."""
        delta = self.config.sizes(DeltaConfig)
        order = None if delta is None else states.row_order(name, delta, self._dealt, tensors)
        if order is not None and len(order) == len(rows):
            return rows[order]
        heads = {"q_proj": self.config.query_heads, "k_proj": self.config.kv_heads}.get(name.split(".")[-2])
        if heads is None or not ARCHITECTURES[architecture(self.header)].neighbours:
            return rows
        pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
        return pairs.swapaxes(1, 2).reshape(rows.shape)

    def _column_order(self, name: str) -> NDArray[np.int64] | None:
        """Where the file has each column of transformers' matrix; None: in the same place."""
        delta = self.config.sizes(DeltaConfig)
        return None if delta is None else states.column_order(name, delta, self._dealt)

    @property
    def _dealt(self) -> bool:
        return architecture(self.header) in states.DEALT

    @property
    def _cuts_blocks(self) -> bool:
        """Whether columns that move together are no whole blocks of integers."""
        delta = self.config.sizes(DeltaConfig)
        return delta is not None and delta.value_size % BLOCK != 0


def _joined(name: str, values: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    keys, others = values
    return latent.joined(keys, others) if latent.is_both(name) else np.concatenate(values)


def _unpacked(stored: TensorEntry) -> QuantizedTensor | None:
    unpack = BLOCKS.get(stored.kind)
    if unpack is None or len(stored.shape) != 2:
        return None
    with np.errstate(all="ignore"):
        return unpack(_read(stored), *stored.shape)


def _stacked(matrices: list[QuantizedTensor | None]) -> QuantizedTensor | None:
    """Matrices one below the other; None where one is no blocks of integers, or they are of different types."""
    found = [matrix for matrix in matrices if matrix is not None]
    if len(found) < len(matrices) or len({(one.bits, one.offsets is None) for one in found}) > 1:
        return None
    if len(found) == 1:
        return found[0]
    offsets = [one.offsets for one in found if one.offsets is not None]
    return replace(
        found[0],
        q=np.concatenate([one.q for one in found]),
        scales=np.concatenate([one.scales for one in found]),
        offsets=np.concatenate(offsets) if offsets else None,
    )


def _check_shape(name: str, entries: list[TensorEntry], expected: tuple[int, ...]) -> None:
    """Raises CheckpointError if the tensors of the file do not form one of transformers' of this shape."""
    stored = entries[0].shape
    if len(entries) > 1:
        keys, others = (entry.shape for entry in entries)
        stored = (
            latent.joined_shape(keys, others) if latent.is_both(name) else (keys[0] + others[0], *keys[1:])
        )
    if len(expected) == 1:
        stored = (math.prod(stored),)  # a norm of several groups has a row for each in a file
    if _without_ones(stored) != _without_ones(expected):  # a file omits dimensions of 1
        raise CheckpointError(
            f"{entries[0].path}: tensor '{entries[0].name}' has shape {list(stored)}, but the metadata imply "
            f"{list(expected)}"
        )


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def _read(stored: TensorEntry) -> NDArray[np.uint8]:
    """The tensor's bytes, one row per row of the tensor; [bytes] for a vector."""
    try:
        if not stored.step:
            data = np.fromfile(stored.path, np.uint8, stored.length, offset=stored.offset)
        else:
            row = stored.length // stored.shape[0]
            whole = np.memmap(
                stored.path, np.uint8, "r", stored.offset, ((stored.shape[0] - 1) * stored.step + row,)
            )
            data = np.lib.stride_tricks.as_strided(whole, (stored.shape[0], row), (stored.step, 1)).copy()
    except (OSError, ValueError) as error:  # ValueError: a file that is too short for a mapping
        raise CheckpointError(f"{stored.path}: cannot read tensor '{stored.name}': {error}") from error
    if data.size != stored.length:
        raise CheckpointError(f"{stored.path}: cannot read tensor '{stored.name}': the file became shorter")
    return data.reshape(*stored.shape[:-1], -1)


def _read_shards(path: Path) -> tuple[tuple[Path, ...], Header]:
    """The file, or all shards of a split one; the header is the first shard's with the tensors of all."""
    named = SHARD.fullmatch(path.name)
    header = read_header(path)
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return (path,), header
    if named is None or int(named["count"]) != count:
        raise CheckpointError(
            f"{path}: is one of {count} files of a model, but has no name like model-00001-of-{count:05d}.gguf, by "
            "which the others are found; restore its name"
        )
    shards = shards_of(path, count)
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

"""Checks a checkpoint against its configuration before anything is written.

What would change the model's results is refused; what may only surprise is a warning.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch

from h2o_export.architecture.config import ModelConfig
from h2o_export.checkpoints import Checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.dense.matrices import EMBEDDING
from h2o_runtime.errors import BundleError, CheckpointError, InputError
from h2o_runtime.text import ChatTemplate, Tokenizer
from h2o_runtime.text.files import REMEDY, read_json

log = logging.getLogger(__name__)

HEAD = "lm_head.weight"
DRAFT = "model.mtp_"  # of ERNIE's layers that predict further tokens
# Buffers that older versions of transformers wrote: computed, not learned.
_COMPUTED = re.compile(r"\.(rotary_emb\.inv_freq|attn\.(masked_)?bias|masked_bias)$")
_LAYER = re.compile(r"(?:model\.layers|blk)\.(\d+)\.")
# Of layers that read another's keys and values.
_UNREAD = re.compile(r"\.(self_attn\.[kv]_(proj|norm)|attn_(k|v|k_norm))\.")
_USER = {"role": "user", "content": "Hello."}
_ANSWERED = [_USER, {"role": "assistant", "content": "Hello."}, _USER]
_CONVERSATIONS = (
    [_USER],
    [{"role": "system", "content": "Be brief."}, _USER],
    _ANSWERED,
    [{"role": "user", "content": [{"type": "text", "text": "Hello."}]}],
)


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Raises CheckpointError for defects that no export could repair; logs a warning for surprises."""
    _check_tensors(checkpoint)
    if any(rope.kind == "dynamic" for rope in checkpoint.config.ropes):
        log.warning(
            "%s: RoPE scaling 'dynamic' begins beyond %s positions, and texts of the bundle end there: nothing is "
            "scaled",
            checkpoint.source,
            f"{checkpoint.config.max_position_embeddings:,}",
        )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.write_tokenizer(Path(folder))
        try:
            tokenizer = Tokenizer.load(folder)
            _check_ids(tokenizer, checkpoint.config, checkpoint.source)
            _check_template(Path(folder), checkpoint.source)
        except BundleError as error:
            text = str(error).replace(folder, str(checkpoint.path)).replace(REMEDY, "download it again")
            raise CheckpointError(text) from error


def _check_tensors(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    used = checkpoint_tensors(checkpoint.plan)
    copies = config.draft.copies.values() if config.draft else ()
    left = sorted(name for name in checkpoint.unused({*used, *copies}) if not _COMPUTED.search(name))
    if HEAD in left and config.tied:
        left.remove(HEAD)
        shape = used[EMBEDDING]
        if not torch.equal(checkpoint.tensor(HEAD, shape), checkpoint.tensor(EMBEDDING, shape)):
            raise CheckpointError(
                f"{checkpoint.source}: config.json ties the head to the embedding, but '{HEAD}' is another matrix; "
                "correct tie_word_embeddings"
            )
    settings = checkpoint.config_file.name
    remedy = "is config.json the right one?" if settings == "config.json" else "was it converted correctly?"
    for name in left:
        layer = _LAYER.match(name)
        if layer and 0 <= int(layer[1]) - config.layers < config.draft_layers:
            continue
        if config.draft_layers and name.startswith(DRAFT):
            continue
        if layer and _UNREAD.search(name) and _reads_another(config, int(layer[1])):
            continue
        if layer and int(layer[1]) >= config.layers:
            raise CheckpointError(
                f"{checkpoint.source}: has the tensor '{name}', and {settings} says {config.layers} layers; "
                f"{remedy}"
            )
        if name.startswith(("model.", "lm_head.", "blk.", "output")):
            raise CheckpointError(
                f"{checkpoint.source}: has the tensor '{name}', which a model with this {settings} does not use; "
                f"without it the results would be wrong; {remedy}"
            )
    checkpoint.check(used)
    if left:
        log.warning("left out, because the exported model does not use them: %s", _some(left))


def _reads_another(config: ModelConfig, layer: int) -> bool:
    """Whether a layer has no keys of its own; some files have them nonetheless."""
    return layer < config.layers and config.at(layer).source is not None


def _check_ids(tokenizer: Tokenizer, config: ModelConfig, source: str) -> None:
    size = config.vocab_size
    beyond = sorted(token for token in tokenizer.eos_ids if token >= size)
    if beyond and len(beyond) == len(tokenizer.eos_ids):
        raise CheckpointError(
            f"{source}: the end token {beyond[0]} is beyond the vocabulary ({size:,} tokens), so no answer would "
            "ever end; correct eos_token_id in generation_config.json"
        )
    if beyond:
        log.warning(
            "%s: the end token %d is beyond the vocabulary of %d, so it is left out", source, beyond[0], size
        )
    if tokenizer.vocab_size > size:
        log.warning(
            "%s: its tokenizer has %d tokens but its embedding only %d: texts with other tokens will be refused",
            source,
            tokenizer.vocab_size,
            size,
        )


def _check_template(folder: Path, source: str) -> None:
    """Raises BundleError for a template that cannot be read or does not end, CheckpointError for one that
    renders nothing.
    """
    config = read_json(folder / "tokenizer_config.json") or {}
    if not (folder / "chat_template.jinja").exists() and config.get("chat_template") is None:
        return
    template = ChatTemplate.load(folder)
    try:
        reasons = []
        for messages in _CONVERSATIONS:
            try:
                template.render(messages)
                return
            except InputError as error:
                reasons.append(str(error))
    finally:
        template.close()
    raise CheckpointError(f"{source}: its chat template renders no conversation: {reasons[0]}")


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more

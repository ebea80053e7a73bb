"""The checkpoint under transformers, one decoder layer in memory at a time.

Runs transformers' own layers on weights read directly from the checkpoint's files. So a model that does not
fit into memory can still be a reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from h2o_export.architecture.arrangement import neighbours
from h2o_export.checkpoints import Checkpoint
from h2o_export.dense import layer_embedding
from h2o_export.dense.matrices import EMBEDDING
from h2o_runtime.errors import CheckpointError

ROWS = 512  # whose scores are in memory at a time
DECIDING = "e_score_correction_bias"  # float32 in transformers, whatever the model is


class StreamedModel:
    """A causal language model of transformers in `dtype`."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        from transformers import AttentionInterface, AutoModelForCausalLM

        self.checkpoint = checkpoint
        self.dtype = dtype
        AttentionInterface.register("h2o_exact", exact_attention)
        try:
            config = checkpoint.transformers_config()
            config.use_cache = False
            with torch.device("meta"):
                build: Any = AutoModelForCausalLM.from_config  # untyped in transformers
                self._model = build(config, attn_implementation="h2o_exact").to(dtype)
        except Exception as error:  # a setting that it refuses can raise anything
            raise CheckpointError(
                f"{checkpoint.config_file}: transformers cannot build the model: {_reason(error)}"
            ) from error
        self._model.eval()
        self._tokens = torch.empty(0)  # [texts, n]
        self._embedded = torch.empty(0)  # what begins their residual stream, [texts, n, D]
        self._lent: dict[str, Any] = {}  # keys and values that later layers read too
        rotary = self._module("model.rotary_emb")  # which a model without positions lacks
        self._rotary = rotary and type(rotary)(config=config)  # on the CPU: it has no weights

    def watch(self, seen: Callable[[str, Tensor], None], refill: bool = False) -> None:
        """From now on `seen` is called with each matrix of a layer, by name, and its input [..., K].

        refill  whether the checkpoint's matrix is read again afterwards, before it is multiplied
        """
        arrangement = self.checkpoint.config.arrangement
        for name, module in self._model.named_modules():
            if isinstance(module, nn.Linear) and name.startswith("model.layers."):
                here = arrangement.here(f"{name}.")

                def before(module: nn.Linear, given: tuple[Tensor], here: str = here) -> None:
                    for part in arrangement.split(here.removesuffix(".")):
                        seen(f"{part}.weight", given[0])
                    if refill:
                        weight = self._parameter(f"{here}weight", tuple(module.weight.shape))
                        module.weight = nn.Parameter(weight, requires_grad=False)

                module.register_forward_pre_hook(before)

    def hidden_states(self, ids: list[int]) -> Iterator[Tensor]:
        """Residual stream before layer 0, after layer 0, … after the last layer: [n, D] each."""
        hidden = self.embed([ids])
        yield hidden[0]
        for index in range(self.checkpoint.config.layers):
            hidden = self.layer(index, hidden)
            yield hidden[0]

    @torch.inference_mode()
    def embed(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Residual stream before layer 0 of texts with n tokens each, [texts, n, D]."""
        self._lent = {}
        self._tokens = torch.tensor([list(ids) for ids in texts])
        config = self.checkpoint.config
        table = self._load(EMBEDDING, (config.vocab_size, config.hidden_size))
        by = config.multipliers.embedding
        self._embedded = table[self._tokens] * by
        return self._embedded

    @torch.inference_mode()
    def layer(self, index: int, states: Tensor) -> Tensor:
        """One layer on the residual stream, [texts, n, D] → [texts, n, D]."""
        blocks = self.checkpoint.config.blocks
        for number in blocks[index] if blocks else (index,):
            states = self._block(number, index, states)
        return states

    def _block(self, number: int, index: int, states: Tensor) -> Tensor:
        """What transformers has as one layer, `number`, of the layer `index`."""
        layer = self._model.model.layers[number]
        self._fill(layer, f"model.layers.{number}.")
        positions = torch.arange(states.shape[1]).unsqueeze(0)
        rope = self._angles(index, states, positions)
        mask = self._mask(index, states.shape[1])
        more: dict[str, Any] = {"shared_kv_states": self._lent} if self._lends else {}
        if self.checkpoint.config.layer_embedding is not None:
            more["per_layer_input"] = self._own_embedding(index)
        out = layer(states, attention_mask=mask, position_ids=positions, position_embeddings=rope, **more)
        layer.to("meta")
        found: Tensor = out[0] if isinstance(out, tuple) else out
        return found

    def _own_embedding(self, index: int) -> Tensor:
        """What a layer adds of its own of every token, [texts, n, P]."""
        embedding, model = self.checkpoint.config.layer_embedding, self._model.model
        assert embedding is not None
        prefix = f"model.layers.{index}."
        row = (
            self._load(prefix + layer_embedding.ROWS, (embedding.vocabulary, embedding.size))[self._tokens]
            * embedding.size**0.5
        )
        matrix = self._load(
            prefix + layer_embedding.PROJECTION, (embedding.size, self.checkpoint.config.hidden_size)
        )
        projected = self._embedded @ matrix.T * self.checkpoint.config.hidden_size**-0.5
        self._fill(model.per_layer_projection_norm, f"model.{layer_embedding.NORM.removesuffix('weight')}")
        return layer_embedding.combined(model.per_layer_projection_norm(projected), row)

    @property
    def _lends(self) -> bool:
        """Whether layers take the keys and values of earlier ones."""
        return "shared_kv_states" in signature(self._model.model.layers[0].forward).parameters

    def _angles(self, index: int, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines of a layer; in some models they depend on the kind of layer."""
        if self._rotary is None:
            return None
        asked = "layer_type" in signature(self._rotary.forward).parameters
        kinds = (self._model.config.layer_types[index],) if asked else ()
        angles: tuple[Tensor, Tensor] = self._rotary(x, positions, *kinds)
        return angles

    def _mask(self, index: int, n: int) -> Tensor | None:
        """The keys visible to the rows of a layer with a window, bool [1, 1, n, n]; None: all up to their
        own.
        """
        window = self.checkpoint.plan.layers[index].spec.window
        if not window:
            return None
        distance = torch.arange(n)[:, None] - torch.arange(n)
        return ((distance >= 0) & (distance < window))[None, None]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head on rows of the last hidden state, [n, D] → [n, vocab]."""
        norm = self._module("model.norm")
        assert norm is not None
        self._fill(norm, "model.norm.")
        name = EMBEDDING if self.checkpoint.config.tied else "lm_head.weight"
        head = self._load(name, tuple(self._model.lm_head.weight.shape))
        config = self.checkpoint.config
        logits: Tensor = norm(hidden) @ head.T * config.multipliers.logits
        norm.to("meta")
        return (
            logits if config.logits_cap is None else (logits / config.logits_cap).tanh() * config.logits_cap
        )

    def _module(self, name: str) -> nn.Module | None:
        """The module with this name here."""
        here = self.checkpoint.config.arrangement.here
        modules: Iterator[tuple[str, nn.Module]] = self._model.named_modules()
        return next((found for own, found in modules if here(f"{own}.") == f"{name}."), None)

    def _fill(self, module: nn.Module, prefix: str) -> None:
        here = self.checkpoint.config.arrangement.here
        state = {
            name: self._parameter(here(prefix + name), tuple(value.shape))
            for name, value in module.state_dict().items()
        }
        try:
            module.load_state_dict(state, assign=True)
        except RuntimeError as error:
            raise CheckpointError(
                f"{self.checkpoint.source}: transformers cannot use {prefix}*: {error}"
            ) from error

    def _parameter(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Of a name here, in transformers' form: the matrices of all experts in one tensor, gate above up."""
        if name.endswith(DECIDING):
            return self.checkpoint.tensor(name, shape).float()
        stem, _, last = name.rpartition(".")
        if self.checkpoint.config.arrangement.stacked == "interleaved" and ".mlp." in name:
            return self._interleaved(stem, last, shape)
        if not stem.endswith(".experts"):
            return self._projection(stem, last, shape)
        projections = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
        count, rows, columns = shape
        row = (rows // len(projections), columns)
        return torch.stack(
            [
                torch.cat(
                    [self._load(f"{stem}.{expert}.{projection}.weight", row) for projection in projections]
                )
                for expert in range(count)
            ]
        )

    def _interleaved(self, stem: str, last: str, shape: tuple[int, ...]) -> Tensor:
        """Of the router, or of all experts: matrices [E, in, out], gate and up column by column in turn."""
        if not stem.endswith(".experts"):
            return self._load(f"{stem.replace('.router', '.gate')}.{last}", shape)
        kind = "bias" if last.endswith("_bias") else "weight"
        projections = ("gate_proj", "up_proj") if last.startswith("gate_up") else ("down_proj",)
        *inner, rows = shape[1:]
        row = (rows // len(projections), *inner)
        experts = []
        for expert in range(shape[0]):
            matrices = [self._load(f"{stem}.{expert}.{projection}.{kind}", row) for projection in projections]
            experts.append(torch.stack(matrices, dim=1).flatten(0, 1))
        return torch.stack([expert.T for expert in experts] if inner else experts)

    def _projection(self, module: str, kind: str, shape: tuple[int, ...]) -> Tensor:
        """Weights or biases of one of transformers' modules, joined from those that are separate here."""
        config = self.checkpoint.config
        modules = config.arrangement.split(module)
        if len(modules) > 1:
            rows = [(config.projection_rows(module), *shape[1:]) for module in modules]
            joined = torch.cat(
                [self._projection(module, kind, row) for module, row in zip(modules, rows, strict=True)]
            )
            order = config.file_order(module)
            return joined if order is None else joined[order.argsort()]
        tensor = self._load(f"{module}.{kind}", shape)
        if not config.arrangement.paired(module):
            return tensor
        return neighbours(tensor, shape[0] // config.head_size, config.rotated_size)

    def _load(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor, less = self.checkpoint.tensor(name, shape), self.checkpoint.config.arrangement.lessened(name)
        return (tensor - less if less else tensor).to(self.dtype)


def _reason(error: Exception) -> str:
    """The first line of its message; the second too, where the first only announces it."""
    first, *others = (str(error).strip() or type(error).__name__).splitlines()
    if not first.endswith(":") or not others:
        return first.rstrip(":")
    second = re.sub(r"^\w+Error: ", "", others[0].strip())
    return f"{first} {second}"


def exact_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [texts, Hq, n, d]; key, value [texts, Hkv, n, d] → [texts, n, Hq, d].

    Every row sees what `mask`, bool [1, 1, n, n], shows, or all up to its own. `s_aux` are sinks, [Hq].
    """
    if softcap is None and s_aux is None:
        out = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2), None
    texts, heads, n = query.shape[:3]
    seen = torch.ones(n, n, dtype=torch.bool).tril() if mask is None else mask[0, 0]
    out = query.new_empty((texts, n, heads, value.shape[3]))
    for text in range(texts):
        k, v = (
            each[text].repeat_interleave(heads // each.shape[1], dim=0) for each in (key, value)
        )  # [Hq, n, d]
        q = query[text] * scaling
        for start in range(0, n, ROWS):
            rows = slice(start, start + ROWS)
            scores = capped((q[:, rows] @ k.transpose(1, 2)).float(), softcap)
            out[text, rows] = (masked_softmax(scores, seen[rows], s_aux).to(v.dtype) @ v).transpose(0, 1)
    return out, None


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores that a tanh keeps below `softcap`; None: as they are."""
    return scores if softcap is None else (scores / softcap).tanh() * softcap


def masked_softmax(scores: Tensor, visible: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Softmax over the visible keys, [Hq, rows, keys]; a row that sees none gives zeros.

    sinks  [Hq], a score of each head that takes part and has no key
    """
    hidden = scores.masked_fill(~visible, -torch.inf)
    if sinks is None:
        return torch.softmax(hidden, dim=-1).nan_to_num(0.0)
    sink = sinks.to(hidden.dtype)[:, None, None].expand(*hidden.shape[:2], 1)
    return torch.softmax(torch.cat((hidden, sink), dim=-1), dim=-1)[..., :-1]

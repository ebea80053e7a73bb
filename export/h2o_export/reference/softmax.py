"""The softmax of attention in torch, with what some models do to it, for references apart from the runtime."""

from __future__ import annotations

import torch
from torch import Tensor


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

"""Recall of attention mass: how much of full attention's mass a rule's lists contain.

Lists are computed beside full attention: every rule sees the queries and keys of the exact run, so that rules
differ only in their choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_cli.eval.lists import KeyList, ListWatch
from h2o_cli.eval.mass import LayerMass, best_mass, by_list, selected_mass
from h2o_runtime import Generator
from h2o_runtime.devices import Device
from h2o_runtime.devices.timings import PrefillTimer
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy, PromptCall

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Recall:
    """Of one rule, summed over a prompt's lists; each [layers, Hq].

    selected  probability that lists contain, as full attention gives it
    best  that the best lists contain of as many keys, shared by the same queries and heads
    past  that all keys of the past have
    """

    selected: Float64
    best: Float64
    past: Float64

    @property
    def of_best(self) -> Float64:
        """By layer and head, at most 1; heads that never look back are left out."""
        return self.selected[self.best > 0] / self.best[self.best > 0]

    @property
    def of_past(self) -> Float64:
        return self.selected[self.past > 0] / self.past[self.past > 0]


def measure_recall(generator: Generator, ids: Any, policies: Sequence[PrefillPolicy[Any]]) -> list[Recall]:
    """One prompt under full attention, with the lists that each configuration would choose."""
    watched = Watched(rules=tuple(policies), scale=generator.model.scale)
    generator.prefill(ids, watched, reuse=False)
    tallies: list[Tally] = generator.session.prefill_state
    found = [tally.result() for tally in tallies]
    generator.reset()
    generator.session.drop_state()  # the state of every rule is large
    return found


class Tally:
    """One rule's own state, and the mass of its lists so far."""

    def __init__(self, rule: PrefillPolicy[Any], model: ModelSpec, capacity: int, device: Device) -> None:
        self.rule = rule
        self.state = rule.new_state(model, capacity, device)
        self.o = np.empty((capacity, model.query_heads, model.head_size), model.dtype)
        self._sums = np.zeros((3, model.layers, model.query_heads))

    def attend(self, call: LayerCall, mass: LayerMass) -> None:
        """Let the rule attend, and record what it saw; its output is dropped."""
        watch = ListWatch(call.provider, call.q)
        call_of_rule = replace(call, provider=watch, o=self.o[: len(call.q)], timer=PrefillTimer(), needed=0)
        self.rule.attend(call_of_rule, self.state)
        for keys in watch.lists():
            self._sums[:, call.layer] += list_sums(mass, keys)

    def result(self) -> Recall:
        return Recall(*self._sums.copy())


def list_sums(layer: LayerMass, list: KeyList) -> Float64:
    """Selected, best and past mass of one list, float64 [3, Hq]; heads that share it share its sums
    equally.
    """
    mass = layer.of(list.rows, list.past)
    lists = len(list.keys)
    shared = by_list(mass, lists)
    selected, best = selected_mass(shared, list.keys), best_mass(shared, list.keys.shape[1])
    found = np.stack([selected, best, shared.sum(axis=1)]).astype(np.float64)  # [3, Hs]
    group = len(mass) // lists
    return np.repeat(found / group, group, axis=1)


@dataclass(frozen=True)
class Watched(PrefillPolicy[list[Tally]]):
    """Full attention, beside which other policies choose their lists. In host memory only."""

    name: ClassVar[str] = "watched"
    title: ClassVar[str] = "full attention, beside which rules are measured"
    exact: ClassVar[bool] = True
    phases: ClassVar[tuple[str, ...]] = ("phase1",)

    rules: tuple[PrefillPolicy[Any], ...] = ()
    scale: float = 1.0  # of the model's dot products

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> list[Tally]:
        return [Tally(rule, model, capacity, device) for rule in self.rules]

    def start_prompt(self, prompt: PromptCall, state: list[Tally]) -> None:
        for tally in state:
            tally.rule.start_prompt(prompt, tally.state)

    def attend(self, call: LayerCall, state: list[Tally]) -> None:
        n, mass = len(call.q), LayerMass(call.q, call.k, self.scale)
        for tally in state:
            tally.attend(call, mass)
            call.checkpoint(0)
        call.dense_rows(0, n)
        call.checkpoint(n)

    def visible_pairs(self, n: int) -> int:
        return n * (n + 1) // 2

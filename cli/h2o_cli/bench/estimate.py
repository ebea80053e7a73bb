"""Estimates how long a measurement takes: its work divided by a share of the machine's peak rates."""

from __future__ import annotations

from collections.abc import Sequence

from h2o_cli.bench.contestants import Contestant, Entry
from h2o_cli.bench.floor import MachineRates
from h2o_cli.bench.measure import Rounds
from h2o_cli.bench.report import work_of
from h2o_runtime.policies.prefill import PREFILL

SHARE = 0.5  # of the machine's peak rates, reached by good kernels
START = 2.0  # seconds to start a contestant's process and load its model


def estimated_seconds(
    mode: str, entry: Entry, contestants: Sequence[Contestant], rounds: Rounds, rates: MachineRates
) -> float:
    """A rough estimate: each setting of a peer is tried once, and one goes through all rounds."""
    model = entry.model.manifest.model
    prefill, step = work_of("prefill" if mode == "decode" else mode, model), work_of("decode", model)
    flops = SHARE * (rates.flops or rates.bandwidth)
    seconds = 0.0
    for length in rounds.lengths:
        seen: set[str] = set()
        for contestant in contestants:
            policy = PREFILL.make(contestant.settings.get("prefill") or PREFILL.settings_of(entry.exact))
            runs = 1 + (0 if contestant.name in seen else rounds.repetitions)
            seen.add(contestant.name)
            whole = prefill(policy, length) / flops
            if mode == "decode":
                token = step(policy, length) / (SHARE * rates.bandwidth)
                run, once = rounds.decode_tokens * token, whole
            else:
                run, once = whole, 0.0
            seconds += START + once + (0.0 if run > rounds.time_limit else runs * run)
    return seconds

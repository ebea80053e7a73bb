"""h2o-run's report on an answer: one JSON document for machines, one line for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from h2o_cli.arithmetic import policy_share
from h2o_runtime.answers.completion import Completion
from h2o_runtime.answers.sampling import SampledToken
from h2o_runtime.caches import CACHES
from h2o_runtime.devices.timings import PrefillTimer
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.decode import DECODE
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy
from h2o_runtime.process import peak_bytes
from h2o_runtime.text_model import TextModel

LITTLE = 0.2  # share of a prompt's arithmetic


def answer_json(model: TextModel, completion: Completion, logprobs: bool) -> dict[str, Any]:
    """The document that --json prints."""
    speculate, reason = model.generator.speculation()
    report: dict[str, Any] = {
        "answer": completion.text,
        "finish_reason": completion.finish_reason,
        "stop": completion.stop,
        "tokens": [sampled.token for sampled in completion.tokens],
        "seed": completion.seed,
        "timings": asdict(completion.timings),
        "prefill": PREFILL.settings_of(completion.prefill),
        "prefill_ms": {
            name: 1e3 * seconds for name, seconds in model.generator.timer.seconds.items()
        },  # seconds by phase
        "decode": DECODE.settings_of(model.generator.spec.decoding),
        "speculate": speculate,
        "speculate_off_because": reason,
        "cache": {
            **CACHES.settings_of(model.generator.spec.cache),
            **model.generator.session.store.report(),
        },
        "cache_bytes": model.generator.session.store.nbytes,
        "exact": completion.exact,
        "seen": None if completion.seen is None else asdict(completion.seen),
        "forgotten_tokens": completion.forgotten,
        "context": model.generator.context,
        "backend": model.generator.loaded.backend.name,
        "dense_form": getattr(model.generator.loaded.backend, "dense_form", None),
        "dense_precision": model.generator.loaded.backend.dense_precision,
        "integer_product": getattr(model.generator.loaded.backend, "integer_product", None),
        **model.generator.loaded.forward.layers.report(),
        "device": model.generator.spec.device.name,
        "attention": model.generator.spec.provider.name,
        "attention_precision": getattr(model.generator.spec.provider, "precision", None),
        "peak_memory_bytes": peak_bytes(),
    }
    if logprobs:
        report["logprobs"] = [_token_json(model, sampled) for sampled in completion.tokens]
    return report


def _token_json(model: TextModel, sampled: SampledToken) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        # A token that decode leaves out is shown by name, so that an end of turn is visible.
        text = model.tokenizer.decode([token], skip_special_tokens=False)
        # JSON has no infinity; a token of probability 0 has no finite logarithm.
        return {"token": token, "text": text, "logprob": logprob if logprob > -1e300 else None}

    return {
        **entry(sampled.token, sampled.logprob),
        "top": [entry(token, logprob) for token, logprob in sampled.top],
    }


def summary(completion: Completion) -> str:
    """One line about the time."""
    t = completion.timings
    evicted = f" | {completion.forgotten:,} tokens evicted" if completion.forgotten else ""
    drafts = f" ({t.draft_n_accepted:,} of {t.draft_n:,} drafted ones)" if t.draft_n else ""
    reused = f" (+ {t.cache_n:,} cached)" if t.cache_n else ""
    return (
        f"prompt {t.prompt_n:,}{reused} tokens in {t.prompt_ms / 1e3:.2f} s, {t.prompt_per_second:,.0f}/s | "
        f"answer {t.predicted_n:,} tokens in {t.predicted_ms / 1e3:.2f} s, {t.predicted_per_second:,.1f}/s"
        f"{drafts} | {completion.finish_reason}{evicted} | peak memory {peak_bytes() / 2**20:,.0f} MiB"
    )


def little_to_save(model: ModelSpec, policy: PrefillPolicy[Any], tokens: int) -> str | None:
    """That few layers attend to everything, so that a sparse policy saves little of a prompt's work; None: it may
    save more, or saves nothing.
    """
    attending, share = model.under_policies.layers, policy_share(model, tokens)
    sparse = policy.visible_pairs(tokens) < tokens * (tokens + 1) // 2
    if not sparse or 2 * attending >= model.layers or share >= LITTLE:
        return None
    return (
        f"{attending} of {model.layers} layers see the whole prompt; their attention is {100 * share:.0f} % of its "
        f"arithmetic, the most that --prefill {policy.name} can save"
    )


def work(timer: PrefillTimer) -> str:
    """Where a prefill's time went."""
    return ", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in timer.seconds.items())

"""What the comparison after an export found: a table, a warning, or an error."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from h2o_runtime.bundles.manifest import TokenCheck, Validation
from h2o_runtime.model_spec import ModelSpec


def validation_table(validation: Validation) -> Table:
    table = Table(
        "output", "relative error", title=f"against {validation.reference}, {validation.tokens} tokens"
    )
    if validation.layers:
        worst = max(range(len(validation.layers)), key=validation.layers.__getitem__)
        table.add_row(f"hidden states, largest: before layer {worst}", _error(validation.layers[worst]))
    verdict = _verdict(validation.relative_error, validation.tolerance)
    table.add_row(
        "logits", f"{_error(validation.relative_error)} (tolerance {validation.tolerance:.1e}: {verdict})"
    )
    if validation.quantization_error is not None:
        table.add_row("logits, what rounding of weights costs", _error(validation.quantization_error))
    table.add_row(
        "logits, largest error", f"{validation.max_abs_error:.2e} of {validation.max_abs_value:.1f}"
    )
    if validation.divergence is not None and validation.divergence_limit is not None:
        verdict = _verdict(validation.divergence, validation.divergence_limit)
        table.add_row(
            "predictions, KL divergence from the checkpoint's",
            f"{_error(validation.divergence)} nats (limit {validation.divergence_limit}: {verdict})",
        )
    if validation.perplexity_loss is not None:
        table.add_row(
            "perplexity of this text, against the checkpoint's", _percent(validation.perplexity_loss)
        )
    if validation.token_ids is not None:
        table.add_row("token ids", _token_ids(validation.token_ids))
    return table


def _token_ids(check: TokenCheck) -> str:
    verdict = "MISSED" if check.wrong else "good"
    if check.reference is None:
        return f"not compared, as there is no tokenizer.json; they give the text back ({verdict})"
    return f"{check.texts - check.wrong} of {check.texts} texts as by {check.reference} ({verdict})"


def _verdict(value: float, limit: float) -> str:
    return "good" if value <= limit else "MISSED"


def warn_of_loss(output: Path, validation: Validation) -> None:
    from h2o_export.validation.perplexity import WARNING

    loss = validation.perplexity_loss
    if validation.passed and loss is not None and loss >= WARNING:
        click.echo(
            f"warning: {output}: it predicts a text worse than the checkpoint does, by {_percent(loss)} of "
            "perplexity: --weights stored keeps the checkpoint's own weights, and int8 loses less",
            err=True,
        )


def missed(validation: Validation, model: ModelSpec) -> str:
    """What a validation found wrong, and what to do."""
    if validation.token_ids is not None and validation.token_ids.wrong:
        return (
            "its tokenizer gives other token ids than the checkpoint's; download the tokenizer's files again"
        )
    error, tolerance = validation.relative_error, validation.tolerance
    if error > tolerance:
        return f"its logits differ from the checkpoint's by {_error(error)}, the tolerance is {tolerance:.1e}"
    if model.weights is not None and model.weights.quantized:
        finer = "int8 or float" if model.weights.projections.startswith("int4") else "float"
        remedy = f"export with --weights {finer}, or with a smaller block_size"
    else:
        remedy = "export with --dtype float32"
    assert validation.divergence is not None
    return (
        "it predicts other words than the checkpoint: the KL divergence is "
        f"{_error(validation.divergence)} nats a token, the limit is {validation.divergence_limit}; {remedy}"
    )


def _error(value: float) -> str:
    """The manifest has a huge number in place of an infinite or undefined error."""
    return f"{value:.2e}" if value < 1e300 else "no number (NaN or infinity)"


def _percent(share: float) -> str:
    return f"{share:+.2%}" if share < 1e300 else _error(share)

"""The best products with integer weights on this machine: h2o-bench dense measures once and writes a file."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import Field, ValidationError

from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.dense_graphs import native
from h2o_runtime.errors import OutputError
from h2o_runtime.files.outputs import check_target, replace_file, user_cache
from h2o_runtime.layer_spec import Strict
from h2o_runtime.names import DenseForm, DensePrecision
from h2o_runtime.ort.cuda import import_onnxruntime

log = logging.getLogger(__name__)

# The workload with which `best` weighs times: the tokens of a prompt, and of an answer.
PROMPT_TOKENS, ANSWER_TOKENS = 4096, 128
ALL_PRECISIONS: frozenset[DensePrecision] = frozenset(get_args(DensePrecision))
MOST_LOSS = 0.003  # of log-probability per token against "exact", on average: the same share of perplexity


class DenseProducts(NamedTuple):
    """How a CPU multiplies with the weights of dense graphs."""

    form: DenseForm
    precision: DensePrecision = "float32"


class DenseTimes(Strict):
    """One kind of products in one bundle's dense graphs on this machine.

    row_s   seconds of all dense graphs for one token
    many_s  seconds per token in a call of many
    loss    of log-probability per token against "exact", on average
    """

    form: DenseForm
    precision: DensePrecision
    row_s: float = Field(gt=0)
    many_s: float = Field(gt=0)
    loss: float

    @property
    def products(self) -> DenseProducts:
        return DenseProducts(self.form, self.precision)

    @property
    def weighed_s(self) -> float:
        return PROMPT_TOKENS * self.many_s + ANSWER_TOKENS * self.row_s


class Measured(Strict):
    """The measurements of one bundle. `machine` says where."""

    machine: dict[str, Any]
    times: tuple[DenseTimes, ...]

    def best(self, precisions: Collection[DensePrecision] = ALL_PRECISIONS) -> DenseProducts:
        """The fastest of these precisions with little loss; the default if none has."""
        good = [times for times in self.times if times.loss <= MOST_LOSS and times.precision in precisions]
        return min(good, key=lambda times: times.weighed_s).products if good else default_products()


def default_products() -> DenseProducts:
    """Those that have no further loss on any machine, and are fast on this one."""
    return DenseProducts("native" if native.is_fast() else "blocks")


def chosen_products(
    manifest: Manifest, threads: int, precisions: Collection[DensePrecision] = ALL_PRECISIONS
) -> DenseProducts:
    """The best of these precisions as measured, or the default."""
    try:
        path = choice_file(manifest, threads)
        measured = Measured.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, OutputError):
        log.info(
            "integer weights: dense_form=%s dense_precision=%s, not measured; h2o-bench dense measures once",
            *default_products(),
        )
        return default_products()
    except ValidationError as error:
        log.warning("%s: not a result of h2o-bench dense (%s); it is ignored", path, error.errors()[0]["msg"])
        return default_products()
    best = measured.best(precisions)
    log.info("integer weights: dense_form=%s dense_precision=%s, measured in %s", *best, path)
    return best


def keep(measured: Measured, manifest: Manifest, threads: int) -> Path:
    """Write the measurements where `chosen_products` finds them. Raises OutputError."""
    path = choice_target(manifest, threads)
    replace_file(path, measured.model_dump_json(indent=2) + "\n")
    return path


def choice_target(manifest: Manifest, threads: int) -> Path:
    """`choice_file`, in a folder that exists. Raises OutputError if it cannot be written."""
    path = choice_file(manifest, threads)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path.parent}: cannot be made: {error.strerror}") from error
    check_target(path)
    return path


def choice_file(manifest: Manifest, threads: int) -> Path:
    """One file for each machine, version of ONNX Runtime, number of threads, and bundle's graphs and
    weights. Raises OutputError for a user without a home.
    """
    key = {**machine(threads), "bundle": manifest.identity}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return user_cache() / "h2o-edge" / "dense" / f"{name}.json"


def machine(threads: int) -> dict[str, Any]:
    """What a measurement depends on."""
    return {
        "cpu": _cpu(),
        "onnxruntime": import_onnxruntime().__version__,
        "native": native.is_fast(),
        "threads": threads,
    }


def _cpu() -> str:
    """Name and instruction sets: cloud machines share names."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "cpu family", "model\t", "flags", "Features", "CPU part")
    found = {
        line.partition(":")[0].strip(): line.partition(":")[2].strip()
        for line in lines
        if line.startswith(wanted)
    }
    flags = found.pop("flags", "") + found.pop("Features", "")
    return " ".join([*found.values(), hashlib.sha256(flags.encode()).hexdigest()[:8]])

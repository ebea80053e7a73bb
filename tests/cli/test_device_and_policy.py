"""What --device auto and a missing --prefill become, and the default rule on a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner
from tests.model_specs import grouped

from h2o_cli import serve as serve_command
from h2o_cli.model_options import on_device
from h2o_cli.policy_options import chosen_prefill
from h2o_cli.run import command as run_command
from h2o_runtime.answers.request import Request
from h2o_runtime.backends import select
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.policies.decode import FullDecode
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query
from h2o_server import serve as server
from h2o_server.request_builder import RequestBuilder

NONE = dict.fromkeys(("prefill", "short_batch_size", "short_chunk_size", "short_local", "short_heavy"))
GUARDED = Query(missed=0.0025)


def test_only_flags_choose_a_policy() -> None:
    default = Query(heavy=192)
    assert chosen_prefill(default, dict(NONE)) is None
    assert chosen_prefill(default, NONE | {"prefill": "full"}) == Full()
    assert chosen_prefill(default, NONE | {"prefill": "h2o"}) == Query()
    assert chosen_prefill(default, NONE | {"short_local": 32}) == Query(heavy=192, local=32)


@pytest.mark.parametrize(
    ("bundles", "named", "device"),
    [(Query(), None, "cuda"), (Query(), GUARDED, "cpu"), (GUARDED, None, "cpu"), (GUARDED, Full(), "cuda")],
)
def test_auto_is_a_device_for_the_policy(
    bundles: PrefillPolicy[Any],
    named: PrefillPolicy[Any] | None,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(select, "_gpu_is_usable", lambda: True)
    manifest = Manifest.model_construct(model=grouped(8, 2), prefill=bundles)
    arguments = {"device": "auto", "backend": "onnxruntime", "decoding": FullDecode()}
    assert on_device(arguments, manifest, named or bundles) == arguments | {"device": device}


# The default rule on a GPU


class Seen(Exception):  # noqa: N818 - is no error
    """The policy that a command goes on with."""


def of_run(monkeypatch: pytest.MonkeyPatch) -> click.Command:
    def seen(model: Any, settings: Request, *_: Any) -> None:
        raise Seen(settings.prefill)

    monkeypatch.setattr(run_command.TextModel, "load", lambda *_, **__: nullcontext(Mock()))
    monkeypatch.setattr(run_command.SavedCache, "around", lambda *_: nullcontext())
    monkeypatch.setattr(run_command, "_answer_once", seen)
    return run_command.main


def of_serve(monkeypatch: pytest.MonkeyPatch) -> click.Command:
    def seen(settings: Any, prefill: Any, load: Any) -> None:
        raise Seen(prefill)

    monkeypatch.setattr(server, "serve", seen)
    return serve_command.main


COMMANDS = {"run": of_run, "serve": of_serve}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("flags", "policy"),
    [
        (["--prefill", "h2o", "-b", "2048"], Query(batch_size=2048, dense_start=4096, queries=8)),
        (["--prefill", "dense_start=1"], Query(dense_start=1)),
        (["--prefill", "full"], Full()),
    ],
)
def test_the_default_rule_begins_dense_on_a_gpu_by_flags_too(
    name: str,
    flags: list[str],
    policy: PrefillPolicy[Any],
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = COMMANDS[name](monkeypatch)
    text = ["-p", "one"] if name == "run" else []
    done = CliRunner().invoke(command, [str(tiny_bundle), *text, "--device", "cuda", *flags])
    assert isinstance(done.exception, Seen), done.output
    assert done.exception.args == (policy,)


@pytest.mark.parametrize(("device", "rule"), [("cuda", Query(dense_start=4096, queries=8)), ("cpu", Query())])
def test_and_by_a_request(device: str, rule: Query) -> None:
    model: Any = SimpleNamespace(
        generator=SimpleNamespace(spec=SimpleNamespace(device=SimpleNamespace(name=device)))
    )
    builder = RequestBuilder(model, Mock(), Full())
    assert builder.prefill_policy("h2o") == rule
    assert builder.prefill_policy({"policy": "h2o", "dense_start": 1}) == Query(dense_start=1)
    assert builder.prefill_policy(None) == Full()

"""h2o-serve: one model over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from h2o_cli.common import Exit, guarded, verbose_option
from h2o_cli.effects import Beside, NotBeside, needing
from h2o_cli.help import Group, HelpfulCommand, grouped
from h2o_cli.model_options import load_arguments, model_options, speculate_option
from h2o_cli.policy_options import prefill_options, prefill_policy
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.completion import TextModel
from h2o_runtime.config.load_options import LoadOptions
from h2o_runtime.errors import BackendError, InputError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.limits import MAX_SLOTS
from h2o_runtime.names import METRICS_NAMES, Pooling
from h2o_runtime.server.settings import RequestLimits, ServerSettings
from h2o_runtime.text import decode_utf8

_MIB = 1 << 20
_MOST_KEYS = 1 << 20  # bytes of a file of keys


def _slot_count(context: click.Context, parameter: click.Parameter, value: str) -> int | None:
    """None for "auto"."""
    if value == "auto":
        return None
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither a number nor auto")
    if not 1 <= int(value) <= MAX_SLOTS:
        raise click.BadParameter(f"{value} is not from 1 to {MAX_SLOTS:,}")
    return int(value)


_FIRST = (
    "host",
    "port",
    "alias",
    "api_key_file",
    "slots",
    "cache_pool",
    "cache_dir",
    "prefill",
    "context",
    "threads",
    "log_format",
)
_server_options = grouped(
    Group.SERVER,
    click.option("--host", default=ServerSettings.host, show_default=True, help="Address to listen on."),
    click.option(
        "--port",
        type=int,
        default=ServerSettings.port,
        show_default=True,
        help="Port to listen on; 0 takes any free port.",
    ),
    click.option("--alias", help="The model's name in the API.  [default: the bundle's folder]"),
    click.option(
        "--api-key",
        "api_key",
        multiple=True,
        envvar="H2O_API_KEY",
        metavar="KEY",
        help="Key that clients must send; repeatable. Other users of this machine can see it in the list "
        "of processes: prefer --api-key-file or the variable H2O_API_KEY.",
    ),
    click.option(
        "--api-key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File of keys, one per line; lines that begin with # are comments.",
    ),
    click.option(
        "--cors-origin",
        "cors_origin",
        multiple=True,
        metavar="ORIGIN",
        help="Origin of web pages that may use the API; repeatable, * is all.  [default: this machine's]",
    ),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        metavar="NAME",
        help="Host name that requests may use, such as a proxy's; repeatable, * is any.  [default: this "
        "machine's names; any if a key is required]",
    ),
    click.option(
        "--slots",
        callback=_slot_count,
        default="auto",
        metavar="N|auto",
        show_default=True,
        help="Number of requests that are answered at once. auto: as many as --slot-memory holds, up to 8, and at "
        "least 4 with --cache paged; one on a GPU, with --cache offload and with --cache-tokens.",
    ),
    needing(
        NotBeside("slots", (1,)),
        click.option(
            "--slot-memory",
            type=click.IntRange(min=1),
            help="MiB for the rows of all --slots together. With --cache paged slots share them, and each may "
            "grow to the whole context while there are free pages.  [default: half of the free memory]",
        ),
        click.option(
            "--piece",
            type=int,
            default=ServerSettings.prompt_piece,
            show_default=True,
            help="With several --slots: prompt tokens that are read at once, in whole chunks, while other "
            "answers wait.",
        ),
    ),
    click.option(
        "--pooling",
        type=click.Choice([pooling.value for pooling in Pooling]),
        callback=lambda context, parameter, value: Pooling(value),
        default=ServerSettings.pooling.value,
        show_default=True,
        help="How an embedding is computed: the mean of all tokens' hidden states, or the last token's.",
    ),
    click.option(
        "--max-queue",
        type=int,
        default=RequestLimits.queue,
        show_default=True,
        help="Maximum waiting requests.",
    ),
    needing(
        NotBeside("max_queue", (0,)),
        click.option(
            "--queue-timeout",
            type=float,
            help="Refuse requests that have waited this many seconds.  [default: never]",
        ),
    ),
    click.option(
        "--max-body",
        type=click.IntRange(min=1),
        default=RequestLimits.body_bytes // _MIB,
        show_default=True,
        help="Maximum request body in MiB; the limit is lower if the context holds less text.",
    ),
    click.option(
        "--body-memory",
        type=click.IntRange(min=1),
        help="Maximum MiB for the bodies of all requests together.  "
        f"[default: {RequestLimits.memory_bytes // _MIB}, or --max-body if that is more]",
    ),
    click.option(
        "--body-timeout",
        type=float,
        default=RequestLimits.body_timeout,
        show_default=True,
        help="Seconds in which headers and body must arrive.",
    ),
    click.option(
        "--stall-timeout",
        type=float,
        default=RequestLimits.stall_timeout,
        show_default=True,
        help="Seconds without progress of a running request after which /health answers 503.",
    ),
    click.option(
        "--grace",
        type=float,
        default=ServerSettings.grace,
        show_default=True,
        help="Seconds for running requests to finish when the server stops.",
    ),
    click.option(
        "--metrics-names",
        type=click.Choice(METRICS_NAMES),
        default=ServerSettings.metrics_names,
        show_default=True,
        help="vllm adds vLLM's names to /metrics, for routers that expect them.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of the log on standard error.",
    ),
)
_pool_options = grouped(
    Group.CACHE,
    click.option(
        "--cache-pool",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="MiB of memory for waiting conversations, which are then not read again. The one that has waited "
        "longest is dropped first.",
    ),
    click.option(
        "--cache-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder for conversations that exceed --cache-pool, and for all of them when the server "
        "stops. They survive a restart.",
    ),
    needing(
        Beside("cache_dir"),
        click.option(
            "--cache-dir-shared",
            is_flag=True,
            help="Other servers use --cache-dir too: write each conversation right after its answer, so that "
            "no other server reads the same prompt again.",
        ),
        click.option(
            "--cache-dir-limit",
            type=click.IntRange(min=1),
            help="Maximum MiB in --cache-dir; the least recently used conversations are removed.  "
            f"[default: {LoadOptions.folder_bytes // _MIB}]",
        ),
    ),
)


@click.command(cls=HelpfulCommand, first=_FIRST)
@click.argument("bundle")
@_server_options
@prefill_options
@_pool_options
@model_options
@speculate_option
@verbose_option
@guarded
def main(bundle: str, log_format: Any, verbose: int, **flags: Any) -> None:
    """Serve the model in the folder BUNDLE with APIs like OpenAI's and Anthropic's, and a chat page.

    Requests that name no policy are read with that of --prefill. After the first Ctrl-C or SIGTERM running requests
    finish; the second one stops them.
    """
    try:
        from h2o_runtime.server.logs import start_logging
        from h2o_runtime.server.serve import serve
    except ModuleNotFoundError as error:
        raise BackendError(
            f"serving needs the package {error.name}: install h2o-edge with its extra serve, "
            "pip install 'h2o-edge[serve]'"
        ) from error
    start_logging(log_format, verbose)
    settings = _settings(bundle, flags)
    prefill = prefill_policy(Manifest.read(Path(bundle)).prefill, flags)
    arguments = load_arguments(flags) | {
        "slots": flags.pop("slots"),
        "slot_bytes": memory * _MIB if (memory := flags.pop("slot_memory")) else None,
        "pool_bytes": flags.pop("cache_pool") * _MIB,
        "folder": flags.pop("cache_dir"),
        "folder_bytes": limit * _MIB if (limit := flags.pop("cache_dir_limit")) else LoadOptions.folder_bytes,
        "folder_shared": flags.pop("cache_dir_shared"),
        "speculate": flags.pop("speculate"),
    }

    def load() -> TextModel:
        return TextModel.load(bundle, **arguments)

    if not serve(settings, prefill, load):
        # The inference thread is inside a computation that does not end; the interpreter would wait for it.
        os._exit(Exit.ERROR)


def _settings(bundle: str, flags: dict[str, Any]) -> ServerSettings:
    """Takes the server's own flags out of `flags`. Raises ConfigError and InputError."""
    max_body, memory = flags.pop("max_body") * _MIB, flags.pop("body_memory")
    return ServerSettings(
        host=flags.pop("host"),
        port=flags.pop("port"),
        alias=Path(bundle).resolve().name if (alias := flags.pop("alias")) is None else alias,
        api_keys=(*flags.pop("api_key"), *_keys(flags.pop("api_key_file"))),
        cors_origins=flags.pop("cors_origin"),
        allowed_hosts=flags.pop("allowed_hosts"),
        grace=flags.pop("grace"),
        prompt_piece=flags.pop("piece"),
        pooling=flags.pop("pooling"),
        metrics_names=flags.pop("metrics_names"),
        limits=RequestLimits(
            queue=flags.pop("max_queue"),
            queue_timeout=flags.pop("queue_timeout"),
            body_bytes=max_body,
            memory_bytes=memory * _MIB if memory else max(RequestLimits.memory_bytes, max_body),
            body_timeout=flags.pop("body_timeout"),
            stall_timeout=flags.pop("stall_timeout"),
        ),
    )


def _keys(file: Path | None) -> tuple[str, ...]:
    if file is None:
        return ()
    lines = [line.strip() for line in decode_utf8(read_input(file, _MOST_KEYS), str(file)).splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise InputError(f"{file} holds no API key: write one a line, or leave out --api-key-file")
    return keys


if __name__ == "__main__":
    main()

"""h2o-serve: one model over HTTP."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import click

from h2o_cli import usage
from h2o_cli.bundle_argument import as_bundle, bundle_argument
from h2o_cli.common import verbose_option
from h2o_cli.effects import Beside, needing
from h2o_cli.help import Group, HelpfulCommand, grouped, version_option
from h2o_cli.model_options import (
    chat_template_option,
    load_arguments,
    model_options,
    on_device,
    speculate_option,
)
from h2o_cli.output_path import OutputPath
from h2o_cli.policy_options import chosen_prefill, prefill_options
from h2o_cli.settings_text import SettingsText
from h2o_runtime.answers.dialects import DIALECTS
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.components.options import Configuration, option
from h2o_runtime.config.load_options import LoadOptions
from h2o_runtime.errors import BackendError, ConfigError, InputError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.limits import MAX_SLOTS
from h2o_runtime.names import METRICS_NAMES, Pooling
from h2o_runtime.policies.prefill import policy_on_device
from h2o_runtime.text import decode_utf8
from h2o_runtime.text_model import TextModel
from h2o_server.settings import RequestLimits, ServerSettings

_MIB = 1 << 20
_KEYS = "H2O_API_KEY"  # unlike an option, other users cannot see it
_MOST_KEYS = 1 << 20  # bytes of a file of keys


@dataclass(frozen=True)
class SlotSettings(Configuration):
    """How many requests are answered at once, and what they share."""

    title: ClassVar[str] = "requests that are answered at once"

    slots: Literal["auto"] | int = option(
        "auto",
        "how many; auto: as many as memory holds, up to 8, and at least 4 with --cache paged; one on a GPU, with "
        "--cache offload and with --cache evicting",
        least=1,
    )
    memory: Literal["auto"] | int = option(
        "auto",
        "MiB for the rows of all slots together; with --cache paged slots share them, and each may grow to the "
        "whole context while there are free pages; auto: half of the free memory",
        least=1,
    )
    piece: int = option(
        ServerSettings.prompt_piece,
        "prompt tokens that are read at once, in whole chunks, while other answers wait",
        least=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slots != "auto" and self.slots > MAX_SLOTS:
            raise ConfigError(f"slots must be at most {MAX_SLOTS:,}, but is {self.slots}", field="slots")

    @property
    def idle(self) -> dict[str, str]:
        """Settings that change nothing, and why."""
        return dict.fromkeys(("memory", "piece"), "has no effect with 1 slot") if self.slots == 1 else {}


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
        "--api-key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File of keys that clients must send, one per line; lines that begin with # are comments. The "
        f"variable {_KEYS} may hold keys too, with blanks between them.",
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
        type=SettingsText(SlotSettings, first="slots"),
        default=SlotSettings(),
        metavar="N|auto",
        help="Number of requests that are answered at once, or auto, the default, and what they share: "
        '"4 memory=2048 piece=1024"; help prints more.',
    ),
    click.option(
        "--dialect",
        type=click.Choice(["auto", *DIALECTS.names]),
        default="auto",
        show_default=True,
        help="How the model writes calls of functions, and how it is told to; auto: as its chat template shows.",
    ),
    chat_template_option,
    click.option(
        "--pooling",
        type=click.Choice([pooling.value for pooling in Pooling]),
        callback=lambda context, parameter, value: None if value is None else Pooling(value),
        help="How an embedding is computed: the mean of all tokens' hidden states, or the last token's.  [default: "
        "the model's own, or mean]",
    ),
    click.option(
        "--limits",
        type=SettingsText(RequestLimits),
        default=RequestLimits(),
        help='Limits for clients, such as "queue=8 body=16"; help prints all there are.',
    ),
    click.option(
        "--grace",
        type=float,
        default=ServerSettings.grace,
        show_default=True,
        help="Seconds for running requests to finish when the server stops. To write --cache-dir it may take 80 "
        "more.",
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
        type=OutputPath(file_okay=False),
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
@version_option
@bundle_argument
@_server_options
@prefill_options
@_pool_options
@model_options
@speculate_option
@verbose_option
def main(bundle: str, log_format: Any, verbose: int, **flags: Any) -> None:
    """Serve the model in the folder BUNDLE with APIs like OpenAI's and Anthropic's, and a chat page.

    Requests that name no policy are read with that of --prefill, or the bundle's. After Ctrl-C, SIGTERM or SIGHUP
    running requests finish and conversations are kept in --cache-dir; the exit code is 130, 143 or 129. A second
    Ctrl-C or SIGTERM stops the requests; the next one ends at once.
    """
    try:
        from h2o_server.http.logs import start_logging
        from h2o_server.serve import serve
    except ModuleNotFoundError as error:
        raise BackendError(
            f"serving needs the package {error.name}: install h2o-edge with its extra serve, "
            "pip install 'h2o-edge[serve]'"
        ) from error
    start_logging(log_format, verbose)
    slots: SlotSettings = flags.pop("slots")
    folder = as_bundle(bundle)
    manifest = Manifest.read(folder)
    chosen = chosen_prefill(manifest.prefill, flags)
    settings = _settings(folder, slots.piece, flags)
    arguments = on_device(load_arguments(flags), manifest, chosen or manifest.prefill) | {
        "slots": None if slots.slots == "auto" else slots.slots,
        "slot_bytes": None if slots.memory == "auto" else slots.memory * _MIB,
        "pool_bytes": flags.pop("cache_pool") * _MIB,
        "folder": flags.pop("cache_dir"),
        "folder_bytes": limit * _MIB if (limit := flags.pop("cache_dir_limit")) else LoadOptions.folder_bytes,
        "folder_shared": flags.pop("cache_dir_shared"),
        "speculate": flags.pop("speculate"),
        "chat_template": flags.pop("chat_template"),
    }

    dialect: str = flags.pop("dialect")

    def load() -> TextModel:
        model = TextModel.load(folder, **arguments)
        if dialect != "auto":
            model.speak(DIALECTS[dialect]())
        return model

    prefill = chosen and policy_on_device(chosen, arguments["device"])
    ended = serve(settings, prefill, load)
    if not ended.threads:
        # The inference thread is inside a computation that does not end; the interpreter would wait for it.
        os._exit(usage.Exit.ERROR)
    if ended.signal is not None:
        sys.exit(128 + ended.signal)


def _settings(bundle: Path, piece: int, flags: dict[str, Any]) -> ServerSettings:
    """Takes the server's own flags out of `flags`. Raises ConfigError and InputError."""
    return ServerSettings(
        host=flags.pop("host"),
        port=flags.pop("port"),
        alias=bundle.resolve().name if (alias := flags.pop("alias")) is None else alias,
        api_keys=(*os.environ.get(_KEYS, "").split(), *_keys(flags.pop("api_key_file"))),
        cors_origins=flags.pop("cors_origin"),
        allowed_hosts=flags.pop("allowed_hosts"),
        grace=flags.pop("grace"),
        prompt_piece=piece,
        pooling=flags.pop("pooling"),
        metrics_names=flags.pop("metrics_names"),
        limits=flags.pop("limits"),
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

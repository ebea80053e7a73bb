"""h2o-run: one prompt, one answer, or a conversation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import click

from h2o_cli.bundle_argument import bundle_argument, find_bundle, folder_of
from h2o_cli.common import argument_text, json_option, print_json, start_logging, verbose_option
from h2o_cli.effects import Beside, needing
from h2o_cli.help import Group, HelpfulCommand, grouped, version_option
from h2o_cli.model_options import (
    chat_template_option,
    load_arguments,
    model_options,
    on_device,
    speculate_option,
)
from h2o_cli.policy_options import chosen_prefill, prefill_options
from h2o_cli.run.conversation import converse, opening
from h2o_cli.run.prompt import STDIN, PromptSource, is_piped
from h2o_cli.run.report import answer_json
from h2o_cli.run.sampling_options import sampling_config, sampling_options
from h2o_cli.run.saved import SavedCache, saved_options
from h2o_cli.run.screen import answer, naming_the_flag, prepare_output
from h2o_cli.stopping import Stop
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.errors import Cancelled
from h2o_runtime.policies.prefill import policy_on_device
from h2o_runtime.text_model import TextModel


@dataclass(frozen=True)
class TextFlags:
    """The input, and how the answer is shown. Raises click.UsageError for flags that contradict each
    other.
    """

    source: PromptSource | None
    chat: bool
    system: str | None
    as_json: bool
    logprobs: bool

    def __post_init__(self) -> None:
        if self.converses and self.source is not None and self.source.document == STDIN:
            raise click.UsageError("--chat reads its turns from standard input: leave out the -")
        if self.source is None and not self.converses:
            also = "" if self.chat else ", or --chat for a conversation"
            raise click.UsageError(
                f"no prompt: give --prompt TEXT, --prompt-file FILE or - for standard input{also}"
            )

    @property
    def converses(self) -> bool:
        """Whether there are several turns. With --json there is one, through the chat template."""
        return self.chat and not self.as_json


_FIRST = (
    "prompt",
    "file",
    "chat",
    "system",
    "max_tokens",
    "temperature",
    "prefill",
    "context",
    "threads",
    "as_json",
)
_prompt_options = grouped(
    Group.PROMPT,
    click.option(
        "-p", "--prompt", metavar="TEXT", help="The prompt, or a question that follows the document."
    ),
    click.option(
        "-f",
        "--prompt-file",
        "file",
        type=click.Path(exists=True, dir_okay=False, allow_dash=True),
        help="Read a document from a file, without its last newline; - is standard input.",
    ),
    click.option(
        "--chat",
        is_flag=True,
        help="Hold a conversation, with the model's chat template. A prompt is its first message, and with --json "
        "the only one.",
    ),
    needing(
        Beside("chat"),
        click.option("--system", metavar="TEXT", help="The conversation's system message."),
        chat_template_option,
    ),
)
_answer_options = grouped(
    Group.ANSWER,
    click.option(
        "-n",
        "--max-tokens",
        type=click.IntRange(min=1),
        default=512,
        show_default=True,
        help="Maximum tokens of an answer.",
    ),
    click.option(
        "--stop", multiple=True, metavar="TEXT", help="End the answer before this text; repeatable."
    ),
    click.option("--ignore-eos", is_flag=True, help="Never end an answer before --max-tokens."),
    sampling_options,
)


@click.command(cls=HelpfulCommand, first=_FIRST)
@version_option
@bundle_argument
@click.argument("source", metavar="[-]", required=False)
@_prompt_options
@_answer_options
@prefill_options
@model_options
@speculate_option
@saved_options
@json_option
@verbose_option
def main(
    bundle: str,
    source: str | None,
    prompt: str | None,
    file: str | None,
    chat: bool,
    system: str | None,
    as_json: bool,
    verbose: int,
    **flags: Any,
) -> None:
    """Answer a prompt with the model in the folder BUNDLE.

    The answer streams to standard output, everything else to standard error. Ctrl-C stops it. A document comes
    from --prompt-file, or from a pipe or file as standard input. A --prompt beside it is a question about it. The
    bundle's policy reads the prompt unless --prefill changes it; --json shows its settings. The exit code is
    130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    """
    start_logging(verbose)
    prepare_output()
    found = find_bundle(bundle)  # a missing one is told before a missing prompt
    system = None if system is None else argument_text(system, "--system")
    shown = TextFlags(
        PromptSource.of(prompt, file, source, piped=is_piped() and not (chat and not as_json)),
        chat,
        system,
        as_json,
        logprobs=flags["logprobs"] is not None,
    )
    folder = folder_of(found)
    manifest = Manifest.read(folder)
    cache = SavedCache.of(flags)
    default = cache.default(manifest.prefill)
    chosen = chosen_prefill(default, flags)
    settings = _settings(flags)
    text = shown.source.read() if shown.source else None
    of_text = {name: flags.pop(name) for name in ("speculate", "chat_template")}
    arguments = on_device(load_arguments(flags), manifest, chosen or default) | of_text
    if chosen is not None:
        settings = replace(settings, prefill=policy_on_device(chosen, arguments["device"]))
    elif cache.loaded is not None:  # the session goes on under its own
        settings = replace(settings, prefill=default)
    with (
        TextModel.load(folder, **arguments) as model,
        Stop.of_command().noted(),
        cache.around(model.generator, settings.prefill or manifest.prefill),
    ):
        if shown.converses:
            converse(model, settings, system, text, cache.prompt_piece)
        elif text is not None:
            _answer_once(model, settings, text, shown, cache.prompt_piece)


def _settings(flags: dict[str, Any]) -> Request:
    """The request without its prompt and policy; takes its own arguments out of `flags`.

    Needs no model, so that a contradiction is reported before a large model is loaded.
    """
    sampling = sampling_config(flags)
    return Request(
        Prompt(()),
        max_tokens=flags.pop("max_tokens"),
        sampling=sampling,
        stop=tuple(argument_text(stop, "--stop") for stop in flags.pop("stop")),
        ignore_eos=flags.pop("ignore_eos"),
    )


def _answer_once(
    model: TextModel, settings: Request, text: str, flags: TextFlags, prompt_piece: int | None
) -> None:
    with naming_the_flag(settings, model.generator.model.max_position_embeddings):
        if flags.chat:
            prompt = model.chat_prompt([*opening(flags.system), {"role": "user", "content": text}])
        else:
            prompt = model.text_prompt(text)
        request = replace(settings, prompt=prompt)
        completion = answer(model, request, stream=not flags.as_json, prompt_piece=prompt_piece)
    if flags.as_json:
        print_json(answer_json(model, completion, flags.logprobs))
    if completion.finish_reason == "cancelled":
        raise Cancelled("stopped by a signal")

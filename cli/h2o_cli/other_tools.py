"""Flags that people know from llama.cpp, and what they are here."""

from __future__ import annotations

from collections.abc import Sequence

import click

_BUNDLE = "name a bundle's folder, a GGUF file, a Hugging Face folder or OWNER/NAME without a flag"
_NEEDLESS = "it is not needed here; leave it out"
# Ours are flags, or a sentence.
_OURS = {
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "-m", "--model"), _BUNDLE),
    **dict.fromkeys(("-fa", "--flash-attn", "--jinja", "--mlock", "--no-mmap"), _NEEDLESS),
    **dict.fromkeys(("--n-predict", "--predict"), "--max-tokens"),
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers"), "--device"),
    **dict.fromkeys(("-cnv", "--conversation"), "--chat"),
    **dict.fromkeys(("-np", "--parallel"), "--slots"),
    **dict.fromkeys(("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"), "--cache"),
    **dict.fromkeys(("-sys", "--system-prompt"), "--system"),
    **dict.fromkeys(("--ubatch-size",), "--chunk-size"),
    **dict.fromkeys(("--repeat-penalty",), "--repetition-penalty"),
}


def refuse_flags_of_others(command: click.Command, context: click.Context, words: Sequence[str]) -> None:
    """Raises click.UsageError for one, with ours. click would read -ngl as -n with the value gl."""
    own = {flag: option for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    before = None  # the option whose value a word is
    for word in words:
        flag = word.partition("=")[0]
        if word == "--":
            return
        if before is None and flag in _OURS and flag not in own:
            ours = _OURS[flag]
            if not ours.startswith("-"):
                raise click.UsageError(f"No such option '{flag}': {ours}", context)
            hint = f": here it is {ours}" if ours in own else ""
            raise click.UsageError(f"No such option '{flag}'{hint or '.'}", context)
        option = None if before else own.get(word)
        before = option if isinstance(option, click.Option) and not (option.is_flag or option.count) else None

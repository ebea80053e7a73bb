"""Settings as a text: "h2o heavy=192", or "queue=8 body=16". Values with spaces are quoted as in a shell."""

from __future__ import annotations

import shlex

from h2o_runtime.errors import ConfigError


def written_settings(text: str, noun: str, field: str, form: str) -> tuple[str | None, dict[str, str]]:
    """The word that a text begins with, None if that is a setting, and the values of its settings by name.

    noun and field name the text in messages, and form says how it is written. Raises ConfigError for words that are
    no settings, and for a setting that is given twice.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{noun} {text!r} cannot be read: {error}: close it", field=field) from None
    if not words:
        raise ConfigError(f"{noun} is empty: {form}", field=field)
    first = words.pop(0) if "=" not in words[0] else None
    settings: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not name or not value:
            raise ConfigError(f"{word!r} is no setting: {form}", field=field)
        name = name.replace("-", "_")
        if name in settings:
            raise ConfigError(f"{name} is given twice: write it once", field=name)
        settings[name] = value
    return first, settings

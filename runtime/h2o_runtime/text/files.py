"""Reads the text files of a bundle; an error names the damaged file in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from h2o_runtime.errors import BundleError, InputError
from h2o_runtime.files.inputs import confined

BYTE_ORDER_MARK = "\ufeff"  # some editors begin a file with it

REMEDY = "copy it again from the checkpoint, or export the checkpoint again"


def read_text(path: Path) -> str | None:
    """The file's text, or None when there is no such file. Raises `BundleError` when it cannot be read."""
    try:
        return confined(path.parent, path.name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BundleError(
            f"{path} cannot be read ({error.strerror}): check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise BundleError(
            f"{path} is not valid UTF-8 (byte {error.start}): the file is damaged; {REMEDY}"
        ) from error


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's JSON object, or None when there is no such file. Raises `BundleError` for any other
    content.
    """
    text = read_text(path)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers too long and brackets too deep
        raise BundleError(
            f"{path} is not valid JSON ({error}): it is truncated or altered; {REMEDY}"
        ) from error
    if not isinstance(value, dict):
        raise BundleError(f"{path} must hold a JSON object, not a {type(value).__name__}; {REMEDY}")
    return value


def special_tokens(folder: Path) -> dict[str, str]:
    """Special tokens by their role ("bos_token" → "<s>"), as the checkpoint's files give them.

    Each role has the text, or an object with the text as its `content`; both styles are in use.
    tokenizer_config.json wins over the older special_tokens_map.json.
    """
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for role, value in (read_json(folder / name) or {}).items():
            if isinstance(value, dict):
                value = value.get("content")
            if role.endswith("_token") and isinstance(value, str):
                found[role] = value
    return found


def decode_utf8(data: bytes, source: str) -> str:
    """`data` as text, without a byte order mark. Raises `InputError` with the first bad byte's offset; `source`
    names the origin of the data.
    """
    try:
        return data.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is not valid UTF-8: byte {data[error.start]:#04x} at offset {error.start} "
            f"({error.reason}); convert it to UTF-8 first",
            offset=error.start,
        ) from error

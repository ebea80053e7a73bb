"""Parts of a conversation: what a server, a gateway or an SDK added to them may come back."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, model_validator

from h2o_server.apis.shared.types import Strict, json_names

_MEDIUM = re.compile(r"(image|audio|video|file|document|attachment)s?(_urls?)?")
_SLIP = 0.85  # share of characters that a misspelt name has in common with the right one
_LONGEST = 64  # characters of a name that are compared


class HistoryPart(Strict):
    """A message, or a part of one. Unknown members are left alone, except those that would change the prompt."""

    model_config = ConfigDict(extra="allow", json_schema_extra=None)

    @model_validator(mode="before")
    @classmethod
    def _with_what_it_says(cls, value: Any) -> Any:
        """Refuses unknown members that have another medium, or misspell a member that is not there."""
        if not isinstance(value, dict):
            return value
        known = json_names(cls)
        absent = [name for name in known if value.get(name) is None]
        for name in value:
            if name in known or value[name] is None:
                continue
            if value[name] and _MEDIUM.fullmatch(name):
                raise ValueError(f"{name} is not supported: this server reads text alone")
            near = get_close_matches(name[:_LONGEST], absent, n=1, cutoff=_SLIP)
            if near and not name.startswith(f"{near[0]}_"):
                raise ValueError(f"{name} is not a member here: did you mean {near[0]}?")
        return value


def _as_text(arguments: str | dict[str, Any] | None) -> str:
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    return "{}" if arguments is None or arguments.strip() in ("", "null") else arguments


# Of an earlier call: a JSON text, or the object itself. Without any, there are none.
Arguments = Annotated[str | dict[str, Any] | None, AfterValidator(_as_text)]

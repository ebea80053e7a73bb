"""A task's prompt as one turn of a conversation, as an instruct model is trained to read it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from h2o_runtime.errors import BundleError
from h2o_runtime.text.chat_template import ChatTemplate

log = logging.getLogger(__name__)

_MARK = "<the user's message>"


@dataclass(frozen=True)
class ChatFrame:
    """What a chat template writes before a user's message, and between it and the assistant's answer.

    The defaults are those of a model without a template: it goes on with the text.
    """

    before: str = ""
    between: str = " "

    @classmethod
    def of(cls, bundle: Path) -> ChatFrame:
        """By the bundle's template, with thinking turned off. Raises InputError if it refuses a single message."""
        try:
            template = ChatTemplate.load(bundle)
        except BundleError as error:
            log.info("no chat template: %s", error)
            return cls()
        try:
            text = template.render([{"role": "user", "content": _MARK}], enable_thinking=False)
        finally:
            template.close()
        before, mark, between = text.partition(_MARK)
        if not mark:
            log.warning("the chat template does not show a user's message: tasks are asked without it")
            return cls()
        return cls(before, between)

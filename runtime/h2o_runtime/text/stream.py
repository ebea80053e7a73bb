"""An answer's text while its tokens arrive: whole characters only, and nothing of a stop string.

stream, stops = TextStream(tokenizer), StopStrings(["\\nUser:"])
for token in tokens:
    show(stops.push(stream.push(token)))
    if stops.stopped:
        break
show(stops.push(stream.finish()) + stops.finish())
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from h2o_runtime.errors import ConfigError
from h2o_runtime.text.tokenizer import Tokenizer

__all__ = ["StopStrings", "TextStream"]

_REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character
_MAX_PENDING = 16  # tokens without a whole character at the end, before they are given up as no UTF-8
_CONTEXT = 4  # tokens kept then: at least as many bytes as the longest character has


class TextStream:
    """Turns token ids into text one at a time: the deltas joined are what decoding all ids at once gives.

    A token may end in the middle of a character, and what a token looks like may depend on the one before it
    (a sentencepiece decoder drops the space of the very first). So each step decodes a short window of tokens
    and gives out what the last one added, holding back an unfinished character. The window begins where a
    character begins and holds at most `_CONTEXT + 2 * _MAX_PENDING` tokens, however long the answer is.

    The one exception to the equality: where a decoder replaces a whole run of byte tokens because a part of
    it is not UTF-8, characters of that run that were good when they came stay as they were given out.
    """

    def __init__(self, tokenizer: Tokenizer, prefix: Sequence[int] = ()) -> None:
        """prefix: the prompt's ids, where the answer continues its text; without it the answer stands alone,
        and a sentencepiece tokenizer's first space is dropped. A chat's answer stands alone."""
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._settled = 0  # the window's first tokens, which are shown and only serve as context
        self._shown = 0  # characters of the window's text already given out
        for token in prefix[-_MAX_PENDING:]:
            self.push(token)

    def push(self, token: int) -> str:
        """Text that is certain now that `token` has come; often one word, sometimes nothing."""
        if not self._tokenizer.shows(token):
            return ""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        begin = self._shown
        if not text.endswith(_REPLACEMENT):
            self._restart(self._window[self._settled :], pending="")
            return text[begin:]
        if len(self._window) - self._settled < _MAX_PENDING:
            end = len(text.rstrip(_REPLACEMENT))
            self._shown = max(begin, end)
            return text[begin:end]
        # So many tokens cannot be one unfinished character. Only the last replacement may still become one.
        context = self._window[-_CONTEXT:]
        pending = _REPLACEMENT if self._tokenizer.decode(context).endswith(_REPLACEMENT) else ""
        self._restart(context, pending)
        return text[begin:].removesuffix(pending)

    def finish(self) -> str:
        """What was held back: the replacement of an unfinished character, or nothing. Then begins anew."""
        text = self._tokenizer.decode(self._window)[self._shown :]
        self._window, self._settled, self._shown = [], 0, 0
        return text

    def _restart(self, context: list[int], pending: str) -> None:
        """Make `context` the whole window, all of it shown but `pending` at its end."""
        self._window, self._settled = context, len(context)
        self._shown = len(self._tokenizer.decode(context).removesuffix(pending))


class StopStrings:
    """Passes text through until a stop string is complete; nothing of that string and after it gets out.

    Text that may be the beginning of a stop string is held back until it is clear. The stop string that is
    complete first wins, and of several that are complete with the same character the longest; so the outcome
    does not depend on how the text was cut.

    stopped: the stop string that was found, or None as long as there is none.

    Raises `ConfigError` when a stop string is empty or not text.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple([stops] if isinstance(stops, str) else stops)
        for stop in self._stops:
            if not isinstance(stop, str) or not stop:
                raise ConfigError(
                    f"stop has {stop!r}: each stop string must be text, and not empty", field="stop"
                )
        self._longest = max(map(len, self._stops), default=0)
        self._pending = ""
        self.stopped: str | None = None

    def push(self, text: str) -> str:
        """What of the text so far may be shown and was not yet; nothing once `stopped` is set."""
        if self.stopped is not None:
            return ""
        text = self._pending + text
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            begin, self.stopped = min(found, key=lambda hit: (hit[0] + len(hit[1]), hit[0]))
            self._pending = ""
            return text[:begin]
        keep = self._unclear(text)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, as no more text comes that could complete a stop string."""
        text, self._pending = self._pending, ""
        return text

    def _unclear(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0

"""An answer's text while its tokens arrive: whole characters only, and nothing of a stop string.

stream, stops = TextStream(tokenizer), StopStrings(["\\nUser:"])
for token in tokens:
    show(stops.push(stream.push(token)))
    if stops.stopped:
        break
show(stops.push(stream.finish()) + stops.finish())
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from h2o_runtime.errors import ConfigError
from h2o_runtime.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"  # a decoder's output for bytes that are not (yet) a character
_MAX_PENDING = 16  # tokens without a complete character at the end, after which they count as invalid UTF-8
_CONTEXT = 4  # tokens kept in that case: at least as many bytes as the longest character


class TextStream:
    """Turns token ids into text one at a time: the joined deltas equal the decoding of all ids at once.

    A token may end in the middle of a character, and its text may depend on the token before it (a
    sentencepiece decoder drops the first token's space). So each step decodes a short window of tokens and
    returns what the last one added, without an unfinished character. The window begins where a character
    begins and holds at most `_CONTEXT + 2 * _MAX_PENDING` tokens, however long the answer is.

    One exception to the equality: a decoder may replace a whole run of byte tokens because some of it is not
    UTF-8. Characters of that run that were already returned stay as they were.
    """

    def __init__(self, tokenizer: Tokenizer, prefix: Sequence[int] = (), shown: Collection[int] = ()) -> None:
        """prefix: the prompt's ids, if the answer continues its text. Without it the answer is separate, as
        in a chat, and a sentencepiece tokenizer's first space is dropped.

        shown: special tokens that are text here.
        """
        self._shown_special = shown
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._settled = 0  # the window's first tokens, already returned, which only serve as context
        self._shown = 0  # characters of the window's text already returned
        for token in prefix[-_MAX_PENDING:]:
            self.push(token)

    def push(self, token: int) -> str:
        """The text that is certain now that `token` has arrived; often one word, sometimes nothing."""
        if token not in self._shown_special and not self._tokenizer.shows(token):
            return ""
        self._window.append(token)
        text = self._decoded(self._window)
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
        pending = _REPLACEMENT if self._decoded(context).endswith(_REPLACEMENT) else ""
        self._restart(context, pending)
        return text[begin:].removesuffix(pending)

    def finish(self) -> str:
        """The text held back: the replacement of an unfinished character, or nothing. Resets the stream."""
        text = self._decoded(self._window)[self._shown :]
        self._window, self._settled, self._shown = [], 0, 0
        return text

    def _decoded(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, shown=self._shown_special)

    def _restart(self, context: list[int], pending: str) -> None:
        """Make `context` the whole window, of which all but `pending` at its end was returned."""
        self._window, self._settled = context, len(context)
        self._shown = len(self._decoded(context).removesuffix(pending))


class StopStrings:
    """Passes text through up to the first complete stop string; the stop string and the text after it are
    dropped.

    Text that may be the beginning of a stop string is held back until it is clear. The stop string that is
    complete first wins, and of several that end with the same character the longest. So the result does not
    depend on how the text was cut.

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
        """New text that may be returned now; nothing once `stopped` is set."""
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
        """The text held back, once no more text can complete a stop string."""
        text, self._pending = self._pending, ""
        return text

    def _unclear(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0

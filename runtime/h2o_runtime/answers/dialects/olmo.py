"""The calls of OLMo 3: calls in Python between tags, one a line."""

from __future__ import annotations

from h2o_runtime.answers.dialects import python_parts
from h2o_runtime.answers.dialects.answer import Answer
from h2o_runtime.answers.dialects.incoming import Incoming, Wait
from h2o_runtime.answers.dialects.lfm import Lfm

_BEGIN, _END = "<function_calls>", "</function_calls>"


class Olmo(Lfm):
    name = "olmo"
    title = "OLMo 3"
    begins = (_BEGIN,)
    ends = (_END,)
    before, closing = _BEGIN, f"){_END}"

    @classmethod
    def spoken(cls, template: str) -> bool:
        return _BEGIN in template

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        written, end = yield from text.all_until(_END, most=python_parts.MOST)
        if end is None:
            return False
        calls = ",".join(line for line in written.splitlines() if line.strip())
        return python_parts.call_all(f"[{calls}]", answer)

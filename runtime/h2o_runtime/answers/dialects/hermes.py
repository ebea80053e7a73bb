"""Hermes' calls, which Qwen, SmolLM and others have too: <tool_call> and a JSON object, or a list of them.

Small models, Qwen2.5-Coder above all, often leave out the marks: so JSON is read as in the dialect `json` as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from h2o_runtime.answers.dialects.bare_json import BareJson
from h2o_runtime.answers.dialects.dialect import Dialect


@dataclass(frozen=True)
class Hermes(BareJson):
    name = "hermes"
    title = "Hermes, Qwen 2.5, Qwen 3, SmolLM2, SmolLM3, Granite 4; templates of ChatML without tools"
    dropped = ()
    before, after, closing = '<tool_call>\n{"name": ', ', "arguments": ', "}\n</tool_call>"

    @classmethod
    def spoken(cls, template: str) -> bool:
        return "<tool_call>" in template or "<|im_start|>" in template

    def only_marked(self) -> Dialect:
        return replace(self, unmarked=False)

"""The calls of Nemotron Nano 2: a list of JSON objects between tags."""

from __future__ import annotations

from h2o_runtime.answers.dialects.dialect import Dialect


class Nemotron(Dialect):
    name = "nemotron"
    title = "Nemotron Nano 2, Llama Nemotron"
    begins = ("<TOOLCALL>",)
    ends = ("</TOOLCALL>",)
    shown = begins
    before, quoted, after, closing = '<TOOLCALL>[{"name": ', True, ', "arguments": ', "}]</TOOLCALL>"

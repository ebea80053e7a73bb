"""Text on both sides of the model: tokens, chat templates, and the answer as it streams out."""

from h2o_runtime.text.chat_template import ChatTemplate
from h2o_runtime.text.files import decode_utf8
from h2o_runtime.text.markup import Markup
from h2o_runtime.text.stream import StopStrings, TextStream
from h2o_runtime.text.tokenizer import Tokenizer
from h2o_runtime.text.tool_use import ToolUse

__all__ = ["ChatTemplate", "Markup", "StopStrings", "TextStream", "Tokenizer", "ToolUse", "decode_utf8"]

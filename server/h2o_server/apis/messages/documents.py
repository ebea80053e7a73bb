"""Blocks that quote a text from elsewhere, and the text that the model gets in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from h2o_server.apis.chat.schema import TextContentPart
from h2o_server.apis.shared.history import HistoryPart


class TextSource(HistoryPart):
    type: Literal["text"]
    data: str
    media_type: Any = None


class PartsSource(HistoryPart):
    type: Literal["content"]
    content: str | list[TextContentPart]

    @property
    def data(self) -> str:
        return text_of(self.content)


class Document(HistoryPart):
    type: Literal["document"]
    source: Annotated[TextSource | PartsSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None

    @property
    def text(self) -> str:
        return _quoted(self.type, self.source.data, Title=self.title, Context=self.context)


class SearchResult(HistoryPart):
    type: Literal["search_result"]
    source: str
    title: str | None = None
    content: list[TextContentPart]

    @property
    def text(self) -> str:
        return _quoted(self.type, text_of(self.content), Title=self.title, Source=self.source)


def _quoted(kind: str, text: str, **told: str | None) -> str:
    """A text from elsewhere, between marks, with what is told of it."""
    lines = [f"{name}: {value}" for name, value in told.items() if value]
    head = "\n".join([*lines, "", ""]) if lines else ""
    return f"<{kind}>\n{head}{text}\n</{kind}>\n"


def text_of(content: str | Sequence[TextContentPart | Document | SearchResult]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def or_document(validator: BeforeValidator) -> BeforeValidator:
    """The same for everything but documents that are text."""
    check: Any = validator.func
    return BeforeValidator(lambda value: value if _is_text(value) else check(value))


def _is_text(block: Any) -> bool:
    """Whether a block is a document of text, or of parts that are text."""
    source = block.get("source") if isinstance(block, dict) and block.get("type") == "document" else None
    kind, parts = (source.get("type"), source.get("content")) if isinstance(source, dict) else (None, None)
    if kind == "content" and isinstance(parts, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
    return kind in ("text", "content")

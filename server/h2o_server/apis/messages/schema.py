"""POST /v1/messages, in Anthropic's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from h2o_server.apis.chat.schema import (
    MOST_TOOLS,
    Cacheable,
    Effort,
    FunctionName,
    Parameters,
    Skipped,
    TextContentPart,
    own_or_foreign,
)
from h2o_server.apis.messages.documents import Document, SearchResult, or_document
from h2o_server.apis.shared.history import Arguments, HistoryPart
from h2o_server.apis.shared.left_alone import LEFT_ALONE, Foreign, Ignored
from h2o_server.apis.shared.prefill import Prefill
from h2o_server.apis.shared.types import TEXT_ALONE, WHOLE, Count, Share, Stop, Strict, in_words

ResultBlock = Annotated[
    TextContentPart | Document | SearchResult, Field(discriminator="type"), or_document(in_words("text"))
]


class ToolUse(HistoryPart):
    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1, max_length=200)
    input: Arguments = "{}"


class ToolResult(HistoryPart):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None


class Thinking(HistoryPart):
    """Of an earlier answer; its signature means nothing here."""

    type: Literal["thinking"]
    thinking: str
    signature: Any = None


class RedactedThinking(Foreign):
    """Thoughts that only Anthropic's service can read."""

    type: Literal["redacted_thinking"]


class SystemTurn(HistoryPart):
    role: Literal["system", "developer"]
    content: str | list[Annotated[TextContentPart, TEXT_ALONE]]


UserBlock = Annotated[
    TextContentPart | Document | SearchResult | ToolResult,
    Field(discriminator="type"),
    or_document(TEXT_ALONE),
]


class UserTurn(HistoryPart):
    role: Literal["user"]
    content: str | list[UserBlock]


AssistantBlock = Annotated[
    TextContentPart | ToolUse | Thinking | RedactedThinking, Field(discriminator="type")
]


class AssistantTurn(HistoryPart):
    role: Literal["assistant"]
    content: str | list[AssistantBlock]


Turn = Annotated[SystemTurn | UserTurn | AssistantTurn, Field(discriminator="role")]


class ClientTool(Cacheable):
    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: Parameters
    strict: bool | None = None
    eager_input_streaming: Ignored = None
    defer_loading: Ignored = None
    allowed_callers: Ignored = None
    input_examples: Ignored = None


GivenTool = Annotated[Annotated[ClientTool, Tag("own")] | Skipped, own_or_foreign("custom")]


class AnyChoice(Strict):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class OneTool(Strict):
    type: Literal["tool"]
    name: str = Field(min_length=1)
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Strict):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    format: OutputFormat | None = None
    effort: Effort | None = Field(None, description="For chat templates that can be told how much to think.")
    task_budget: Ignored = None


class ThinkingSwitch(Strict):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Ignored = None
    display: Ignored = None


class TokenCountRequest(Strict):
    """The content of a prompt."""

    model: str | None = Field(None, max_length=1000, description="Any name: there is one model.")
    messages: list[Turn] = Field(min_length=1)
    system: str | list[TextContentPart] | None = None
    given_tools: Annotated[list[GivenTool], Field(max_length=MOST_TOOLS)] | None = Field(None, alias="tools")
    tool_choice: Annotated[AnyChoice | OneTool, Field(discriminator="type")] | None = None
    output_config: OutputConfig | None = None
    thinking: ThinkingSwitch | None = None
    cache_control: Annotated[dict[str, Any] | None, LEFT_ALONE] = None
    context_management: Ignored = None
    mcp_servers: Ignored = None
    billing_policy: Ignored = None
    speed: Ignored = None

    @property
    def tools(self) -> list[ClientTool] | None:
        """Those that the model may call."""
        if self.given_tools is None:
            return None
        return [tool for tool in self.given_tools if isinstance(tool, ClientTool)]


class MessageRequest(TokenCountRequest):
    max_tokens: Count
    stop_sequences: Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Share | None = None
    top_p: Share | None = None
    top_k: Annotated[Count, WHOLE] | None = None
    prefill: Prefill | None = None

    metadata: Annotated[dict[str, Any] | None, LEFT_ALONE] = None
    service_tier: Annotated[str | None, LEFT_ALONE] = None
    inference_geo: Ignored = None
    diagnostics: Ignored = None
    fallbacks: Ignored = None
    fallback_credit_token: Ignored = None

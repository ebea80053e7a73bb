"""POST /v1/messages, in Anthropic's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from h2o_runtime.server.apis.chat.schema import Cacheable, FunctionName, Parameters, TextContentPart
from h2o_runtime.server.apis.shared.base import TEXT_ALONE, WHOLE, Count, Share, Stop, Strict
from h2o_runtime.server.apis.shared.prefill import Prefill


class ToolUse(Cacheable):
    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1, max_length=200)
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResult(Cacheable):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[Annotated[TextContentPart, TEXT_ALONE]] | None = None
    is_error: bool | None = None


class Thinking(Strict):
    """Of an earlier answer; its signature means nothing here."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class UserTurn(Strict):
    role: Literal["user"]
    content: str | list[Annotated[TextContentPart | ToolResult, Field(discriminator="type"), TEXT_ALONE]]


class AssistantTurn(Strict):
    role: Literal["assistant"]
    content: str | list[Annotated[TextContentPart | ToolUse | Thinking, Field(discriminator="type")]]


Turn = Annotated[UserTurn | AssistantTurn, Field(discriminator="role")]


class ClientTool(Cacheable):
    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: Parameters
    strict: bool | None = None


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


class ThinkingDisabled(Strict):
    type: Literal["disabled"]


class TokenCountRequest(Strict):
    """The content of a prompt."""

    model: str | None = Field(None, max_length=1000, description="Any name: there is one model.")
    messages: list[Turn] = Field(min_length=1)
    system: str | list[TextContentPart] | None = None
    tools: Annotated[list[ClientTool], Field(max_length=128)] | None = None
    tool_choice: Annotated[AnyChoice | OneTool, Field(discriminator="type")] | None = None
    output_config: OutputConfig | None = None
    thinking: ThinkingDisabled | None = None
    cache_control: dict[str, Any] | None = None


class MessageRequest(TokenCountRequest):
    max_tokens: Count
    stop_sequences: Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Share | None = None
    top_p: Share | None = None
    top_k: Annotated[Count, WHOLE] | None = None
    prefill: Prefill | None = None

    # No effect on the answer of a server that stores nothing.
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

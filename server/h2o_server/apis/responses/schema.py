"""POST /v1/responses, in its simple form: nothing is stored between requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag

from h2o_server.apis.chat.schema import (
    MOST_TOOLS,
    Effort,
    FunctionCall,
    FunctionName,
    Parameters,
    Skipped,
    own_or_foreign,
)
from h2o_server.apis.shared.base import TEXT_ALONE, Count, No, Real, Share, Strict, in_words
from h2o_server.apis.shared.generation import TopK
from h2o_server.apis.shared.history import HistoryPart
from h2o_server.apis.shared.left_alone import LEFT_ALONE, Ignored
from h2o_server.apis.shared.prefill import Prefill
from h2o_server.apis.shared.routers import RouterKeys


class InputText(HistoryPart):
    type: Literal["input_text"]
    text: str


class OutputText(HistoryPart):
    type: Literal["output_text"]
    text: str
    annotations: Any = None
    logprobs: Any = None


class InputItem(HistoryPart):
    id: Any = None
    status: Any = None


class InputMessage(InputItem):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Annotated[InputText | OutputText, Field(discriminator="type"), TEXT_ALONE]]


class InputCall(InputItem, FunctionCall):
    type: Literal["function_call"]
    call_id: str


class ReasoningText(HistoryPart):
    type: Literal["reasoning_text"]
    text: str


class InputReasoning(InputItem):
    """Thoughts of an earlier answer."""

    type: Literal["reasoning"]
    summary: Any = None
    content: list[ReasoningText] | None = None


class InputResult(InputItem):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Annotated[InputText, in_words("input_text")]]


def _named(item: Any) -> Any:
    """Messages may come without their type."""
    return {"type": "message", **item} if isinstance(item, dict) and "role" in item else item


Item = Annotated[
    Annotated[InputMessage | InputReasoning | InputCall | InputResult, Field(discriminator="type")],
    BeforeValidator(_named),
]


class FlatFunction(Strict):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None
    allowed_callers: Ignored = None
    defer_loading: Ignored = None
    output_schema: Ignored = None


GivenTool = Annotated[Annotated[FlatFunction, Tag("own")] | Skipped, own_or_foreign("function")]


TOOL = {"type", "name", "description", "parameters", "strict"}  # what is read of a function


class FlatChoice(Strict):
    type: Literal["function"]
    name: str = Field(min_length=1)


class TextType(Strict):
    type: Literal["text"]


class JsonObjectType(Strict):
    type: Literal["json_object"]


class JsonSchemaType(Strict):
    type: Literal["json_schema"]
    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextConfig(Strict):
    format: Annotated[TextType | JsonObjectType | JsonSchemaType, Field(discriminator="type")] | None = None
    verbosity: Ignored = None


class ReasoningConfig(Strict):
    effort: Effort | None = Field(None, description="For chat templates that can be told how much to think.")
    summary: Ignored = None
    generate_summary: Ignored = None
    context: Ignored = None


class ObfuscationOptions(Strict):
    include_obfuscation: No | None = None


def _with_words(items: list[Any]) -> list[Any]:
    if all(isinstance(item, InputReasoning) for item in items):
        raise ValueError("Input should have a message beside the thoughts")
    return items


# More of what another service's tools and thoughts gave. Log-probabilities, which OpenAI has here too, are not.
OthersOutput = Literal[
    "reasoning.encrypted_content",
    "web_search_call.results",
    "web_search_call.action.sources",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
]


class ResponseRequest(RouterKeys):
    model: str | None = Field(None, max_length=1000, description="Any name: there is one model.")
    input: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Item], Field(min_length=1), AfterValidator(_with_words)]
    )
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    presence_penalty: Annotated[Real, Field(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[Real, Field(ge=-100, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    stream: bool | None = None
    stream_options: ObfuscationOptions | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    given_tools: Annotated[list[GivenTool], Field(max_length=MOST_TOOLS)] | None = Field(None, alias="tools")
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    prefill: Prefill | None = None

    store: Annotated[bool | None, LEFT_ALONE] = Field(
        None,
        description="Nothing is stored, whatever the value: OpenAI's default is true, and the answer "
        "says false.",
    )
    background: No | None = None
    truncation: Literal["disabled"] | None = None
    include: Annotated[list[OthersOutput] | None, LEFT_ALONE] = None
    user: Annotated[str | None, LEFT_ALONE] = None
    metadata: Annotated[dict[str, Any] | None, LEFT_ALONE] = None
    service_tier: Annotated[str | None, LEFT_ALONE] = None
    safety_identifier: Annotated[str | None, LEFT_ALONE] = None
    prompt_cache_key: Annotated[str | None, LEFT_ALONE] = None
    prompt_cache_retention: Ignored = None
    prompt_cache_options: Ignored = None
    moderation: Ignored = None
    access_programs: Ignored = None
    background_options: Ignored = None
    client_metadata: Ignored = None
    context_management: Ignored = None
    max_tool_calls: Ignored = None  # of built-in tools

    @property
    def tools(self) -> list[FlatFunction] | None:
        """Those that the model may call."""
        if self.given_tools is None:
            return None
        return [tool for tool in self.given_tools if isinstance(tool, FlatFunction)]

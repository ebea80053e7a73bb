"""POST /v1/responses, in its simple form: nothing is stored between requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Tag

from h2o_server.apis.chat.schema import (
    MOST_TOOLS,
    Effort,
    Function,
    FunctionCall,
    JsonObjectFormat,
    JsonSchema,
    Skipped,
    TextFormat,
    own_or_foreign,
)
from h2o_server.apis.shared.generation import AnswerRequest
from h2o_server.apis.shared.history import HistoryPart
from h2o_server.apis.shared.left_alone import LEFT_ALONE, Ignored
from h2o_server.apis.shared.types import TEXT_ALONE, Count, No, Strict, in_words


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


class FlatFunction(Function):
    type: Literal["function"]
    allowed_callers: Ignored = None
    defer_loading: Ignored = None
    output_schema: Ignored = None


GivenTool = Annotated[Annotated[FlatFunction, Tag("own")] | Skipped, own_or_foreign("function")]


TOOL = {"type", "name", "description", "parameters", "strict"}  # what is read of a function


class FlatChoice(Strict):
    type: Literal["function"]
    name: str = Field(min_length=1)


class JsonSchemaType(JsonSchema):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class TextConfig(Strict):
    format: Annotated[TextFormat | JsonObjectFormat | JsonSchemaType, Field(discriminator="type")] | None = (
        None
    )
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


class ResponseRequest(AnswerRequest):
    input: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Item], Field(min_length=1), AfterValidator(_with_words)]
    )
    instructions: str | None = None
    max_output_tokens: Count | None = None
    stream_options: ObfuscationOptions | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    given_tools: Annotated[list[GivenTool], Field(max_length=MOST_TOOLS)] | None = Field(None, alias="tools")
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None

    store: Annotated[bool | None, LEFT_ALONE] = Field(
        None,
        description="Nothing is stored, whatever the value: OpenAI's default is true, and the answer "
        "says false.",
    )
    background: No | None = None
    truncation: Literal["disabled"] | None = None
    include: Annotated[list[OthersOutput] | None, LEFT_ALONE] = None
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

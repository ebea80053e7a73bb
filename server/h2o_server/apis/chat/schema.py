"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from h2o_server.apis.shared.generation import Generation
from h2o_server.apis.shared.history import Arguments, HistoryPart
from h2o_server.apis.shared.left_alone import LEFT_ALONE, Foreign, Ignored
from h2o_server.apis.shared.types import TEXT_ALONE, WHOLE, Limit, Strict, in_words


class Cacheable(Strict):
    """Cache marks of clients; here everything that can be kept is kept, marked or not."""

    cache_control: Annotated[dict[str, Any] | None, LEFT_ALONE] = None


class TextContentPart(HistoryPart):
    type: Literal["text"]
    text: str


Content = str | list[Annotated[TextContentPart, TEXT_ALONE]] | None  # null: no text
ResultContent = str | list[Annotated[TextContentPart, in_words("text")]] | None


class FunctionCall(HistoryPart):
    name: str = Field(min_length=1, max_length=200)
    arguments: Arguments = "{}"


class ToolCall(HistoryPart):
    id: str
    index: Any = Field(None, description="For a call that was streamed.")
    type: Literal["function"] = "function"
    function: FunctionCall


class SystemMessage(HistoryPart):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(HistoryPart):
    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(HistoryPart):
    role: Literal["assistant"]
    content: Content = None
    name: str | None = None
    refusal: None = None
    function_call: None = None
    annotations: list[Any] | None = None
    reasoning_content: str | None = Field(
        None, description="The model's reasoning, for templates that show it."
    )
    reasoning: str | None = Field(None, description="Another name of reasoning_content.")
    reasoning_details: list[dict[str, Any]] | None = Field(
        None, description="As OpenRouter has it: the reasoning is in the members text and summary."
    )
    thinking_blocks: list[dict[str, Any]] | None = Field(
        None, description="As LiteLLM has it: the reasoning is in the member thinking."
    )
    tool_calls: list[ToolCall] | None = None

    @property
    def thoughts(self) -> str | None:
        """The reasoning, by whichever name the client has it."""
        for given in (self.reasoning_content, self.reasoning):
            if given is not None:
                return given
        told = [detail.get("text") or detail.get("summary") for detail in self.reasoning_details or ()]
        told = told or [block.get("thinking") for block in self.thinking_blocks or ()]
        return "".join(text for text in told if isinstance(text, str)) or None


class ToolMessage(HistoryPart):
    role: Literal["tool"]
    content: ResultContent
    tool_call_id: str
    name: str | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


def _of_objects(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ValueError('Input should be the schema of an object: give it the type "object"')
    return dict(_checked(schema, "Input"))


_FORMS = {"properties": dict, "$defs": dict, "required": list, "enum": list}


def _checked(schema: Any, place: str) -> Any:
    """A schema without members that are null, which some clients send. Raises ValueError for a malformed one."""
    if not isinstance(schema, dict):
        return schema
    schema = {key: value for key, value in schema.items() if value is not None or key not in _FORMS}
    for key, form in _FORMS.items():
        if not isinstance(schema.get(key, form()), form):
            raise ValueError(f"{place}.{key} should be {'an object' if form is dict else 'a list'}")
    for key in ("properties", "$defs"):
        if key in schema:
            members = schema[key].items()
            schema[key] = {name: _checked(member, f"{place}.{key}.{name}") for name, member in members}
    if "items" in schema:
        schema["items"] = _checked(schema["items"], f"{place}.items")
    return schema


_OBJECT_TYPE = {"anyOf": [{"const": "object"}, {"type": "array", "contains": {"const": "object"}}]}
Parameters = Annotated[
    dict[str, Any],
    AfterValidator(_of_objects),
    Field(description="A JSON schema of objects.", json_schema_extra={"properties": {"type": _OBJECT_TYPE}}),
]


class Function(Strict):
    name: FunctionName
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(Cacheable):
    type: Literal["function"]
    function: Function


class ForeignTool(Foreign):
    """A tool that another service runs, or one in a form that only its own models know."""


def own_or_foreign(*types: str) -> Discriminator:
    """Tells our tools, whose types are `types`, from foreign ones. Those without a type are ours."""

    def origin(tool: Any) -> str:
        kind = tool.get("type") if isinstance(tool, dict) else None
        return "own" if kind is None or kind in types else "foreign"

    return Discriminator(origin)


Skipped = Annotated[ForeignTool, Tag("foreign")]
GivenTool = Annotated[Annotated[Tool, Tag("own")] | Skipped, own_or_foreign("function")]
MOST_TOOLS = 1024  # agents with several servers of tools send hundreds
GivenTools = Annotated[list[GivenTool], Field(max_length=MOST_TOOLS)]


class NamedFunction(Strict):
    name: str = Field(min_length=1)


class ToolChoice(Strict):
    type: Literal["function"]
    function: NamedFunction


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    type: Literal["json_object"]


class JsonSchema(Strict):
    name: str = Field(min_length=1, max_length=200)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(Generation):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    response_format: ResponseFormat | None = None
    given_tools: GivenTools | None = Field(None, alias="tools")
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Further variables for the chat template, such as enable_thinking."
    )
    reasoning_effort: Effort | None = Field(
        None, description="For chat templates that can be told how much to think."
    )
    add_generation_prompt: bool | None = Field(None, description="false needs continue_final_message.")
    continue_final_message: bool | None = Field(
        None, description="The answer continues the last message, which is the assistant's."
    )
    modalities: list[Literal["text"]] | None = None
    moderation: Ignored = None
    verbosity: Ignored = None
    prediction: Ignored = None
    web_search_options: Ignored = None

    @property
    def tools(self) -> list[Tool] | None:
        """Those that the model may call."""
        if self.given_tools is None:
            return None
        return [tool for tool in self.given_tools if isinstance(tool, Tool)]

"""Parameters of other servers that routers add to requests: each accepts only the value that is true here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from h2o_server.apis.shared.types import WHOLE, No, Strict, exactly

Yes = Annotated[Literal[True], BeforeValidator(exactly(bool))]
Zero = Annotated[int, Field(ge=0, le=0), WHOLE]
NoTokens = Annotated[list[int], Field(max_length=0)]


class RouterKeys(Strict):
    """SGLang's and vLLM's. Other values are refused, because this server does not support them."""

    no_stop_trim: No | None = None
    include_stop_str_in_output: No | None = None
    skip_special_tokens: Yes | None = None
    spaces_between_special_tokens: Yes | None = None
    separate_reasoning: Yes | None = None
    stream_reasoning: Yes | None = None
    include_reasoning: Yes | None = None
    return_hidden_states: No | None = None
    return_token_ids: No | None = None
    return_tokens_as_token_ids: No | None = None
    use_beam_search: No | None = None
    min_tokens: Zero | None = None
    priority: Zero | None = None
    stop_token_ids: NoTokens | None = None

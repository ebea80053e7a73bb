"""Errors with the request's own field names, for requests that are translated to chats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pydantic import BaseModel

from h2o_runtime.errors import ConfigError, ContextOverflowError
from h2o_server.answers.constraint import Choices
from h2o_server.apis.shared.left_alone import left_alone


@dataclass(frozen=True)
class FieldNames:
    """own: the request's name of a chat field, if it differs."""

    own: Mapping[str, str]

    def choices(self, body: BaseModel, make: Callable[[], Choices]) -> Choices:
        """The result of `make`, which translates `body`. Raises its errors with the request's names."""
        try:
            choices = make()
        except (ConfigError, ContextOverflowError) as error:
            raise self.renamed(error) from error
        constraint = choices.constraint and replace(
            choices.constraint,
            field=self._name(choices.constraint.field),
            parameters=self._name(choices.constraint.parameters),
        )
        names = left_alone(body).union(map(self._name, choices.left_alone))
        return replace(choices, constraint=constraint, left_alone=names)

    def renamed(self, error: ConfigError | ContextOverflowError) -> ConfigError | ContextOverflowError:
        name = self._name(error.field)
        if isinstance(error, ContextOverflowError):
            return ContextOverflowError(
                error.n_prompt_tokens, error.n_ctx, at_least=error.at_least, field=name
            )
        told = str(error)
        return ConfigError(
            name + told[len(error.field) :] if told.startswith(error.field) else told, field=name
        )

    def _name(self, field: str) -> str:
        return self.own.get(field, field)

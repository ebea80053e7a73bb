"""Fixtures of several modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from h2o_runtime.config.load_options import LoadOptions
from h2o_runtime.loaded_model import LoadedModel
from h2o_runtime.policies.prefill.h2o.scores import query

Key = tuple[str, str]


@pytest.fixture(scope="module")
def small_blocks() -> Iterator[None]:
    """So that prompts as short as these have several blocks of keys to choose from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "BLOCK", 8)
        yield


@pytest.fixture(scope="module")
def models_stay_loaded() -> Iterator[None]:
    """A generator that is loaded takes the model of one that is closed, if its bundle and options are the same.

    Generators that are open at the same time have models of their own, so that one may check the other.
    """
    idle: defaultdict[Key, list[LoadedModel]] = defaultdict(list)
    keys: dict[int, Key] = {}
    load, close = LoadedModel.load, LoadedModel.close

    def load_or_take(path: str | Path, options: LoadOptions) -> LoadedModel:
        key = str(path), repr(options)
        loaded = idle[key].pop() if idle[key] else load(path, options)
        keys[id(loaded)] = key
        return loaded

    def keep(loaded: LoadedModel) -> None:
        idle[keys[id(loaded)]].append(loaded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoadedModel, "load", load_or_take)
        patch.setattr(LoadedModel, "close", keep)
        yield
    for loaded in (one for models in idle.values() for one in models):
        close(loaded)

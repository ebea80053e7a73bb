"""While libraries are imported no garbage is looked for, and afterwards as before."""

from __future__ import annotations

import gc

import pytest

from h2o_runtime.process import uncollected


def test_objects_that_are_there_at_the_end_are_not_looked_at() -> None:
    before = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
        made: list[list[int]] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)


def test_an_error_ends_it_too() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


def test_a_program_without_collection_stays_so() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

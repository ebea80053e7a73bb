"""`make check` runs the tests of what changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tools import changed_tests
from tools.changed_tests import belonging, module_of


@pytest.fixture(scope="module", autouse=True)
def _modules_parsed_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed_tests, "imported", cache(changed_tests.imported))
        yield


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("runtime/h2o_runtime/caches/evicting.py", "tests/runtime/test_cache_evicting.py"),
        ("tests/prefill.py", "tests/runtime/test_reuse.py"),
        ("tests/test_docs.py", "tests/test_docs.py"),
        ("plugins/kernels/cpu/cached.cpp", "tests/plugins/test_native.py"),
    ],
)
def test_a_change_has_its_tests(changed: str, expected: str) -> None:
    found = list(belonging([Path(changed)]))
    assert expected in found
    assert len(found) < 60


def test_what_no_test_imports_has_none() -> None:
    assert list(belonging([Path("docs/README.md"), Path("LICENSE")])) == []


def test_modules_are_named_as_imports_name_them() -> None:
    assert module_of(Path("runtime/h2o_runtime/caches/__init__.py")) == "h2o_runtime.caches"
    assert module_of(Path("tools/supported.py")) == "tools.supported"

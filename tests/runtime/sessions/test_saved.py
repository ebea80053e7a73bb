"""A session in a file: it is the one that was saved, or one sentence says why it cannot be."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import bundles
from tests.prefill import altered

from h2o_runtime import Generator
from h2o_runtime.errors import InputError, OutputError
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import PREFILL, ColumnSum, PrefillPolicy
from h2o_runtime.sessions.saved import SavedSession, save_session

SMALL = ColumnSum(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)
QUERY = altered(SMALL, score="query", tile=16, queries=8, candidates=16)
POLICIES = {"colsum": SMALL, "query": QUERY, "full": altered(SMALL, policy="full")}
SHAPE, CONTEXT = "llama-g2-d64-llama3", 160
PROMPT = bundles.random_ids(100, 1).tolist()


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, SHAPE)[1]


@pytest.fixture
def generator(bundle: Path) -> Iterator[Generator]:
    with Generator.load(bundle, context=CONTEXT, threads=1) as generator:
        yield generator


@pytest.fixture
def saved(generator: Generator, tmp_path: Path) -> Path:
    """100 tokens of a prompt and one of an answer, under `SMALL`."""
    generator.prefill(PROMPT, SMALL)
    generator.decode(7)
    save_session(generator.session, tmp_path / "session")
    return tmp_path / "session"


@pytest.mark.parametrize("name", POLICIES)
def test_what_comes_next_is_as_if_nothing_had_been(
    name: str, generator: Generator, bundle: Path, tmp_path: Path
) -> None:
    policy, question = POLICIES[name], [*PROMPT, 7, *bundles.random_ids(40, 2).tolist()]
    generator.prefill(PROMPT, policy)
    generator.decode(7)
    save_session(generator.session, tmp_path / "session")
    sets = generator.report().last
    with Generator.load(bundle, context=CONTEXT - 10, threads=1) as other:  # a smaller context, where it fits
        SavedSession.open(tmp_path / "session").load_into(other.session, policy)
        for ours, theirs in zip(other.report().last, sets, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(other.prefill([*PROMPT, 7], policy), generator.session.logits)
        assert other.reused == 101
        np.testing.assert_array_equal(other.prefill(question, policy), generator.prefill(question, policy))
        assert other.reused == generator.reused > 0
        np.testing.assert_array_equal(other.decode(9), generator.decode(9))


def test_it_is_an_npz(saved: Path) -> None:
    with np.load(saved) as file:
        assert file["tokens"].tolist() == [*PROMPT, 7]
        assert file["k000"].shape == (101, 2, 64)
        assert json.loads(file["about"].tobytes())["length"] == 101


def test_the_file_of_before_gives_way(saved: Path, generator: Generator) -> None:
    before = saved.read_bytes()
    generator.decode(8)
    save_session(generator.session, saved)
    assert saved.read_bytes() != before
    assert [path.name for path in saved.parent.iterdir()] == ["session"]


def refused(saved: Path, generator: Generator, policy: PrefillPolicy[Any] = SMALL) -> str:
    generator.prefill([3, 4, 5], SMALL)
    with pytest.raises(InputError) as caught:
        SavedSession.open(saved).load_into(generator.session, policy)
    sentence = str(caught.value)
    assert sentence.startswith(f"{saved}: ")
    assert "\n" not in sentence
    return sentence


def test_other_settings(saved: Path, generator: Generator) -> None:
    assert "saved under h2o" in refused(saved, generator, altered(SMALL, heavy=9))
    assert "asks for full" in refused(saved, generator, altered(SMALL, policy="full"))
    SavedSession.open(saved).load_into(
        generator.session, altered(SMALL, batch_size=32)
    )  # which changes no number


def test_another_bundle(saved: Path, shared_folder: Path) -> None:
    other = bundles.named(shared_folder, "llama-g1-d32")[1]
    with Generator.load(other, context=CONTEXT) as generator:
        assert "another bundle" in refused(saved, generator)


def test_a_small_context(saved: Path, bundle: Path) -> None:
    with Generator.load(bundle, context=100) as generator:
        assert "raise `context` to 101 or more" in refused(saved, generator)
        assert generator.length == 3  # nothing was begun


TURN = {"has_last": 1, "turn_rows": 0, "turn_had_last": 0}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "text": lambda data: b"Once upon a time",
    "truncated": lambda data: data[: len(data) // 2],
    "its end is missing": lambda data: data[:-1],
    "a picture": lambda data: b"\x89PNG\r\n" + data[6:50],
}


@pytest.mark.parametrize("name", DAMAGES)
def test_no_session(saved: Path, generator: Generator, name: str) -> None:
    saved.write_bytes(DAMAGES[name](saved.read_bytes()))
    assert "damaged, or no saved session" in refused(saved, generator)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.95])
def test_a_flipped_bit(saved: Path, generator: Generator, share: float) -> None:
    data = bytearray(saved.read_bytes())
    data[int(share * len(data))] ^= 4
    saved.write_bytes(data)
    assert "damaged" in refused(saved, generator)
    assert generator.length == 0
    assert generator.prefill(PROMPT, SMALL).shape  # and goes on


def test_every_bit_of_an_array_counts(saved: Path, generator: Generator) -> None:
    """A file with good checksums, and arrays that are not what they should be."""
    with zipfile.ZipFile(saved) as file:
        good = {name: file.read(name) for name in file.namelist()}
    wrong: dict[str, dict[str, bytes | None]] = {
        "a layer is missing": {"v001.npy": None},
        "another shape": {"k000.npy": npy(np.zeros((5, 2, 64), np.float32))},
        "another type": {"k000.npy": npy(np.zeros((101, 2, 64), np.float64))},
        "unknown tokens": {"tokens.npy": npy(np.full(101, 10**6))},
        "a huge shape": {"k000.npy": npy(np.zeros(0, np.float32)).replace(b"(0,), }    ", b"(9999999,)}")},
        "objects": {"k000.npy": npy(np.zeros(3, np.float32)).replace(b"'<f4'", b"'|O' ")},
        "about is huge": {"about.npy": npy(np.zeros(2 << 20, np.uint8))},
        "about is no JSON": {"about.npy": npy(np.zeros(9, np.uint8))},
        "a negative length": {"about.npy": about(good, length=-1)},
        "an origin of other types": {
            "about.npy": about(good, origin=origin(good, prompt="long", only="abc"))
        },
        "half an origin": {"about.npy": about(good, origin={"prompt": 101})},
        "a turn beyond the end": {
            "about.npy": about(good, state={"has_last": 1, "turn_rows": 5000, "turn_had_last": 1})
        },
        "no state": {"about.npy": about(good, state={})},
        "a transcript without turns": {
            "transcript.npy": npy(np.frombuffer(b'{"text":"a","ids":[1],"turns":[]}', np.uint8))
        },
        "a transcript is huge": {"transcript.npy": npy(np.zeros(1 << 20, np.uint8))},
    }
    for name, changes in wrong.items():
        with zipfile.ZipFile(saved, "w") as file:
            for member, data in (good | changes).items():
                if data is not None:
                    file.writestr(member, data)
        assert "damaged" in refused(saved, generator), name


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def about(good: dict[str, bytes], **changes: object) -> bytes:
    given = json.loads(np.load(io.BytesIO(good["about.npy"])).tobytes())
    return npy(np.frombuffer(json.dumps(given | changes).encode(), np.uint8))


def origin(good: dict[str, bytes], **changes: object) -> dict[str, object]:
    given: dict[str, object] = json.loads(np.load(io.BytesIO(good["about.npy"])).tobytes())["origin"]
    return given | changes


def test_other_versions(saved: Path, generator: Generator) -> None:
    with zipfile.ZipFile(saved) as file:
        good = {name: file.read(name) for name in file.namelist()}
    for changes, sentence in (
        ({"format": 1, "decode": "full", "prefill": {"policy": "h2o", "score_tile": 8}}, "format 1;"),
        ({"format": 2}, "format 2;"),
        ({"format": 3}, "format 3;"),
        ({"format": 4}, "format 4;"),
        ({"format": 5}, "format 5;"),
        ({"format": 7, "policy": "h2o"}, "format 7;"),
        ({"prefill": {"policy": "new"}}, "this version does not have"),
    ):
        with zipfile.ZipFile(saved, "w") as file:
            file.writestr("about.npy", about(good, **changes))
        assert sentence in refused(saved, generator)


def test_places_that_cannot_be(generator: Generator, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to save"):
        save_session(generator.session, tmp_path / "session")
    generator.prefill(PROMPT, SMALL)
    with pytest.raises(OutputError, match="cannot be written"):
        save_session(generator.session, tmp_path / "nowhere" / "session")
    with pytest.raises(InputError, match="no such file"):
        SavedSession.open(tmp_path / "session")
    with pytest.raises(InputError, match="is a folder"):
        SavedSession.open(tmp_path)


def test_every_policy_can_be_saved(generator: Generator, tmp_path: Path) -> None:
    """One that remembers something and does not say what is refused, not saved without it."""
    for policy in PREFILL.names:
        generator.reset()
        generator.prefill(PROMPT, altered(SMALL, policy=policy))
        save_session(generator.session, tmp_path / "session")


def test_a_decode_policy_learns_what_was_loaded(bundle: Path, tmp_path: Path) -> None:
    quest = Quest(budget=16, page=4, dense_layers=0)
    with Generator.load(bundle, context=CONTEXT, threads=1, decoding=quest) as generator:
        generator.prefill(PROMPT, SMALL)
        save_session(generator.session, tmp_path / "session")
        expected = generator.decode(7)
        with Generator.load(bundle, context=CONTEXT, threads=1, decoding=quest) as other:
            SavedSession.open(tmp_path / "session").load_into(other.session, SMALL)
            np.testing.assert_array_equal(other.decode(7), expected)
        with Generator.load(bundle, context=CONTEXT, threads=1) as exact:
            assert "decoded under" in refused(tmp_path / "session", exact)

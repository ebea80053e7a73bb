"""Which sizes each engine is tuned for, and what an option that cannot be met says. No TensorRT is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import bundles

from h2o_export.engines.fit import fitting_sm
from h2o_export.engines.selection import BuildOptions, EngineSelection, select_engines
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.engines import TARGETS, Machine, Profile
from h2o_runtime.errors import BackendError, ConfigError, H2OError
from h2o_runtime.policies.prefill import ColumnSum, Subquadratic

pytestmark = pytest.mark.slow

LIBRARY = Path("libh2o_trt_plugins.so")
GPU = Machine(TARGETS["tensorrt"], "10.3.0", 87, LIBRARY)


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Bundle:
    """Two layers, 4 query and 2 key/value heads of 64; chunks of 1,024, batches of 4,096, memory 256 + 256."""
    prefill = ColumnSum(local=256, heavy=256)
    return Bundle.open(bundles.named(shared_folder, "llama-g2-d64-llama3", "-colsum", prefill=prefill)[1])


def profiles(selection: EngineSelection, name: str) -> tuple[Profile, ...]:
    (engine,) = (engine for engine in selection.engines if engine.name == name)
    return engine.profiles


def sizes(profile: Profile, name: str) -> tuple[tuple[int, ...], ...]:
    shape = profile.shapes[name]
    return shape.min, shape.opt, shape.max


def test_dense_graphs_have_a_profile_of_one_token_and_one_of_a_batch(bundle: Bundle) -> None:
    selection = select_engines(bundle, BuildOptions("tensorrt-rtx", batch_size=2048))
    assert [engine.name for engine in selection.engines] == ["dense_00", "dense_01", "dense_02"]
    decode, prefill = profiles(selection, "dense_01")
    assert (decode.name, prefill.name) == ("decode", "prefill")
    assert sizes(decode, "attention") == ((1, 4, 64), (1, 4, 64), (16, 4, 64))
    assert sizes(prefill, "attention") == ((1, 4, 64), (2048, 4, 64), (2048, 4, 64))
    assert sizes(prefill, "cos") == ((1, 32), (2048, 32), (2048, 32))
    assert sizes(profiles(selection, "dense_00")[1], "tokens") == ((1,), (2048,), (2048,))


def test_attention_under_a_policy_that_gpus_refuse_gets_no_engine(bundle: Bundle) -> None:
    manifest = bundle.manifest.model_copy(update={"prefill": Subquadratic()})
    selection = select_engines(replace(bundle, manifest=manifest), BuildOptions("tensorrt"))
    assert [engine.name for engine in selection.engines] == ["dense_00", "dense_01", "dense_02"]


def test_the_head_runs_on_few_rows(bundle: Bundle) -> None:
    """As many as the runtime asks for at once: 16 MiB of float32 logits."""
    rows = (16 << 20) // (4 * bundle.manifest.model.vocab_size)
    assert 1 < rows < 4096
    _, prefill = profiles(select_engines(bundle, BuildOptions("tensorrt-rtx")), "dense_02")
    assert sizes(prefill, "residual")[2] == (rows, bundle.manifest.model.hidden_size)


def test_attention_graphs_have_profiles_for_the_largest_cache(bundle: Bundle) -> None:
    selection = select_engines(bundle, BuildOptions("tensorrt", max_context=8192))
    (phase1,), (phase2,) = profiles(selection, "phase1"), profiles(selection, "phase2")
    assert sizes(phase1, "k") == ((1, 2, 64), (4096, 2, 64), (4096, 2, 64))
    assert sizes(phase2, "q") == ((1, 4, 64), (1024, 4, 64), (1024, 4, 64))
    assert sizes(phase2, "k_cache") == ((8192, 2, 64),) * 3
    assert sizes(phase2, "memory") == ((2, 1), (2, 512), (2, 512))
    assert phase2.values["chunk_range"].max == (7168, 8192)
    decode, prefill = profiles(selection, "decode")
    assert sizes(decode, "q") == ((1, 4, 64),) * 3
    assert sizes(prefill, "q")[2] == (4096, 4, 64)
    assert sizes(decode, "length") == ((), (), ())
    assert decode.values["length"].max == (8192,)


def test_a_tile_that_chooses_its_memory_has_a_profile(shared_folder: Path) -> None:
    bundle = Bundle.open(bundles.named(shared_folder, "llama-g2-d64-llama3")[1])
    selection = select_engines(bundle, BuildOptions("tensorrt", max_context=8192))
    (phase2,) = profiles(selection, "phase2")
    assert sizes(phase2, "q") == ((1, 4, 64), (64, 4, 64), (64, 4, 64))
    assert sizes(phase2, "candidates") == ((1, 2, 1), (1, 2, 8192), (1, 2, 8192))
    assert phase2.values["past"].max[0] <= 8192


def test_nothing_is_larger_than_the_context(bundle: Bundle) -> None:
    selection = select_engines(bundle, BuildOptions("tensorrt", max_context=600))
    assert selection.limits.batch == 600
    assert sizes(profiles(selection, "phase2")[0], "q")[2] == (600, 4, 64)
    for engine in selection.engines:
        for profile in engine.profiles:
            for shape in profile.shapes.values():
                assert all(
                    least <= tuned <= most <= 600 or least == tuned == most
                    for least, tuned, most in zip(shape.min, shape.opt, shape.max, strict=True)
                )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target": "cuda"}, "target must be one of tensorrt, tensorrt-rtx, but is 'cuda'"),
        ({"max_context": 0}, "max_context must be from 1 to 16,777,216 tokens, but is 0"),
        ({"batch_size": 512}, r"chunk_size \(1024\) must not exceed batch_size \(512\)"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_options_that_contradict(bundle: Bundle, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        select_engines(bundle, BuildOptions(**{"target": "tensorrt"} | options))


# Which GPUs can be built for


class Rtx:
    class ComputeCapability:
        __members__ = {"NONE": 0, "CURRENT": 1, "SM86": 86, "SM120": 120}  # noqa: RUF012


def rtx(sm: int | None) -> Machine:
    return Machine(TARGETS["tensorrt-rtx"], "1.7.1", sm)


@pytest.mark.parametrize(
    ("wanted", "machine", "expected"),
    [
        ((), GPU, (87,)),
        ((87,), GPU, (87,)),
        ((), rtx(86), (86,)),
        ((120, 86, 120), rtx(None), (86, 120)),
        ((120,), rtx(86), (120,)),
    ],
)
def test_engines_are_for_the_gpu_that_is_there_or_for_those_that_were_named(
    bundle: Bundle, wanted: tuple[int, ...], machine: Machine, expected: tuple[int, ...]
) -> None:
    selection = select_engines(bundle, BuildOptions(machine.target.name, wanted))
    assert fitting_sm(selection, machine, Rtx) == expected


@pytest.mark.parametrize(
    ("wanted", "machine", "error", "says"),
    [
        ((110,), GPU, ConfigError, "sm is 110, but TensorRT builds only for the GPU of this machine, SM87"),
        ((), Machine(TARGETS["tensorrt"], "10.3.0", None), BackendError, "no NVIDIA GPU was found here"),
        ((), Machine(TARGETS["tensorrt"], "10.2.1", 87), BackendError, "TensorRT 10.2.1 is too old: 10.3"),
        ((), Machine(TARGETS["tensorrt"], "8.6.2", 87), BackendError, "TensorRT 8.6.2 is too old"),
        (
            (),
            rtx(None),
            ConfigError,
            "no NVIDIA GPU was found here; name the compute capability to build for with `sm`: 86, 120",
        ),
        ((87,), rtx(None), ConfigError, "sm must be one of 86, 120 for TensorRT for RTX 1.7.1, but is 87"),
        ((), rtx(90), ConfigError, "sm must be one of 86, 120 for TensorRT for RTX 1.7.1, but is 90"),
    ],
)
def test_other_gpus_are_refused(
    bundle: Bundle, wanted: tuple[int, ...], machine: Machine, error: type[H2OError], says: str
) -> None:
    selection = select_engines(bundle, BuildOptions(machine.target.name, wanted))
    with pytest.raises(error, match=says):
        fitting_sm(selection, machine, Rtx)

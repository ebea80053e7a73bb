"""What the backend asks of TensorRT's bindings, and that they have what the double offers."""

from __future__ import annotations

from unittest import mock

from tests import engine_runtime
from tests.engines import tensorrt_rtx

from h2o_runtime.backends import tensorrt


def test_rtx_compiles_a_tokens_kernels_at_once_and_no_prompts() -> None:
    """Its contexts are asked for through a configuration, whose names are the real bindings'."""
    real = tensorrt_rtx()
    strategies = real.DynamicShapesKernelSpecializationStrategy
    asked = {}
    for profile in ("decode", "prefill"):
        config = mock.create_autospec(real.IRuntimeConfig, instance=True)
        engine = mock.Mock(create_runtime_config=lambda config=config: config)
        assert tensorrt._make_context(real, engine, profile) is engine.create_execution_context.return_value
        engine.create_execution_context.assert_called_once_with(config)
        config.set_execution_context_allocation_strategy.assert_called_once_with(
            real.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        asked[profile] = config.dynamic_shapes_kernel_specialization_strategy
    assert asked == {"decode": strategies.EAGER, "prefill": strategies.NONE}
    assert hasattr(real.ICudaEngine, "create_runtime_config")


# The double itself


def test_what_the_double_offers_exists_in_the_real_bindings() -> None:
    """TensorRT for RTX has the same API, and its bindings load without a GPU."""
    real = tensorrt_rtx()
    for ours, theirs in (
        (engine_runtime.Runtime, real.Runtime),
        (engine_runtime.Engine, real.ICudaEngine),
        (engine_runtime.Context, real.IExecutionContext),
    ):
        names = [name for name, member in vars(ours).items() if callable(member) and name[0] != "_"]
        assert names
        assert [name for name in names if not hasattr(theirs, name)] == []
    assert hasattr(real.ICudaEngine, "device_memory_size_v2")
    ours_by_name = engine_runtime.RuntimeDouble.ExecutionContextAllocationStrategy.__members__
    assert set(ours_by_name) == set(real.ExecutionContextAllocationStrategy.__members__)

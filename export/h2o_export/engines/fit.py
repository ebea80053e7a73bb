"""Whether this machine can build the selected engines, and for which GPUs."""

from __future__ import annotations

import re
from typing import Any

from h2o_export.engines.selection import EngineSelection
from h2o_runtime.engines import Machine
from h2o_runtime.errors import BackendError, ConfigError

OLDEST = (10, 3)  # JetPack 6; the first version with the plugin interfaces used here


def fitting_sm(selection: EngineSelection, machine: Machine, trt: Any) -> tuple[int, ...]:
    """Compute capabilities on which the engines will run.

    TensorRT measures kernels on the installed GPU, so it builds for that GPU only. TensorRT for RTX compiles
    ahead of time for every GPU it supports. Raises BackendError or ConfigError.
    """
    if machine.target.plugins:
        return (_own_gpu(selection, machine),)
    known = [int(name[2:]) for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    wanted = selection.options.sm or ((machine.sm,) if machine.sm is not None else ())
    choices = ", ".join(map(str, known))
    if not wanted:
        raise ConfigError(
            f"sm: no NVIDIA GPU was found here; name the compute capability to build for with `sm`: {choices}",
            field="sm",
        )
    for sm in wanted:
        if sm not in known:
            raise ConfigError(
                f"sm must be one of {choices} for {machine.target.title} {machine.tensorrt}, but is {sm}",
                field="sm",
            )
    return tuple(sorted(set(wanted)))


def _own_gpu(selection: EngineSelection, machine: Machine) -> int:
    found = re.match(r"(\d+)\.(\d+)", machine.tensorrt)
    if found is None or tuple(map(int, found.groups())) < OLDEST:
        raise BackendError(
            f"TensorRT {machine.tensorrt} is too old: 10.3 or later is needed (JetPack 6 has it)"
        )
    if machine.sm is None:
        raise BackendError(
            "TensorRT builds engines on the GPU that runs them, and no NVIDIA GPU was found here; run h2o-build "
            "on the device, or take `target=tensorrt-rtx` for a desktop GPU"
        )
    others = [sm for sm in selection.options.sm if sm != machine.sm]
    if others:
        raise ConfigError(
            f"sm is {others[0]}, but TensorRT builds only for the GPU of this machine, SM{machine.sm}; leave out "
            "`sm`, or run h2o-build on the other device",
            field="sm",
        )
    return machine.sm

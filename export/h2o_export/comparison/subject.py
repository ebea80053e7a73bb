"""What is being compared: a bundle as one backend on one device executes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from h2o_runtime.backends import Backend
from h2o_runtime.backends.select import make_backend
from h2o_runtime.bundle import Bundle
from h2o_runtime.devices import Device
from h2o_runtime.devices.select import make_device
from h2o_runtime.generator import Generator
from h2o_runtime.names import BackendName, DeviceChoice, ProviderChoice


@dataclass(frozen=True)
class Subject:
    """`backend`, `on`, `attention` and `threads` are those of `Generator.load`, which calls the second `device`."""

    bundle: Bundle
    backend: BackendName = "onnxruntime"
    on: DeviceChoice = "auto"
    attention: ProviderChoice = "auto"
    threads: int | None = None
    device: Device = field(init=False)

    def __post_init__(self) -> None:
        """Raises what `make_device` raises."""
        object.__setattr__(self, "device", make_device(self.on, self.backend))

    def open_backend(self, context: int) -> Backend:
        """Not activated yet."""
        return make_backend(self.backend, self.bundle, self.device, self.threads, context)

    def load(self, context: int, attention: ProviderChoice | None = None) -> Generator:
        """All of the bundle, ready to run; with another attention provider where one is named."""
        return Generator.load(
            self.bundle.folder, self.backend, context, attention or self.attention, self.threads, self.on
        )

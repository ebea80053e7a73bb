"""What is compared: a bundle on one backend and one device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.backend import Backend
from h2o_runtime.backends.select import make_backend, make_device
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.devices import Device
from h2o_runtime.generator import Generator
from h2o_runtime.layers.live import LayerSettings, equivalent_settings
from h2o_runtime.names import (
    BackendName,
    DenseChoice,
    DensePrecisionChoice,
    DeviceChoice,
    PrecisionChoice,
    ProviderChoice,
)
from h2o_runtime.providers.select import provider_factory


@dataclass(frozen=True)
class ComparedBundle:
    """The fields have the names of `Generator.load`'s arguments; `on` is its `device`."""

    bundle: Bundle
    backend: BackendName = "onnxruntime"
    on: DeviceChoice = "auto"
    attention: ProviderChoice = "auto"
    threads: int | None = None
    dense_form: DenseChoice = "auto"
    attention_precision: PrecisionChoice = "auto"
    dense_precision: DensePrecisionChoice = "auto"
    device: Device = field(init=False)

    def __post_init__(self) -> None:
        """Raises what `make_device` raises."""
        object.__setattr__(self, "device", make_device(self.on, self.backend))

    def open_backend(self, context: int) -> Backend:
        """Not activated yet."""
        return make_backend(
            self.backend,
            self.bundle,
            self.device,
            self.threads,
            context,
            self.dense_form,
            dense_precision=self.dense_precision,
        )

    def load(
        self, context: int, attention: ProviderChoice | None = None, layers: LayerSettings | None = None
    ) -> Generator:
        """The whole bundle, ready to run; with another attention provider if one is named."""
        return Generator.load(
            self.bundle.folder,
            backend=self.backend,
            context=context,
            attention=attention or self.attention,
            attention_precision="auto" if attention else self.attention_precision,
            threads=self.threads,
            device=self.on,
            dense_form=self.dense_form,
            dense_precision=self.dense_precision,
            layers=layers or {},
        )

    @property
    def layer_settings(self) -> tuple[LayerSettings, ...]:
        """Settings of layer kinds that compute the same numbers in other ways: a prompt is compared under
        each.
        """
        return equivalent_settings(self.bundle.manifest.model)

    def open_attention(self, name: ProviderChoice, precision: PrecisionChoice) -> AttentionProvider:
        """Not activated yet."""
        return provider_factory(name, self.bundle, self.device, self.threads, precision)()

    @property
    def exact(self) -> ComparedBundle:
        """With no rounding except of weights: the remaining differences are errors, not the cost of speed."""
        if self.device.name != "cpu":
            return self  # including its device, which a copy would not share
        dense_form: DenseChoice = "exact" if self.rounds_activations else self.dense_form
        return replace(self, attention_precision="float32", dense_form=dense_form, dense_precision="float32")

    @property
    def rounds_activations(self) -> bool:
        """Whether dense graphs round activations here, and another dense form does not."""
        on_cpu = self.backend == "onnxruntime" and self.device.memory == "cpu"
        return on_cpu and (self.bundle.manifest.model.quantized or self.rounds_floats)

    @property
    def rounds_floats(self) -> bool:
        """Whether products with float weights have other numbers here than the bundle says."""
        backend = self.open_backend(context=1)
        rounded = backend.dense_precision == "bfloat16"
        return rounded or backend.model.dtype != self.bundle.manifest.model.dtype

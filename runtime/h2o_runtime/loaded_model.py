"""A bundle with loaded weights, which its sessions share."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from h2o_runtime.backend import Backend
from h2o_runtime.backends.select import make_backend, make_device, refusal_on_gpu
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.config.compatibility import check_layers, check_policy
from h2o_runtime.config.load_options import LoadOptions
from h2o_runtime.dense_graphs.packed_files import PackedFolder
from h2o_runtime.devices import Device, HostDevice
from h2o_runtime.errors import ConfigError
from h2o_runtime.execution.draft_layer import DraftLayer
from h2o_runtime.execution.footprint import weight_bytes
from h2o_runtime.execution.forward import Forward
from h2o_runtime.layers.activations import Activations
from h2o_runtime.layers.live import Layers
from h2o_runtime.limits import MAX_CONTEXT
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import Speculation
from h2o_runtime.policies.prefill import Full
from h2o_runtime.process import check_threads, warn_of_little_memory
from h2o_runtime.providers.select import provider_factory
from h2o_runtime.sessions.folder import SessionFolder
from h2o_runtime.sessions.layer_states import rows_ahead
from h2o_runtime.sessions.pool import SessionPool
from h2o_runtime.sessions.session import Session
from h2o_runtime.sessions.spec import SessionSpec

log = logging.getLogger(__name__)

DEFAULT_CONTEXT = 8192


@dataclass(frozen=True)
class LoadedModel:
    """Weights, their backend, and the buffers between layers: one call at a time, for any of its sessions.

    spec  how its sessions are made
    """

    spec: SessionSpec
    backend: Backend
    forward: Forward

    @classmethod
    def of(cls, spec: SessionSpec, backend: Backend) -> LoadedModel:
        """With an active backend. Raises ConfigError for incompatible parts."""
        check_layers(spec.layers, spec.cache, spec.decoding, spec.device)
        device, manifest = spec.device, spec.bundle.manifest
        buffers = Activations(spec.model, spec.context, device)
        layers = spec.layers.load(backend, buffers, spec.context, device, spec.cache)
        forward = _forward_on(device)(manifest, backend, layers, spec.decoding, buffers, device)
        loaded = cls(spec, backend, forward)
        loaded._load_draft_layer()
        return loaded

    @classmethod
    def load(cls, path: str | Path, options: LoadOptions) -> LoadedModel:
        """Open a bundle and make it ready to run. Raises BundleError, BackendError, ConfigError or OutputError."""
        bundle = Bundle.open(path)
        if options.verify:
            bundle.verify()
        context = _context(bundle.manifest.model, options.context)
        check_threads(options.threads)
        refusal = refusal_on_gpu(bundle.manifest.model, bundle.manifest.prefill, options.decoding)
        device = make_device(options.device, options.backend, refusal)
        place = options.packed_weights
        if isinstance(device, HostDevice):
            remedy = "an export with int8 or int4 weights takes less"
            warn_of_little_memory("the weights take", weight_bytes(bundle.manifest.model), remedy)
        elif options.decoding.slow_on_gpu:
            log.warning("%s", options.decoding.slow_on_gpu)
        packed = None if place is None else PackedFolder.open(Path(place), options.verify)
        backend = make_backend(
            options.backend,
            bundle,
            device,
            options.threads,
            context,
            options.dense_form,
            packed,
            options.dense_precision,
        )
        make = provider_factory(
            options.attention, bundle, device, options.threads, options.attention_precision
        )
        backend.activate()
        layers = Layers(backend.model, make, options.layers)
        # Sessions then allocate their cache at start, so that rows from the folder are copied without delay.
        commit = options.folder_shared
        spec = SessionSpec(
            bundle,
            context,
            device,
            layers,
            options.cache,
            options.decoding,
            options.speculate,
            commit,
            rows_ahead=rows_ahead(options.speculate, backend.native_products),
        )
        return cls.of(spec, backend)

    def session_pool(self, options: LoadOptions) -> SessionPool:
        """For sessions that wait. Raises OutputError for the folder."""
        folder = None
        if options.folder is not None:
            identity = self.spec.bundle.manifest.identity
            folder = SessionFolder(
                Path(options.folder), options.folder_bytes, identity, options.folder_shared
            )
        return SessionPool(options.pool_bytes, folder)

    def speculation(self, session: Session, asked: Speculation | None) -> tuple[Speculation, str | None]:
        """What drafts an answer in a session, or the reason why nothing does. asked: None takes the load option."""
        chosen = asked or self.spec.speculate
        if chosen == "off":
            return "off", None
        without_layer = self.forward.drafting is None
        reason = self.no_draft_because if chosen == "mtp" and without_layer else None
        if reason := reason or self.forward.one_row_because(session):
            return "off", reason
        return "lookup" if without_layer else chosen, None

    def check_speculation(self, session: Session) -> None:
        """Raises ConfigError if the load option names a drafter, and nothing can draft in the session."""
        _, reason = self.speculation(session, None)
        if reason and self.spec.speculate != "auto":
            raise ConfigError(
                f"`speculate={self.spec.speculate}` has no effect, because {reason}: leave it out",
                field="speculate",
            )

    @property
    def no_draft_because(self) -> str | None:
        """Why the model's draft layer cannot draft; None: it can."""
        if self.spec.model.draft is None:
            return "the bundle has no layer that drafts tokens"
        if not self.forward.rows_by_layers or self.forward.layers.in_step_graph:
            return "a draft layer runs on a CPU with native products alone (`dense_form=native`)"
        if self.spec.speculate not in ("auto", "mtp"):
            return "the draft layer is loaded with `speculate=auto` or `mtp` alone"
        return None

    def _load_draft_layer(self) -> None:
        spec, manifest = self.spec, self.spec.bundle.manifest
        if self.no_draft_because is None:
            assert spec.model.draft is not None
            self.backend.load_draft()
            provider = spec.layers.provide(spec.model.draft.attention(spec.model.dtype))
            self.forward.drafting = DraftLayer(manifest, self.backend, provider)

    def warm_up(self, session: Session) -> None:
        """Do the one-time work of a first prompt and a first step. The session must be empty."""
        policy = self.spec.bundle.manifest.prefill  # chooses keys from the second chunk on, on every device
        try:
            check_policy(self.spec.layers, policy, self.spec.device)
        except ConfigError:  # raised again where a prompt asks for it
            policy = Full(batch_size=policy.batch_size)
        self.forward.warm_up(policy, session)

    def close(self) -> None:
        """Free memory; no session can be used afterwards."""
        self.spec.device.synchronize()
        self.forward.release()
        self.backend.deactivate()
        self.spec.layers.close()


def _context(model: ModelSpec, chosen: int | None) -> int:
    """Raises ConfigError for a context that no cache could hold."""
    context = min(model.max_position_embeddings, DEFAULT_CONTEXT) if chosen is None else chosen
    if not 1 <= context <= MAX_CONTEXT:
        raise ConfigError(
            f"context must be from 1 to {MAX_CONTEXT:,} tokens, but is {context}", field="context"
        )
    if context > model.max_position_embeddings and model.rope_ends:
        raise ConfigError(
            f"context must be at most {model.max_position_embeddings:,} tokens, but is {context:,}: the model "
            "scales RoPE otherwise for longer texts; lower it, or export the model again for a longer context",
            field="context",
        )
    if context > model.max_position_embeddings:
        log.warning(
            "context %d is beyond the %d positions that the model was trained for; expect worse answers",
            context,
            model.max_position_embeddings,
        )
    return context


def _forward_on(device: Device) -> type[Forward]:
    if isinstance(device, HostDevice):
        return Forward
    from h2o_runtime.execution.recorded import RecordedForward

    return RecordedForward

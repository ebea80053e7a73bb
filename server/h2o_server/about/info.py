"""Information about the server and its model."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from importlib import metadata
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from h2o_runtime.caches import CACHES
from h2o_runtime.components.options import MOST
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import PREFILL
from h2o_server.about.memory_view import MemorySnapshot
from h2o_server.about.metrics import CONTENT_TYPE
from h2o_server.apis.shared.answers import Health, ModelList, ModelObject
from h2o_server.apis.shared.prefill import PrefillDescription, PrefillRequest
from h2o_server.http.problems import Problem
from h2o_server.service import Service

Index = Annotated[int, Query(ge=0, le=MOST)]


def add_routes(router: APIRouter, service: Service) -> None:
    started = int(time.time())

    @router.get("/health")
    async def health() -> Health:
        """200 once the model is loaded; 503 while it is loading, the server stops or a request does not come back,
        500 when inference has failed."""
        return service.health()

    @router.get("/models", include_in_schema=False)
    @router.get("/v1/models")
    async def models() -> ModelList:
        """The one model."""
        model = _model(service, started)
        return ModelList(object="list", data=[model], has_more=False, first_id=model.id, last_id=model.id)

    @router.get("/models/{name:path}", include_in_schema=False)
    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> ModelObject:
        """The model by its name."""
        if name != service.settings.alias:
            raise Problem(404, f"there is no model {name!r}: see /v1/models", code="model_not_found")
        return _model(service, started)

    @router.get("/props")
    async def props() -> dict[str, Any]:
        """How the server is set up, with llama.cpp's names where it has one."""
        return _props(service)

    @router.post("/props/prefill")
    async def prefill(body: PrefillRequest) -> PrefillDescription:
        """How a request with these overrides would be prefilled."""
        builder = service.builder
        policy = await service.handler.in_text_thread(lambda: builder.prefill_policy(body.prefill))
        return PrefillDescription(
            prefill=PREFILL.settings_of(policy), text=str(policy), summary=policy.summary()
        )

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.page(), media_type=CONTENT_TYPE)

    _add_memory_routes(router, service)


def _add_memory_routes(router: APIRouter, service: Service) -> None:
    @router.get("/memory/{name}")
    async def memory(name: str) -> dict[str, Any]:
        """The prompt of an answer, token by token. name: the answer's id; those of the last few are kept."""
        snapshot, tokenizer = _snapshot(service, name), service.model.tokenizer
        return await service.handler.in_text_thread(lambda: snapshot.describe(tokenizer))

    @router.get("/memory/{name}/counts")
    async def memory_counts(name: str, boundary: Index, layer: Index) -> dict[str, list[int]]:
        """How many heads of a layer kept each token in memory after chunk `boundary`."""
        snapshot = _snapshot(service, name)
        for label, index, count in (
            ("boundary", boundary, snapshot.sets.shape[0]),
            ("layer", layer, snapshot.sets.shape[1]),
        ):
            if index >= count:
                raise Problem(
                    400,
                    f"{label} is {index}, but must be from 0 to {count - 1}",
                    param=label,
                    code="invalid_value",
                )
        return {"counts": snapshot.counts(boundary, layer)}


def _snapshot(service: Service, name: str) -> MemorySnapshot:
    """By the answer's id, which only its client knows, because prompts are private."""
    for snapshot in service.inference.snapshots:
        if snapshot.name == name:
            return snapshot
    last = "the last answer" if len(service.model.slots) == 1 else "the last answers"
    raise Problem(
        404, f"there is no memory of {name}: the server keeps only that of {last}", code="not_found"
    )


def _model(service: Service, created: int) -> ModelObject:
    generator = service.model.generator
    meta = {
        "n_ctx": generator.context,
        "n_ctx_train": generator.model.max_position_embeddings,
        "n_vocab": generator.model.vocab_size,
        "n_embd": generator.model.hidden_size,
        "n_params": generator.model.parameters,
    }
    alias = service.settings.alias
    return ModelObject(
        id=alias,
        object="model",
        created=created,
        owned_by="h2o-edge",
        type="model",
        display_name=alias,
        created_at=datetime.fromtimestamp(created, timezone.utc),
        max_model_len=generator.context,
        meta=meta,  # type: ignore[call-arg]
    )


def _weights(model: ModelSpec) -> dict[str, Any]:
    """Formats of layers' matrices, with what they hold, and the head's."""
    weights = model.weights
    if weights is None:
        return {"formats": {}, "head": model.dtype}
    return {
        "formats": {name: share.model_dump() for name, share in weights.formats.items()},
        "head": weights.head,
    }


def _props(service: Service) -> dict[str, Any]:
    model = service.model
    limits = service.settings.limits
    speculate, reason = model.generator.speculation()
    return {
        "model_alias": service.settings.alias,
        "total_slots": len(model.slots),
        "default_generation_settings": {"n_ctx": model.generator.context},
        "chat_template": model.chat_template,
        "dialect": model.speech.dialect.name,
        "thinks": model.speech.thinks,
        "bos_token": model.tokenizer.special_tokens.get("bos_token"),
        "eos_token": model.tokenizer.special_tokens.get("eos_token"),
        "build_info": f"h2o-edge {metadata.version('h2o-edge')}",
        "weights": _weights(model.generator.model),
        "backend": model.generator.loaded.backend.name,
        "device": model.generator.spec.device.name,
        "attention": model.generator.spec.provider.name,
        "cache": CACHES.settings_of(model.generator.spec.cache),
        "pooling": (service.settings.pooling or model.generator.bundle.manifest.embedding.pooling).value,
        "speculate": speculate,
        "speculate_off_because": reason,
        "prefill": PREFILL.settings_of(service.prefill),
        "prefill_summary": service.prefill.summary(),
        "prefill_forms": service.builder.prefill_forms(),
        "limits": {
            "max_queue": limits.queue,
            "queue_timeout": limits.queue_timeout or None,
            "max_body_bytes": service.room.body_bytes,
            "max_body_values": service.room.values,
            "body_memory_bytes": limits.memory_bytes,
        },
    }

"""What routers in front of several servers ask: how busy this one is, which model it has, whether it lives.

The paths and members are SGLang's and llama.cpp's.
"""

from __future__ import annotations

import time
from importlib import metadata
from typing import Any

from fastapi import APIRouter

from h2o_runtime.server.schemas.responses import Health, Load, Loads
from h2o_runtime.server.service import Service


def add_routes(router: APIRouter, service: Service) -> None:
    @router.get("/slots")
    async def slots() -> list[dict[str, Any]]:
        """The one slot, and what it is doing."""
        generator, running = service.model.generator, service.handler.running
        slot: dict[str, Any] = {"id": 0, "n_ctx": generator.context, "is_processing": running is not None}
        slot["n_past"] = service.inference.cached_tokens
        if running is not None:
            work = running.work
            slot |= {"id_task": running.name, "n_prompt_tokens": len(running.request.prompt.ids)}
            slot |= {"n_prompt_tokens_processed": work.prompt_done, "n_decoded": work.answered}
        return [slot]

    @router.get("/loads", include_in_schema=False)
    @router.get("/v1/loads")
    async def loads() -> Loads:
        """How busy the server is."""
        load = _load(service)
        version = metadata.version("h2o-edge")
        return Loads(timestamp=time.time(), version=version, dp_rank_count=1, loads=[load])

    @router.get("/get_load")
    async def get_load() -> list[dict[str, int]]:
        """The older form of /v1/loads."""
        load = _load(service)
        return [
            {
                "dp_rank": 0,
                "num_reqs": load.num_total_reqs,
                "num_waiting_reqs": load.num_waiting_reqs,
                "num_tokens": load.num_used_tokens,
            }
        ]

    @router.get("/model_info", include_in_schema=False)
    @router.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        """The model, and what it can be asked for."""
        generator, alias = service.model.generator, service.settings.alias
        return {
            "model_path": alias,
            "tokenizer_path": alias,
            "is_generation": True,
            "model_type": generator.model.family,
            "max_model_len": generator.context,
            "vocab_size": generator.model.vocab_size,
        }

    @router.get("/health_generate")
    async def health_generate() -> Health:
        """As /health: a request that does not come back makes it 503, so none need be sent to find out."""
        return service.health()


def _load(service: Service) -> Load:
    running, waiting = int(service.handler.slot.busy), service.handler.slot.waiting
    used, most = service.used_tokens(), service.model.generator.context
    return Load(
        dp_rank=0,
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_total_reqs=running + waiting,
        num_used_tokens=used,
        max_total_num_tokens=most,
        token_usage=used / most,
        max_running_requests=1,
    )

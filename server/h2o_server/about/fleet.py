"""Queries of routers in front of several servers: load, model and health.

The paths and members are SGLang's and llama.cpp's.
"""

from __future__ import annotations

import time
from importlib import metadata
from typing import Any

from fastapi import APIRouter

from h2o_server.apis.shared.answers import Health, Load, Loads
from h2o_server.scheduling.inference import Job
from h2o_server.service import Service


def add_routes(router: APIRouter, service: Service) -> None:
    @router.get("/slots")
    async def slots() -> list[dict[str, Any]]:
        """The slots, and what each is doing."""
        jobs = {job.slot: job for job in service.handler.running}
        context = service.model.generator.context
        return [
            {"id": slot, "n_ctx": context, "is_processing": slot in jobs, "n_past": cached}
            | (_work(jobs[slot]) if slot in jobs else {})
            for slot, cached in enumerate(service.inference.cached_tokens)
        ]

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


def _work(job: Job) -> dict[str, Any]:
    """What a slot is doing, with llama.cpp's names, and how many of its prompt's tokens are to be read in all."""
    return {
        "id_task": job.name,
        "n_prompt_tokens": len(job.request.prompt.ids),
        "n_prompt_tokens_new": job.work.prompt_done + job.work.prompt_left,
        "n_prompt_tokens_processed": job.work.prompt_done,
        "n_decoded": job.work.answered,
    }


def _load(service: Service) -> Load:
    slots = service.handler.slots
    running, waiting = slots.busy, slots.waiting
    used, room = service.used_tokens(), service.model.generator.context * slots.count
    return Load(
        dp_rank=0,
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_total_reqs=running + waiting,
        num_used_tokens=used,
        max_total_num_tokens=room,
        token_usage=used / room,
        max_running_requests=slots.count,
    )

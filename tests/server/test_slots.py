"""The slot by itself: first come first served, whatever happens in the queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h2o_server.http.problems import Problem, unavailable
from h2o_server.scheduling.slots import Slots, Ticket


def entered(slot: Slots) -> Ticket:
    """A ticket of a request that is ready."""
    ticket = slot.enter()
    ticket.prepared()
    return ticket


def called(ticket: Ticket) -> bool:
    return ticket._turn.done() and ticket._turn.exception() is None


def test_a_full_queue_refuses_with_the_time_to_wait() -> None:
    async def run() -> None:
        slot = Slots(1, lambda: 7)
        first = entered(slot)
        entered(slot)
        with pytest.raises(Problem) as caught:
            entered(slot)
        assert (caught.value.status_code, caught.value.code) == (503, "queue_full")
        assert caught.value.headers == {"Retry-After": "7"}
        first.leave()
        entered(slot)  # now there is room
        slot.count = 2
        entered(slot)
        with pytest.raises(Problem, match="answers 2 requests at a time and 1 are waiting"):
            slot.enter()

    asyncio.run(run())


STEPS = st.lists(st.one_of(st.just("enter"), st.integers(0, 30), st.just("close")), max_size=80)


@given(steps=STEPS, most_waiting=st.integers(0, 5))
@settings(max_examples=120, deadline=None)
def test_never_two_at_once_never_out_of_order_never_a_lost_place(steps: list[Any], most_waiting: int) -> None:
    """Any order of coming and leaving, compared with a plain list: its first one is served."""

    async def run() -> None:
        slot = Slots(most_waiting, lambda: 1)
        tickets: list[Ticket] = []
        queue: list[Ticket] = []  # the model
        closed = False
        for step in steps:
            if step == "enter":
                try:
                    ticket = entered(slot)
                except Problem:
                    assert closed or len(queue) == most_waiting + 1
                    continue
                assert not closed
                assert len(queue) <= most_waiting
                tickets.append(ticket)
                queue.append(ticket)
            elif step == "close":
                slot.close(lambda: unavailable("closed"))
                closed = True
                del queue[1:]
            elif tickets:
                ticket = tickets[step % len(tickets)]
                ticket.leave()
                if ticket in queue:
                    queue.remove(ticket)
            assert slot.busy == bool(queue)
            assert slot.waiting == max(len(queue) - 1, 0)
            assert [one for one in tickets if called(one) and not one.left] == queue[:1]
        for ticket in tickets:
            ticket.leave()
        assert (slot.busy, slot.waiting) == (False, 0)

    asyncio.run(run())

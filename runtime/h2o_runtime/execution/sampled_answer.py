"""The answer to a prompt that was read: sample a token, take a step, and so on to the end."""

from __future__ import annotations

from h2o_runtime.answers.events import Finished, GenerationEvent, Run, TokenGenerated
from h2o_runtime.answers.request import Request
from h2o_runtime.answers.sampling import Sampler
from h2o_runtime.errors import Cancelled
from h2o_runtime.execution.answer_steps import AnswerSteps
from h2o_runtime.execution.watch import Watch
from h2o_runtime.sessions.session import Float32, Session


def sampled_answer(
    session: Session,
    logits: Float32,
    sampler: Sampler,
    steps: AnswerSteps,
    request: Request,
    watch: Watch,
) -> Run[GenerationEvent]:
    """The tokens that the request wants behind the session's; `logits` [vocab] are those of the first.

    Yields a TokenGenerated a token and one Finished, and asks for every step. Raises Cancelled between two tokens.
    The sampler has seen the prompt. `steps` are closed in the end.
    """
    constraint, stops = request.constraint, frozenset(request.stop_tokens)
    limit, produced = request.most_tokens(session.spec.context), 0
    try:
        while produced < limit:
            sampled = sampler.sample(logits, constraint.allowed() if constraint else None)
            if sampled.token in stops:
                yield Finished("stop", produced)
                return
            sampler.accept(sampled.token)
            if constraint:
                constraint.accept(sampled.token)
            produced += 1
            yield TokenGenerated(sampled)
            if session.length >= session.spec.context or produced == limit:
                break
            if watch.cancelled():
                raise Cancelled("generation was stopped")
            logits = yield from steps.after(sampled.token, limit - produced)
    finally:
        steps.close()
    yield Finished("length", produced)

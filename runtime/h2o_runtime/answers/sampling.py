"""From logits to the next token: penalties, temperature, the usual truncations, and log-probabilities.

The steps, in this order, each skipped when its field has the neutral value:

1. repetition, presence and frequency penalties, for the tokens among the last `repeat_last_n` accepted ones
2. `logit_bias`, then what a grammar forbids
3. `temperature`; at 0 the most probable token is taken here and nothing below happens
4. `top_k`: the k best tokens
5. `top_p`: the smallest set of best tokens whose share of what top-k left is at least `top_p`
6. `min_p`: tokens at least `min_p` times as probable as the best one

llama.cpp and transformers agree on each step's formula and differ in details that this file fixes: top-k
keeps exactly k tokens and the lower id wins every tie, so that equal logits and seeds give equal tokens.

Log-probabilities are the model's own: log_softmax of the logits as given, before step 1. That is what the
OpenAI API reports, and what a perplexity wants.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.errors import BackendError, ConfigError, UnknownTokenError

_FIRST_GUESS = 64  # tokens tried as the nucleus before the next guess, eight times larger


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The defaults are greedy decoding without other options.

    Every value is checked here, once: a bad one raises `ConfigError` with its `field`.
    """

    temperature: float = 0.0
    """0 is greedy; 1 is the model's own distribution."""
    top_k: int = 0
    """Keep the k best tokens; 0 keeps all. More than the vocabulary is the same as all."""
    top_p: float = 1.0
    """Keep the smallest set of best tokens with at least this share of the probability; 1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less probable than this fraction of the best one; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divide positive logits of seen tokens by this and multiply negative ones; 1 does nothing."""
    presence_penalty: float = 0.0
    """Subtract this from the logit of every seen token."""
    frequency_penalty: float = 0.0
    """Subtract this from the logit of a token once for each time it was seen."""
    repeat_last_n: int = 64
    """How many accepted tokens the penalties look back at; -1 is all of them, 0 none."""
    seed: int | None = None
    """The same seed gives the same tokens; None draws a fresh one, which `Sampler.seed` tells."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Token id → what to add to its logit; -inf bans the token."""
    logprobs: int | None = None
    """How many of the most probable tokens to report with each sampled one; None or 0 reports none."""

    def __post_init__(self) -> None:
        self._number("temperature", "a finite number, 0 (greedy) or more", lambda x: 0 <= x < math.inf)
        self._number("top_p", "between 0 and 1 (1 switches it off)", lambda x: 0 <= x <= 1)
        self._number("min_p", "between 0 and 1 (0 switches it off)", lambda x: 0 <= x <= 1)
        above_zero = "a finite number above 0 (1 switches it off)"
        self._number("repetition_penalty", above_zero, lambda x: 0 < x < math.inf)
        self._number("presence_penalty", "a finite number (0 switches it off)", math.isfinite)
        self._number("frequency_penalty", "a finite number (0 switches it off)", math.isfinite)
        self._integer("top_k", "0 (keep all tokens) or more", lambda x: x >= 0)
        self._integer("repeat_last_n", "-1 (all tokens), 0 (none) or more", lambda x: x >= -1)
        if self.seed is not None:
            self._integer("seed", "0 or more, or None for a fresh one", lambda x: x >= 0)
        if self.logprobs is not None:
            self._integer("logprobs", "0 or more, or None for none", lambda x: x >= 0)
        object.__setattr__(self, "logit_bias", self._checked_bias())

    def _number(self, name: str, want: str, ok: Callable[[float], bool]) -> None:
        """Replace the field by a plain float that passes `ok`, or raise `ConfigError`; NaN never passes."""
        value = getattr(self, name)
        if not _is_number(value) or not ok(float(value)):
            raise ConfigError(f"{name} is {value!r}: it must be {want}", field=name)
        object.__setattr__(self, name, float(value))

    def _integer(self, name: str, want: str, ok: Callable[[int], bool]) -> None:
        """Replace the field by a plain int that passes `ok`, or raise `ConfigError`."""
        value = getattr(self, name)
        if not _is_integer(value) or not ok(int(value)):
            raise ConfigError(f"{name} is {value!r}: it must be a whole number, {want}", field=name)
        object.__setattr__(self, name, int(value))

    def _checked_bias(self) -> dict[int, float]:
        """A copy of `logit_bias` with plain keys and values."""
        if not isinstance(self.logit_bias, Mapping):
            raise ConfigError("logit_bias must map token ids to numbers, as {13: -2.5}", field="logit_bias")
        for token, bias in self.logit_bias.items():
            if not _is_integer(token) or token < 0:
                raise ConfigError(
                    f"logit_bias has the key {token!r}: keys are token ids, 0 or more", field="logit_bias"
                )
            if not _is_number(bias) or not float(bias) < math.inf:
                raise ConfigError(
                    f"logit_bias[{token}] is {bias!r}: it must be a number or -inf, which bans the token",
                    field="logit_bias",
                )
        return {int(token): float(bias) for token, bias in self.logit_bias.items()}


class SampledToken(NamedTuple):
    """One step's outcome; log-probabilities are of the model's unmodified distribution."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The `Sampling.logprobs` most probable tokens as (id, logprob), best first."""


class Sampler:
    """Draws tokens for one request at a time; holds its history, its random stream and its buffers.

    `sample` does not record its result: call `accept` with the token that was used, and `reset(prompt)`
    before the first, because penalties also count the prompt, as in llama.cpp. Threads must not share it.

    Raises `ConfigError` when `logit_bias` names a token outside the vocabulary.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ConfigError(f"vocab_size is {vocab_size}: it must be at least 1", field="vocab_size")
        beyond = [token for token in sampling.logit_bias if token >= vocab_size]
        if beyond:
            raise ConfigError(
                f"logit_bias has the key {beyond[0]}: this model's token ids run from 0 to {vocab_size - 1}",
                field="logit_bias",
            )
        self.sampling = sampling
        self.vocab_size = vocab_size
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self._bias_ids = np.fromiter(sampling.logit_bias.keys(), np.int64, len(sampling.logit_bias))
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float64, len(sampling.logit_bias))
        self._all_ids = np.arange(vocab_size)
        self._scores = np.empty(vocab_size, np.float32)  # logits after penalties and bias
        self._scratch = np.empty(vocab_size, np.float32)  # partition reorders it, exp writes to it
        self._weights = np.empty(vocab_size, np.float64)  # unnormalised probabilities of the candidates
        self._mass = np.empty(vocab_size, np.float64)  # their running sum
        self._counts = np.zeros(vocab_size, np.int32)  # how often each token is in the window
        self._window = np.empty(max(sampling.repeat_last_n, 0), np.int64)  # ring of the last tokens
        self.reset()

    def reset(self, history: Iterable[int] = ()) -> None:
        """Begin a new request: the random stream restarts at the seed; `history` is the accepted text."""
        self._bits = np.random.PCG64(self.seed)
        self._counts.fill(0)
        self._accepted = 0
        for token in history:
            self.accept(token)

    def accept(self, token: int) -> None:
        """Count `token` as the latest of the text, for the penalties. Raises `UnknownTokenError`."""
        token = int(token)
        if not 0 <= token < self.vocab_size:
            raise UnknownTokenError(token, self.vocab_size)
        span = self.sampling.repeat_last_n
        if span > 0:
            slot = self._accepted % span
            if self._accepted >= span:
                self._counts[self._window[slot]] -= 1
            self._window[slot] = token
        if span != 0:
            self._counts[token] += 1
        self._accepted += 1

    def sample(self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None) -> SampledToken:
        """Choose the next token.

        logits: float32 [vocab], left unchanged. -inf is a token of probability zero; NaN, +inf or only -inf
        raise `BackendError`. `ConfigError` when the penalties or the bias leave no token to choose. allowed:
        bool [vocab], tokens that a grammar permits; None permits all.
        """
        logits = self._checked(logits)
        log_total = self._log_sum_exp(logits)
        scores = self._adjusted(logits, allowed)
        if self.sampling.temperature == 0:
            token = int(scores.argmax())
        else:
            ids, weights = self._candidates(scores)
            token = int(ids[self._draw(weights)])
        return SampledToken(token, float(logits[token]) - log_total, self._top(logits, log_total))

    def distribution(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The distribution that `sample` would draw from: token ids [c] and their probabilities [c], which
        sum to 1.

        Draws nothing and changes nothing. Greedy sampling gives one token. Errors as for `sample`.
        """
        scores = self._adjusted(self._checked(logits))
        if self.sampling.temperature == 0:
            return np.array([scores.argmax()], np.int64), np.ones(1)
        ids, weights = self._candidates(scores)
        return np.array(ids, np.int64), weights / weights.sum()

    def _checked(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits as float32 [vocab] with a finite maximum."""
        logits = np.asarray(logits, dtype=np.float32)
        if logits.shape != (self.vocab_size,):
            raise BackendError(
                f"the model returned logits of shape {list(logits.shape)} where [{self.vocab_size}] was "
                "expected: pass one position's logits, from the bundle that this sampler was made for"
            )
        best = float(logits.max())  # a single NaN makes the maximum NaN
        if not math.isfinite(best):
            what = "NaN" if math.isnan(best) else "+inf" if best > 0 else "nothing but -inf"
            where = "" if best == -math.inf else f", first at token id {int(_first_bad(logits))}"
            raise BackendError(
                f"the model's logits hold {what}{where}: its activations left the range of their type, or a "
                "weight file is damaged; export it with h2o-export --dtype float32, or compare bundle and "
                "checkpoint"
            )
        return logits

    def _log_sum_exp(self, logits: NDArray[np.float32]) -> float:
        best = logits.max()
        np.subtract(logits, best, out=self._scratch)
        np.exp(self._scratch, out=self._scratch)
        return float(best) + math.log(float(self._scratch.sum(dtype=np.float64)))

    def _adjusted(
        self, logits: NDArray[np.float32], allowed: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float32]:
        """Logits after penalties, bias and grammar; the given logits if none is in use."""
        s = self.sampling
        penalised = s.repetition_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0
        if not penalised and not self._bias_ids.size and allowed is None:
            return logits
        scores = self._scores
        np.copyto(scores, logits)
        with np.errstate(over="ignore"):  # an overflow becomes an infinity, which is refused below
            if penalised:
                seen = np.flatnonzero(self._counts)
                values = scores[seen].astype(np.float64)
                values = np.where(values > 0, values / s.repetition_penalty, values * s.repetition_penalty)
                scores[seen] = values - (self._counts[seen] * s.frequency_penalty + s.presence_penalty)
            scores[self._bias_ids] += self._bias
        if allowed is not None:
            scores[~allowed] = -np.inf
        if not math.isfinite(float(scores.max())):
            name = "logit_bias" if self._bias_ids.size else "repetition_penalty"
            raise ConfigError(
                f"{name} leaves no token to choose from: its values ban every token or overflow float32; "
                "use values nearer to the neutral one",
                field=name,
            )
        return scores

    def _candidates(self, scores: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids [c] that survive top-k, top-p and min-p, and weights [c] in proportion to their probability.

        The best candidate's weight is exactly 1. Temperature is applied after top-k: it does not change the
        order, and only k exponentials are computed.
        """
        s = self.sampling
        ids = self._all_ids
        if 0 < s.top_k < self.vocab_size:
            ids = _best(scores, s.top_k, self._scratch)
            scores = scores[ids]
        weights = self._weights[: ids.size]
        # In float64, and as a division: 1 / temperature may overflow, while the quotients become -inf and
        # their weights 0, as they should.
        np.subtract(scores, scores.max(), out=weights, dtype=np.float64)
        with np.errstate(over="ignore"):
            np.divide(weights, s.temperature, out=weights)
        np.exp(weights, out=weights)
        if s.top_p < 1:
            keep = _nucleus(scores, weights, s.top_p, self._scratch)
            ids, weights = ids[keep], weights[keep]
        if s.min_p > 0:
            keep = np.flatnonzero(weights >= s.min_p)
            ids, weights = ids[keep], weights[keep]
        return ids, weights

    def _draw(self, weights: NDArray[np.float64]) -> int:
        """An index into `weights`, with probability in proportion; never one of weight 0."""
        mass = np.cumsum(weights, out=self._mass[: weights.size])
        total = float(mass[-1])
        # From raw bits: NumPy guarantees that a bit generator's stream does not change between versions, but
        # not its distributions.
        uniform = (int(self._bits.random_raw()) >> 11) * 2.0**-53
        # The product may round up to the total, which has no index.
        point = min(uniform * total, math.nextafter(total, 0.0))
        return int(mass.searchsorted(point, side="right"))

    def _top(self, logits: NDArray[np.float32], log_total: float) -> tuple[tuple[int, float], ...]:
        count = self.sampling.logprobs
        if not count:
            return ()
        ids = _sorted_best(logits, count, self._scratch)
        return tuple((int(i), float(logits[i]) - log_total) for i in ids)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _first_bad(logits: NDArray[np.float32]) -> np.intp:
    """Index of the first NaN or +inf."""
    return (np.isnan(logits) | np.isposinf(logits)).argmax()


def _best(values: NDArray[np.float32], k: int, scratch: NDArray[np.float32]) -> NDArray[np.int64]:
    """Indices [min(k, n)] of the k largest of `values` [n]; among equal ones the lower index wins.

    Finds the k-th value by a partition of a copy, in time linear in n. A partition of the indices would
    choose among equal values arbitrarily, and is slower.
    """
    n = values.size
    if k >= n:
        return np.arange(n)
    shuffled = scratch[:n]
    np.copyto(shuffled, values)
    shuffled.partition(n - k)
    kth = shuffled[n - k]
    above = np.flatnonzero(values > kth)
    ties = np.flatnonzero(values == kth)
    return np.concatenate((above, ties[: k - above.size]))


def _sorted_best(values: NDArray[np.float32], k: int, scratch: NDArray[np.float32]) -> NDArray[np.int64]:
    """As `_best`, largest first; equal values by index."""
    best = _best(values, k, scratch)
    return best[np.argsort(-values[best], kind="stable")]


def _nucleus(
    scores: NDArray[np.float32], weights: NDArray[np.float64], top_p: float, scratch: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Indices of the fewest best tokens with at least `top_p` of the weight, at least one, best first.

    Sorts a few of the best tokens, and eight times as many until they suffice. A confident model needs few,
    and sorting a large vocabulary for every token is slow.
    """
    need = top_p * float(weights.sum())
    guess = _FIRST_GUESS
    while True:
        order = _sorted_best(scores, guess, scratch)
        mass = np.cumsum(weights[order])
        if mass[-1] >= need or order.size == scores.size:
            return order[: int(mass.searchsorted(need)) + 1]
        guess *= 8


def log_probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Log-softmax of each row: [rows, vocab] → float64 [rows, vocab]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide

"""How many keys a query passes as it votes in BlockSelect or QuerySelect, for counts of FLOP."""

FIRST, SAMPLED = 128, 1 / 8  # keys that its denominator counts: the first ones, and a share of the others


def passed(keys: float, own: float = 0) -> float:
    """One pass for the denominator, over its keys and own rows, and one over all keys for the votes."""
    return min(keys, FIRST) + max(keys - FIRST, 0) * SAMPLED + own + keys

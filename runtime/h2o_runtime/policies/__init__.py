"""Policies: how a prompt's queries see its past (`prefill`), and how a generated token does (`decode`)."""

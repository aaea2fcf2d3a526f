"""A policy of training as a Python function: it gets a batch, and says which sequences each rank computes together.

The plan passes the checker that every built-in policy passes, and is played by the same engine. What the checker refuses raises
:class:`skrull_sim.ScenarioError` with its words.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Callable, Iterable, Sequence

from . import _native, run
from ._errors import raised
from ._scenario import asked, overrides as _overrides


@dataclasses.dataclass(frozen=True)
class Layout:
    """Parallel degrees."""

    dp: int
    cp: int
    pp: int
    tp: int


@dataclasses.dataclass(frozen=True)
class Batch:
    """What a policy is asked for one optimizer step."""

    #: Tokens of each sequence.
    lengths: list[int]
    #: Model operations of each sequence, forward and backward: what it costs, up to a factor.
    flops: list[float]
    #: Parallel degrees.
    layout: Layout
    #: Tokens that a rank may hold in one micro-batch.
    bucket_tokens: int
    #: Number of the step, from 0.
    step: int


#: A sequence of the batch, by its position: cut over the context group, or whole on one of its ranks.
Place = "int | tuple[int, int]"
#: For each data-parallel group its micro-batches, each a list of places.
Decision = "Sequence[Sequence[Sequence[Place]]]"


def batches(scenario, set=None, seed=None, **overrides) -> list[Batch]:
    """What a policy is asked in each simulated step of a scenario."""
    name, text = asked(scenario)
    found = json.loads(raised(_native.batches, name, text, _overrides(set, overrides), seed))
    layout = Layout(**found["layout"])
    each = enumerate(zip(found["steps"], found["flops"]))
    return [Batch(lengths, flops, layout, found["bucket_tokens"], step) for step, (lengths, flops) in each]


def _placement(batch: Batch, first: int, place) -> dict:
    index, rank = place if isinstance(place, tuple) else (place, None)
    where = "sharded" if rank is None else {"local": int(rank)}
    return {"sequence": first + int(index), "from": 0, "tokens": batch.lengths[index], "place": where}


def play(scenario, policy: Callable[[Batch], Decision], name: str | None = None, set=None, seed=None, **overrides) -> dict:
    """Asks a function for every step, checks what it says, plays it, and returns the row of ``result.json``."""
    items = _overrides(set, overrides)
    source, text = asked(scenario)
    steps, first = [], 0
    for batch in batches(scenario, items, seed):
        groups = [
            [{"sequences": [_placement(batch, first, place) for place in micro_batch], "padding": 0} for micro_batch in group]
            for group in policy(batch)
        ]
        steps.append({"groups": groups})
        first += len(batch.lengths)
    name = name or getattr(policy, "__name__", "policy")
    result = json.loads(raised(_native.play, source, text, items, seed, name, json.dumps(steps)))
    return result["results"][0]


def compare(
    scenario, policies: dict[str, Callable[[Batch], Decision]], built_in: Iterable[str] = (), seeds: Iterable[int] = (0,), set=None, **overrides
) -> list[dict]:
    """Own and built-in policies on the same batches: a dict for each policy and seed, with every metric."""
    items, rows = _overrides(set, overrides), []
    built_in = list(built_in)
    for seed in seeds:
        found = []
        if built_in:
            names = json.dumps(built_in)
            found += run(scenario, [*items, f"policies.run={names}", f'policies.baseline="{built_in[0]}"'], seed).to_dict()["results"]
        found += [play(scenario, policy, name, items, seed) for name, policy in policies.items()]
        rows += [{"seed": seed, "policy": row["policy"], "status": row["status"], **row["metrics"]} for row in found]
    return rows

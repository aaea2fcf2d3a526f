"""Rules of serving as Python functions: a router, a batching rule and a scaler, in place of those of a scenario.

A rule is asked by the one loop that plays every fleet, at the expected costs, and its answer is checked. What is refused raises
:class:`skrull_sim.ScenarioError` with the checker's words; an exception of a rule is raised as it is. A rule may keep a state: it is asked in the
order of simulated time, by one thread that is not the caller's.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Callable, Iterable, Mapping, Sequence

from . import _native, run
from ._errors import raised
from ._native import Group, Interval, Iteration, Prompt, Replica, Request
from ._scenario import asked, overrides as _overrides

__all__ = ["Batch", "Group", "Interval", "Iteration", "Prompt", "Replica", "Request", "compare", "serve"]


@dataclasses.dataclass(frozen=True)
class Batch:
    """What the next iteration of a replica shall hold.

    Blocks are given in the order of ``chunks``; the first request from the queue that finds none ends the admissions.
    """

    #: Numbers of requests, each with the tokens of its prompt that are computed.
    chunks: Sequence[tuple[int, int]] = ()
    #: Whether those that decode take part; all of them do, or none.
    decode: bool = True
    #: Whether a prompt that is admitted takes the blocks of all its tokens at once.
    whole: bool = True


#: The number of the replica that takes a request, one of those that are offered.
Router = "Callable[[Request, list[Replica]], int]"
#: The batch of a replica, asked before every iteration.
Batching = "Callable[[Iteration], Batch]"
#: Replicas of groups by name, within their limits; a group that is left out keeps what it has.
Scaler = "Callable[[Interval], Mapping[str, int]]"


@dataclasses.dataclass
class _Given:
    router: Callable[[Request, list], int] | None = None
    batching: Callable[[Iteration], Batch] | None = None
    scaler: Callable[[Interval], Mapping[str, int]] | None = None
    interval_s: float | None = None


def serve(
    scenario, router=None, batching=None, scaler=None, interval_s=None, policy=None, name=None, set=None, seed=None, **overrides
) -> dict:
    """Serves a scenario with functions in place of rules of a policy (the baseline, where none is named); its row of ``result.json``.

    A scaler needs a group with ``scaling`` in the scenario, whose limits hold; ``interval_s`` is how often it is asked, else as often as the
    scenario's own rule decides. The row has no intervals: costs are those that are expected.
    """
    given = _Given(router, batching, scaler, interval_s)
    rules = [rule for rule in (router, batching, scaler) if rule is not None]
    if not rules:
        raise TypeError("serve() needs a router, a batching rule or a scaler")
    source, text = asked(scenario)
    row = json.loads(raised(_native.serve_by, source, text, _overrides(set, overrides), seed, policy, given))
    row["policy"] = name or getattr(rules[0], "__name__", "own")
    return row


def _flat(figures: dict, before: str = "") -> dict:
    """``{"ttft_s": {"mean": 1}}`` as ``{"ttft_s.mean": 1}``."""
    flat = {}
    for key, value in figures.items():
        flat.update(_flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value})
    return flat


def compare(
    scenario, own: Mapping[str, Callable[[], dict]], built_in: Iterable[str] = (), seeds: Iterable[int] = (0,), set=None, **overrides
) -> list[dict]:
    """Own and built-in rules on the same requests: a dict for each of them and each seed, with every metric.

    ``own`` maps a name to a function that makes the rules as arguments of :func:`serve`, anew for each seed:
    ``{"mine": lambda: {"router": shortest_queue()}}``. ``built_in`` are policies of the scenario.
    """
    items, rows = _overrides(set, overrides), []
    built_in = list(built_in)
    for seed in seeds:
        found = []
        if built_in:
            played = run(scenario, items, seed).to_dict()["results"]
            found += [row for row in played if row["policy"] in built_in]
            missing = sorted({*built_in} - {row["policy"] for row in found})
            if missing:
                raise KeyError(f"the scenario has no policy {', '.join(missing)}")
        found += [serve(scenario, **make(), name=name, set=items, seed=seed) for name, make in own.items()]
        rows += [{"seed": seed, "policy": row["policy"], "status": row["status"], **_flat(row["metrics"])} for row in found]
    return rows

"""Rules of serving as functions: by hand they equal the built-in ones, wrong answers are refused, and a comparison over seeds."""

import math
import threading

import pytest

import skrull_sim
from skrull_sim import rules
from skrull_sim.rules import Batch

ROUTERS = {"trace.requests": 300}
ONE = {"trace.requests": 200, "policies.run": ["vllm-v1", "sarathi"], "policies.baseline": "sarathi"}


def in_turn():
    turns = 0

    def route(request, replicas):
        nonlocal turns
        turns += 1
        return replicas[(turns - 1) % len(replicas)].index

    return route


def least_requests(request, replicas):
    return min(replicas, key=lambda replica: (replica.requests, replica.index)).index


def first_come(iteration):
    room, places, chunks = iteration.tokens_max - iteration.decode_tokens, iteration.sequences_max - iteration.running, []
    for prompt in iteration.prompts + iteration.waiting[:places]:
        if room == 0:
            break
        chunks.append((prompt.request, min(prompt.tokens_max, room)))
        room -= chunks[-1][1]
    return Batch(chunks)


def autoscaler(target, window, group):
    """As many replicas as keep the requests of each at a target; more at once, fewer after the window."""
    wishes = []

    def scale(interval):
        found = interval.groups[group]
        wishes.append(min(max(math.ceil(found.requests / target), 1), 6))
        return {group: wishes[-1] if wishes[-1] > found.current else min(max(wishes[-window:]), found.current)}

    return scale


def test_routers_by_hand_are_the_built_in_ones():
    built_in = skrull_sim.run("serving/routers", ROUTERS)
    assert rules.serve("serving/routers", router=in_turn(), set=ROUTERS)["metrics"] == built_in["even"]["metrics"]
    least = rules.serve("serving/routers", router=least_requests, set=ROUTERS, name="mine")
    assert least["policy"] == "mine" and "by an own router" in least["why"]
    assert least["metrics"] == built_in["least-loaded"]["metrics"]


def test_a_batching_rule_by_hand_is_the_built_in_one():
    own = rules.serve("serving/azure-conv", batching=first_come, set=ONE)
    assert own["metrics"] == skrull_sim.run("serving/azure-conv", ONE)["sarathi"]["metrics"]


def test_a_scaler_by_hand_is_the_autoscaler():
    items = {"trace.requests": 3000, "policies.run": ["autoscaled"], "policies.baseline": "autoscaled"}
    # A peak that begins at once, so that something happens.
    items["trace.schedule"] = [{"from_s": 0, "rate_per_s": 26.0}, {"from_s": 80, "rate_per_s": 2.0}]
    built_in = skrull_sim.run("serving/mixed-fleet", items)["autoscaled"]["metrics"]
    own = rules.serve("serving/mixed-fleet", scaler=autoscaler(24, 20, "scaled"), set=items)
    assert built_in["n_started"] > 0 and built_in["n_stopped"] > 0
    assert own["metrics"] == built_in


@pytest.mark.parametrize(
    "given, words",
    [
        ({"router": lambda request, replicas: 99}, "replica 99, and the fleet has 0 to 11"),
        ({"batching": lambda iteration: Batch([(10**6, 1)])}, "request 1000000 neither waits nor is under way here"),
        ({"batching": lambda iteration: Batch([(p.request, p.tokens_max) for p in iteration.waiting] * 2)}, "is in the batch twice"),
        ({"batching": lambda iteration: Batch()}, "the batch is empty"),
        ({"scaler": lambda interval: {}}, "no group of the fleet scales"),
    ],
)
def test_what_is_wrong_is_refused_with_the_words_of_the_checker(given, words):
    with pytest.raises(skrull_sim.ScenarioError, match=words):
        rules.serve("serving/routers", set=ROUTERS, **given)


def test_scalers_stay_within_the_limits_of_their_groups():
    for answer, words in [({"scaled": 7}, "which has 1 to 6"), ({"base": 1}, "which has 2 to 2"), ({"other": 1}, "names group 'other'")]:
        with pytest.raises(skrull_sim.ScenarioError, match=words):
            rules.serve("serving/mixed-fleet", scaler=lambda interval: answer, policy="autoscaled", set={"trace.requests": 500})


def test_an_exception_of_a_rule_is_raised_as_it_is():
    asked = []

    def fails(request, replicas):
        asked.append(request.index)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        rules.serve("serving/routers", router=fails, set=ROUTERS)
    assert asked == [0]
    with pytest.raises(TypeError):
        rules.serve("serving/routers", router=lambda request, replicas: "first", set=ROUTERS)
    with pytest.raises(skrull_sim.ScenarioError, match="not of kind `serving`"):
        rules.serve("quickstart", router=least_requests)
    with pytest.raises(skrull_sim.ScenarioError, match="no policy `none` serves"):
        rules.serve("serving/routers", router=least_requests, policy="none")


def test_rules_are_asked_beside_other_threads():
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.001):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        rules.serve("serving/routers", router=least_requests, set={"trace.requests": 2000})
    finally:
        done.set()
        thread.join()
    assert ticks


def test_an_own_router_is_compared_with_built_in_ones_over_seeds():
    def most_memory(request, replicas):
        return max(replicas, key=lambda replica: (replica.free_blocks, -replica.index)).index

    built_in = ["even", "least-loaded", "planned"]
    rows = rules.compare("serving/routers", {"memory": lambda: {"router": most_memory}}, built_in, seeds=range(3), set=ROUTERS)
    assert [row["policy"] for row in rows] == (built_in + ["memory"]) * 3
    assert all(row["status"] == "ok" and row["ttft_s.mean"] > 0 for row in rows)
    with pytest.raises(KeyError, match="no policy nothing"):
        rules.compare("serving/routers", {}, ["nothing"], set=ROUTERS)

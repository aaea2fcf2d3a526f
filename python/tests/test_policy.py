"""A researcher's path: an own policy, compared with built-in ones over ten seeds, and a plot."""

import pytest

import skrull_sim
from skrull_sim import policy

SCENARIO = "quickstart"
SET = {"training.steps": 1, "training.batch_size": 64}


def longest_first(batch):
    """Deals sequences to data-parallel groups by operations; whole on the emptiest rank where they fit, else cut over the group."""
    dp, cp, room = batch.layout.dp, batch.layout.cp, batch.bucket_tokens
    order = sorted(range(len(batch.lengths)), key=lambda i: -batch.flops[i])
    groups, work = [[] for _ in range(dp)], [0.0] * dp
    for i in order:
        group = work.index(min(work))
        work[group] += batch.flops[i]
        groups[group].append(i)
    return [packed(batch, group, cp, room) for group in groups]


def packed(batch, group, cp, room):
    done, places, load = [], [], [0] * cp
    for i in group:
        rank, shard = load.index(min(load)), -(-batch.lengths[i] // cp)
        whole = load[rank] + batch.lengths[i] <= room
        if places and not whole and max(load) + shard > room:
            done, places, load = done + [places], [], [0] * cp
            rank, whole = 0, batch.lengths[i] <= room
        places.append((i, rank) if whole else i)
        load = [tokens + (batch.lengths[i] if r == rank else 0) if whole else tokens + shard for r, tokens in enumerate(load)]
    return done + [places]


def test_an_own_policy_is_compared_with_three_built_in_ones_over_ten_seeds(tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plot

    built_in = ["deepspeed", "longalign", "skrull"]
    rows = policy.compare(SCENARIO, {"mine": longest_first}, built_in, seeds=range(10), set=SET)
    assert len(rows) == 40 and all(row["status"] == "ok" for row in rows)
    names = built_in + ["mine"]
    times = [[row["iteration_time_s"] for row in rows if row["policy"] == name] for name in names]
    plot.boxplot(times)
    plot.xticks(range(1, 5), names)
    plot.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_a_plan_that_is_wrong_is_refused_with_the_words_of_the_checker():
    def forgets(batch):
        groups = longest_first(batch)
        groups[0][0].pop()
        return groups

    with pytest.raises(skrull_sim.ScenarioError, match="checker refuses"):
        policy.play(SCENARIO, forgets, set=SET)

    def overfills(batch):
        return [[list(range(len(batch.lengths)))]] + [[] for _ in range(batch.layout.dp - 1)]

    # Too much for a rank is refused, or ends as out of memory.
    try:
        assert policy.play(SCENARIO, overfills, set=SET)["status"] == "oom"
    except skrull_sim.ScenarioError as error:
        assert "checker" in str(error)


def test_a_built_in_plan_played_as_an_own_one_has_the_same_figures():
    plan = skrull_sim.plan(SCENARIO, "skrull", SET)

    def again(batch):
        place = lambda p: p["sequence"] if p["place"] == "sharded" else (p["sequence"], p["place"]["local"])
        return [[[place(p) for p in micro["sequences"]] for micro in group] for group in plan["steps"][batch.step]["groups"]]

    own = policy.play(SCENARIO, again, set=SET)
    built_in = skrull_sim.run(SCENARIO, {**SET, "policies.run": ["skrull"], "policies.baseline": "skrull"})["skrull"]
    assert own["metrics"]["iteration_time_s"] == built_in["metrics"]["iteration_time_s"]

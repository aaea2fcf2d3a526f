"""Makes plans of a planned deployment that no shipped scenario has: groups of pods over two nodes, and replicas with roles."""

import copy
import json
import pathlib
import sys


def over(plan, gpus, roles):
    """One replica of so many GPUs for each role, on machines of their own."""
    plan = copy.deepcopy(plan)
    deployment = plan["deployments"][0]
    machine, replica = deployment["machines"][0], deployment["replicas"][0]
    deployment["routes"], deployment["replicas"] = [], []
    machine["n_gpus"] = gpus * len(roles)
    deployment["machines"] = [machine]
    for at, role in enumerate(roles):
        stage = {**replica["stages"][0], "gpus": {"first": at * gpus, "end": (at + 1) * gpus}, "tensor": gpus, "machine": 0}
        deployment["replicas"].append({**replica, "name": role, "role": role, "copies": 1, "stages": [stage]})
    return plan


source, folder = map(pathlib.Path, sys.argv[1:])
plan = json.loads(source.read_text())
for name, gpus, roles in [("groups", 16, ["both"]), ("roles", 2, ["prefill", "decode"])]:
    (folder / f"{name}.json").write_text(json.dumps(over(plan, gpus, roles)))

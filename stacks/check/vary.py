"""Makes plans of a planned deployment that no shipped scenario has: ways to share the GPUs, roles, engines, and each setting of an engine alone.

usage: vary.py PLAN FOLDER; the plans are FOLDER/NAME/plan.json
"""

import copy
import json
import pathlib
import sys

# Model, and its layers.
DENSE, LARGE, EXPERTS, DRAFTING = ("llama-3-8b", 32), ("llama-3-70b", 80), ("mixtral-8x7b", 32), ("deepseek-v3", 61)
# Name: the model, GPUs of a stage, its tensor degree, stages, roles.
LAYOUTS = {
    "one": (DENSE, 1, 1, 1, ["both"]),
    "tensor": (DENSE, 4, 4, 1, ["both"]),
    "stages": (DENSE, 2, 2, 4, ["both"]),
    "ranks": (EXPERTS, 8, 2, 1, ["both"]),
    "roles": (DENSE, 2, 2, 1, ["prefill", "decode"]),
    "roles-ranks": (EXPERTS, 8, 2, 1, ["prefill", "decode"]),
    "groups": (LARGE, 16, 16, 1, ["both"]),
    "groups-stages": (LARGE, 8, 8, 2, ["both"]),
    "groups-ranks": (EXPERTS, 16, 4, 1, ["both"]),
    "groups-roles": (LARGE, 16, 16, 1, ["prefill", "decode"]),
}
# Fields of an engine besides those of the plan.
ENGINES = {
    "": {},
    "prefixes": {"prefix_cache": True},
    "short": {"context_max": 2048, "tokens_max": 512, "sequences_max": 16},
    "blocks": {"block_tokens": 32, "tokens_max": 8192},
    "token": {"block_tokens": 1},
    "wait": {"batch_wait": {"iterations": 20, "tokens": 512}},
    "recv": {"recv_interval": 4},
}
# What a scenario writes besides, one at a time.
SETTINGS = [
    {"engine.graph_max": 0},
    {"engine.graph_max": 64},
    {"engine.kv_blocks": 4000},
    {"engine.loop": "async"},
    {"engine.loop": "serial"},
    {"engine.memory_ratio": 0.8},
    {"engine.preemption": "recompute"},
    {"engine.scheduling": "fcfs"},
    {"engine.scheduling": "priority"},
    {"engine.speculation": {"draft_tokens": 3, "acceptance": 0.7}},
    {"engine.speculation": {"draft_tokens": 3, "acceptance": 0.7, "draft_model": "llama-3-8b"}},
    {"engine.speculation": {"draft_tokens": 2, "acceptance": 0.7, "draft_model": "mtp"}},
    {"engine.tiers": {"host_gib": 64}},
    {"engine.encoder_tp": "data"},
    {"engine.watermark_ratio": 0.05},
    {"engine.weights": "fp8"},
    {"engine.weights": {"format": "bf16", "kv": "fp8"}},
    {"engine.host_us_per_step": 100, "trace.timeout_s": 60},
]


def over(plan, layout, engine, settings):
    """One replica for each role, on machines of their own."""
    (model, n_layers), gpus, tensor, n_stages, roles = layout
    plan = copy.deepcopy(plan)
    deployment = plan["deployments"][0]
    machine, replica = deployment["machines"][0], deployment["replicas"][0]
    replica["engine"].update(engine)
    machine["n_gpus"] = gpus * n_stages * len(roles)
    deployment.update(model=model, n_layers=n_layers, routes=[], replicas=[], machines=[machine])
    each = n_layers // n_stages
    for role in roles:
        first = gpus * n_stages * len(deployment["replicas"])
        stages = [
            {
                "gpus": {"first": first + at * gpus, "end": first + (at + 1) * gpus},
                "layers": {"first": at * each, "end": (at + 1) * each},
                "tensor": tensor,
                "machine": 0,
            }
            for at in range(n_stages)
        ]
        deployment["replicas"].append({**replica, "name": role, "role": role, "copies": 1, "stages": stages})
    return {**plan, "deployments": [deployment], "settings": settings}


def cases():
    """Names, layouts, fields of the engine, settings."""
    for name, layout in LAYOUTS.items():
        yield name, layout, {}, {}
    for name, engine in ENGINES.items():
        if name:
            yield name, LAYOUTS["tensor"], engine, {}
    for at, settings in enumerate(SETTINGS):
        key = next(iter(settings)).replace("engine.", "").replace("_", "-")
        if "mtp" in json.dumps(settings):
            yield f"{key}-{at}", (DRAFTING, 16, 16, 1, ["both"]), {}, settings
            continue
        yield f"{key}-{at}", LAYOUTS["tensor"], {}, settings
        if key == "speculation":
            yield f"{key}-{at}-roles", LAYOUTS["roles"], {}, settings


if __name__ == "__main__":
    source, folder = map(pathlib.Path, sys.argv[1:])
    plan = json.loads(source.read_text())
    for batcher in ("vllm-v1", "sglang", "trtllm"):
        for name, layout, engine, settings in cases():
            path = folder / f"{name}-{batcher}" / "plan.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(over(plan, layout, {"batcher": batcher, **engine}, settings)))

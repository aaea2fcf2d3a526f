"""Asks PyTorch's own validator of pipeline schedules about files: every action in an order that its data allow.

usage: python validate_schedule.py schedule.csv …
"""

import csv
import sys

import torch
from torch.distributed.pipelining.schedules import _Action, _validate_schedule


def actions_of(path):
    with open(path, newline="") as file:
        return {rank: [_Action.from_str(cell) for cell in row if cell] for rank, row in enumerate(csv.reader(file))}


for path in sys.argv[1:]:
    actions = actions_of(path)
    every = [action for rank in actions.values() for action in rank]
    n_stages = max(action.stage_index for action in every) + 1
    n_micro_batches = max(action.microbatch_index for action in every) + 1
    rank_of_stage = _validate_schedule(actions, len(actions), n_stages, n_micro_batches)
    print(f"torch {torch.__version__}: {len(every)} actions of {n_stages} stages and {n_micro_batches} micro-batches are valid; ranks {rank_of_stage}")

"""Runs a schedule.csv in PyTorch's pipeline runtime on CPU processes: the loss and gradients of one process, and the order of the file.

usage: python pytorch_schedule.py schedule.csv [loop|v]
"""

import csv
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

WIDTH = 16
ROWS = 3


def actions_of(path):
    with open(path, newline="") as file:
        return [[cell for cell in row if cell] for row in csv.reader(file)]


def shape_of(ranks):
    """Stages and micro-batches that a file speaks of."""
    parsed = [_Action.from_str(cell) for rank in ranks for cell in rank]
    return max(a.stage_index for a in parsed) + 1, max(a.microbatch_index for a in parsed) + 1


def layers(n_stages):
    torch.manual_seed(0)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(n_stages)]


def loss_of(output, target):
    return torch.nn.functional.mse_loss(output, target)


def data(n_micro_batches):
    torch.manual_seed(1)
    rows = ROWS * n_micro_batches
    return torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)


def rank_of(stage, n_ranks, style):
    turn = stage // n_ranks
    inside = stage % n_ranks
    return n_ranks - 1 - inside if style == "v" and turn % 2 else inside


def alone(n_stages, n_micro_batches):
    """Loss of each micro-batch and gradients of each stage in one process."""
    model = layers(n_stages)
    inputs, targets = data(n_micro_batches)
    losses = []
    for x, y in zip(inputs.chunk(n_micro_batches), targets.chunk(n_micro_batches)):
        for layer in model:
            x = layer(x)
        loss = loss_of(x, y)
        (loss / n_micro_batches).backward()
        losses.append(loss.item())
    return losses, [[p.grad.clone() for p in layer.parameters()] for layer in model]


def run(rank, path, style, port):
    ranks = actions_of(path)
    n_ranks, (n_stages, n_micro_batches) = len(ranks), shape_of(ranks)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=n_ranks)
    model = layers(n_stages)
    places = {stage: rank_of(stage, n_ranks, style) for stage in range(n_stages)}
    own = [stage for stage, place in places.items() if place == rank]
    # What comes from another stage has a gradient, the data has none.
    example = [torch.zeros(ROWS, WIDTH, requires_grad=needs) for needs in (False, True)]
    stages = [
        PipelineStage(model[i], i, n_stages, torch.device("cpu"), input_args=example[i > 0], output_args=example[1])
        for i in own
    ]
    for stage in stages:
        stage.stage_index_to_group_rank = places
    schedule = _PipelineScheduleRuntime(stages, n_micro_batches, loss_fn=loss_of)
    schedule.stage_index_to_group_rank = places
    schedule._load_csv(path)
    kept = {"F", "I", "W", "B"}
    played = [str(a) for a in schedule.pipeline_order_with_comms[rank] if a is not None]
    played = [a for a in played if a.lstrip("0123456789")[:1] in kept and a.lstrip("0123456789")[1:].isdigit()]
    assert played == ranks[rank], (rank, played, ranks[rank])
    inputs, targets = data(n_micro_batches)
    losses = []
    arguments = [inputs] if 0 in own else []
    keywords = {"target": targets, "losses": losses} if n_stages - 1 in own else {}
    schedule.step(*arguments, **keywords)
    expected, gradients = alone(n_stages, n_micro_batches)
    for stage in own:
        for found, wanted in zip(model[stage].parameters(), gradients[stage]):
            torch.testing.assert_close(found.grad, wanted)
    if losses:
        torch.testing.assert_close(torch.tensor([loss.item() for loss in losses]), torch.tensor(expected))
        mean = sum(expected) / len(expected)
        print(f"{path}: {n_ranks} ranks, {n_stages} stages, {n_micro_batches} micro-batches: loss {mean:.6f} as in one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    path = sys.argv[1]
    style = sys.argv[2] if len(sys.argv) > 2 else "loop"
    mp.spawn(run, args=(path, style, 29_400 + hash(path) % 500), nprocs=len(actions_of(path)))

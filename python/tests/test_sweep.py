"""Sweeps from Python: rows, frames on disk, and parts over Ray with the same bytes."""

import threading
import time

import polars
import pytest

import skrull_sim

SET = {"training.steps": [1, 2], ("parallel.dp", "parallel.cp"): [(4, 8), (8, 4), (8, 8)]}
SETTINGS = {"seeds": 2, "chunk": 3, "front": {"least": ["iteration_time_s", "peak_memory_bytes"]}}


def test_a_sweep_has_a_row_for_each_point_and_resumes(tmp_path):
    rows = skrull_sim.sweep("quickstart", SET, tmp_path, **SETTINGS)
    assert len(rows) == 12
    # 64 ranks do not fit 32 GPUs.
    assert [row["status"] for row in rows].count("wrong") == 4
    before = (tmp_path / "points.jsonl").read_bytes()
    (tmp_path / "points.jsonl").write_bytes(before[: len(before) // 2])
    assert skrull_sim.sweep("quickstart", SET, tmp_path, **SETTINGS) == rows
    assert (tmp_path / "points.jsonl").read_bytes() == before
    frame = polars.read_parquet(tmp_path / "points.parquet")
    assert {"parallel.dp", "training.steps", "seed", "policy", "iteration_time_s"} <= set(frame.columns)
    assert "Front" in (tmp_path / "report.html").read_text()


def test_parts_over_ray_are_the_bytes_of_one_process(tmp_path):
    ray = pytest.importorskip("ray")
    ray.shutdown()
    one = skrull_sim.sweep("quickstart", SET, tmp_path / "one", **SETTINGS)
    many = skrull_sim.sweep("quickstart", SET, tmp_path / "many", ray="local", tasks=4, **SETTINGS)
    assert one == many
    assert (tmp_path / "one/points.jsonl").read_bytes() == (tmp_path / "many/points.jsonl").read_bytes()


def test_a_node_that_is_killed_in_the_middle_loses_nothing(tmp_path):
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    ray.shutdown()
    more = {**SETTINGS, "seeds": 12}
    skrull_sim.sweep("quickstart", SET, tmp_path / "one", **more)
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    many, tasks, left = tmp_path / "many", 12, []

    def kill_in_the_middle():
        while len(list(many.glob("points-*-of-*.jsonl"))) < 3:
            time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)
        left.append(tasks - len(list(many.glob("points-*-of-*.jsonl"))))

    killer = threading.Thread(target=kill_in_the_middle)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        killer.start()
        rows = skrull_sim.sweep("quickstart", SET, many, ray=cluster.address, tasks=tasks, **more)
        killer.join()
        # The head hears of it by a message that is missing, which takes some seconds.
        deadline = time.monotonic() + 120
        while sum(node["Alive"] for node in ray.nodes()) != 1:
            assert time.monotonic() < deadline, "the node is gone"
            time.sleep(0.1)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert left and left[0] > 0, "the node was killed before the last part"
    assert len({row["key"] for row in rows}) == len(rows) == 72
    assert (tmp_path / "one/points.jsonl").read_bytes() == (many / "points.jsonl").read_bytes()

"""Runs, frames and errors. The oracle of figures is the command line, and for frames the libraries that read them."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest

import skrull_sim

ROOT = pathlib.Path(__file__).parents[2]
SMALL = {"policies.run": ["deepspeed", "skrull"], "policies.baseline": "deepspeed", "training.steps": 1}
UNITS = """
[model]
name = "qwen2.5-0.5b"
[cluster]
gpu = "h100-sxm"
nodes = 1
[parallel]
dp = 8
[training]
batch_size = 8
bucket_tokens = 4096
[workload]
list = [1000, 2000, 3000, 4000, 100, 200, 300, 400]
[policies]
run = ["deepspeed"]
"""


def without_measured(text):
    """What is a function of scenario, seed and version."""
    result = json.loads(text)
    result.pop("measured")
    for row in result["results"]:
        row.pop("measured")
    return result


def test_a_run_is_the_one_of_the_command_line(tmp_path):
    found = skrull_sim.run("quickstart", SMALL)
    printed = skrull_sim.command(
        "run", "quickstart", "--format", "json", "--out", tmp_path, *(f"--set={key}={json.dumps(value)}" for key, value in SMALL.items())
    )
    assert without_measured(found.json) == without_measured(printed)
    assert [row["policy"] for row in found.to_dict()["results"]] == ["deepspeed", "skrull"]


def test_a_scenario_is_a_text_a_dict_or_a_path(tmp_path):
    import tomllib

    (tmp_path / "s.toml").write_text(UNITS)
    each = [skrull_sim.run(given) for given in (UNITS, tomllib.loads(UNITS), tmp_path / "s.toml")]
    times = {run["deepspeed"]["metrics"]["iteration_time_s"] for run in each}
    assert len(times) == 1
    assert skrull_sim.run(UNITS, cluster__gpu="a100-sxm-80g")["deepspeed"]["metrics"]["iteration_time_s"] not in times


def test_frames_are_read_by_every_library_and_hold_the_figures():
    found = skrull_sim.run("quickstart", SMALL)
    row = found["skrull"]["metrics"]
    frame = polars.DataFrame(found.results)
    assert frame.filter(polars.col("policy") == "skrull")["iteration_time_s"].item() == row["iteration_time_s"]
    table = pyarrow.table(found.results)
    assert table.to_pandas().set_index("policy").loc["skrull", "iteration_time_s"] == row["iteration_time_s"]
    tasks = pandas.DataFrame(found.timeline.to_dict())
    tasks = tasks[tasks["policy"] == "skrull"]
    # One step is drawn, and the figure is the mean over one step.
    assert tasks["end_s"].max() - tasks["start_s"].min() == pytest.approx(row["iteration_time_s"], rel=1e-9)
    memory = polars.DataFrame(found.memory).filter(polars.col("policy") == "skrull")
    assert memory["memory_bytes"].max() == row["peak_memory_bytes"]
    assert len(found.lengths) == 256
    assert pyarrow.table(found.timeline).num_rows == len(found.timeline)


def test_a_frame_outlives_its_run_and_its_capsule():
    table = pyarrow.table(skrull_sim.run(UNITS).timeline)
    import gc

    gc.collect()
    assert table.column("end_s").to_pylist() and set(table.column("policy").to_pylist()) == {"deepspeed"}
    # A capsule that nobody takes releases itself.
    skrull_sim.run(UNITS).results.__arrow_c_stream__()


def test_parquet_is_what_other_readers_read(tmp_path):
    frame = skrull_sim.run("quickstart", SMALL).timeline
    (tmp_path / "t.parquet").write_bytes(frame.to_parquet())
    expected = pyarrow.table(frame)
    read = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    assert read.to_pydict() == expected.to_pydict()
    assert polars.read_parquet(tmp_path / "t.parquet").height == len(frame)


def test_requests_of_a_serving_scenario_are_rows():
    found = skrull_sim.run("serving/azure-conv", {"trace.requests": 200})
    frame = polars.DataFrame(found.requests)
    policies = [row["policy"] for row in found.to_dict()["results"]]
    assert frame.height == 200 * len(policies)
    assert {"ttft_s", "prompt_tokens"} <= set(frame.columns)


def test_wrong_input_is_an_error_with_findings():
    with pytest.raises(skrull_sim.ScenarioError) as error:
        skrull_sim.run("quickstart", {"training.batch_sise": 8})
    finding = error.value.findings[0]
    assert (finding.code, finding.severity) == ("S014", "error")
    assert error.value.exit_code == 2
    with pytest.raises(skrull_sim.ScenarioError) as error:
        skrull_sim.run(UNITS.replace("batch_size = 8", 'batch_size = "eight"'))
    finding = error.value.findings[0]
    # The place is that of the text between the quotation marks.
    assert (finding.line, finding.column) == (10, 15)
    with pytest.raises(skrull_sim.ScenarioError, match="did you mean"):
        skrull_sim.run("quickstrat")
    with pytest.raises(skrull_sim.ScenarioError):
        skrull_sim.command("no-such-verb")
    for bad in sorted((ROOT / "scenarios/bad").glob("*.toml")):
        try:
            skrull_sim.run(bad)
        except skrull_sim.ScenarioError as error:
            assert error.findings or str(error)


def test_the_lock_is_released_and_ctrl_c_stops():
    counted = 0
    thread = threading.Thread(target=lambda: skrull_sim.run("quickstart"))
    thread.start()
    while thread.is_alive():
        counted += 1
        time.sleep(0.001)
    assert counted > 10
    code = "import skrull_sim; print('begun', flush=True); skrull_sim.run('serving/azure-conv', {'trace.requests': 19000000})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    time.sleep(1)
    os.kill(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in told


def test_verbs_are_those_of_the_command_line(tmp_path):
    plan = skrull_sim.plan("quickstart", "deepspeed", SMALL)
    assert plan["schema"] == "skrull-sim/plan/1" and plan["policy"] == "deepspeed"
    assert skrull_sim.export(skrull_sim.plan("megatron/gpt-7.5b-128"), "megatron", tmp_path)
    found = skrull_sim.compare("quickstart", seeds=2, set=SMALL)
    assert "iteration_time_s" in json.dumps(found)
    imported = skrull_sim.import_(_script(tmp_path), "--gpu", "h100-sxm")
    assert "[cluster]" in imported and "h100-sxm" in imported
    with pytest.raises(skrull_sim.ScenarioError) as error:
        skrull_sim.compare("quickstart", seeds=1, set=SMALL, gates=["iteration_time_s<=0.0001x"])
    assert error.value.exit_code == 1


def _script(folder):
    path = folder / "launch.sh"
    path.write_text(
        "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 "
        "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 32 --bf16\n"
    )
    return path


def test_every_shipped_scenario_validates_by_the_published_validator():
    import jsonschema
    import tomllib

    schema = skrull_sim.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in (ROOT / "scenarios").rglob("*.toml"):
        if path.parent.name != "bad":
            assert not list(validator.iter_errors(tomllib.loads(path.read_text()))), path


def test_a_notebook_shows_the_report():
    assert "<iframe" in skrull_sim.run(UNITS)._repr_html_()
    assert "deepspeed" in repr(skrull_sim.run(UNITS))

"""Many points of a scenario, on this machine or over Ray."""

from __future__ import annotations

import json
import pathlib
import shutil
import tempfile

from . import _native
from ._errors import raised
from ._scenario import asked, text as _text

TASKS_PER_CORE = 8


def _axis(key, values) -> dict:
    keys = {"keys": list(key)} if isinstance(key, tuple) else {"key": key}
    return {**keys, **values} if isinstance(values, dict) else {**keys, "values": list(values)}


def _files(folder: pathlib.Path, scenario, axes: dict, settings: dict) -> pathlib.Path:
    """A sweep file, and the scenario beside it where it is given as a text or a dict."""
    name, found = asked(scenario)
    if found is not None:
        (folder / "scenario.toml").write_text(found, encoding="utf-8")
        name = "scenario.toml"
    elif pathlib.Path(name).is_file():
        name = str(pathlib.Path(name).resolve())
    front = settings.pop("front", None)
    top = {"scenario": name, **settings, "axis": [_axis(key, values) for key, values in axes.items()]}
    path = folder / "sweep.toml"
    path.write_text(_text({**top, **({"front": front} if front else {})}), encoding="utf-8")
    return path


def _shard(file_text: str, scenario_text: str | None, index: int, n: int) -> str:
    """Runs one part in a folder of its own; the rows that came of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "sweep.toml").write_text(file_text, encoding="utf-8")
        if scenario_text is not None:
            (folder / "scenario.toml").write_text(scenario_text, encoding="utf-8")
        out = folder / "out"
        # A task holds one core of its node.
        one = ["--jobs", "1", "--shard", f"{index}/{n}"]
        raised(_native.perform, ["sweep", str(folder / "sweep.toml"), "--quiet", "--no-progress", "--out", str(out), *one])
        return (out / f"points-{index}-of-{n}.jsonl").read_text(encoding="utf-8")


def sweep(scenario, axes: dict, out, ray: str | None = None, tasks: int | None = None, window: int | None = None, until=None, **settings) -> list[dict]:
    """Runs every point and returns its rows, as ``points.jsonl`` in ``out`` has them; what is there already is not run again.

    ``axes`` maps a key, or a tuple of keys that change together, to values or to a range such as ``{"from": 1, "to": 64, "steps": 7}``.
    ``settings`` are the other keys of a sweep file: ``sample``, ``points``, ``seed``, ``seeds``, ``where``, ``chunk``, ``front``.
    ``ray`` is the address of a cluster, or ``"local"``; parts then run there as ``tasks`` tasks of one core, ``window`` of them at a time.
    Left out, there are eight tasks for each core of the cluster, and as many wait as keep every core busy.
    """
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = _files(folder, scenario, axes, dict(settings))
        if ray is not None:
            _over_ray(ray, path, out, tasks, window)
        arguments = ["sweep", str(path), "--quiet", "--no-progress", "--out", str(out)]
        raised(_native.perform, arguments + ([] if until is None else ["--until", str(until)]))
    return [json.loads(line) for line in (out / "points.jsonl").read_text(encoding="utf-8").splitlines()]


def _over_ray(address: str, path: pathlib.Path, out: pathlib.Path, tasks: int | None, window: int | None) -> None:
    """Parts as tasks; the driver keeps their rows, where the run that follows finds them. A task whose node is lost runs again."""
    import ray

    beside = path.parent / "scenario.toml"
    texts = (path.read_text(encoding="utf-8"), beside.read_text(encoding="utf-8") if beside.exists() else None)
    if not ray.is_initialized():
        ray.init(address=None if address == "local" else address, include_dashboard=False, log_to_driver=False)
    # Parts are of about equal length, and the last ones leave the other cores idle: an eighth of a core's share at most.
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
    # Parts of an earlier call keep their number, so that what they have is not run again.
    begun = [int(part.stem.rsplit("-", 1)[1]) for part in out.glob("points-*-of-*.jsonl")]
    n = tasks or max(begun, default=TASKS_PER_CORE * cores)
    window = window or max(2 * cores, 64)
    remote = ray.remote(max_retries=3, num_cpus=1)(_shard)
    left = [index for index in range(1, n + 1) if not (out / f"points-{index}-of-{n}.jsonl").exists()]
    running = {}
    while left or running:
        while left and len(running) < window:
            index = left.pop(0)
            running[remote.remote(*texts, index, n)] = index
        done, _ = ray.wait(list(running), num_returns=1)
        index = running.pop(done[0])
        target = out / f"points-{index}-of-{n}.jsonl"
        # A name that appears is a whole file.
        part = target.with_suffix(".part")
        part.write_text(ray.get(done[0]), encoding="utf-8")
        shutil.move(part, target)

"""Simulate and plan training and serving of large models before paying for the GPUs.

A scenario is a path, the name of a shipped one, TOML text (anything with a line break or a ``=``), or a dict of its sections.
Keys are laid over it by name, and checked like the file: ``run("quickstart", training__steps=1)`` or ``run("quickstart", {"training.steps": 1})``.
"""

from __future__ import annotations

import json as _json
import pathlib as _pathlib
import tempfile as _tempfile

from . import _native
from ._errors import DefectError, Finding, ScenarioError, raised as _raised
from ._scenario import asked as _asked, file as _file, overrides as _overrides

__version__ = _native.__version__
Frame = _native.Frame
__all__ = [
    "DefectError", "Finding", "Frame", "Result", "ScenarioError", "calibrate", "capacity", "command", "compare", "export", "import_", "plan",
    "policy", "rules", "run", "schema", "search", "sweep", "tune", "validate",
]


class Result:
    """What came of a scenario: figures as ``result.json`` has them, frames, and a report that notebooks show."""

    def __init__(self, native):
        self._native = native

    @property
    def json(self) -> str:
        """The text of ``result.json``, as the command line writes it."""
        return _raised(self._native.json)

    def to_dict(self) -> dict:
        """``result.json`` as a dict."""
        return _json.loads(self.json)

    def __getitem__(self, policy: str) -> dict:
        """The row of a policy."""
        for row in self.to_dict()["results"]:
            if row["policy"] == policy:
                return row
        raise KeyError(policy)

    @property
    def warnings(self) -> str:
        """Warnings, as the command line tells them."""
        return self._native.warnings

    @property
    def results(self) -> Frame:
        """A row for each policy: status, why, and every metric."""
        return self._native.results()

    @property
    def requests(self) -> Frame:
        """A row for each request of every policy that serves; they are played anew, by the expected costs."""
        return _raised(self._native.requests)

    @property
    def series(self) -> Frame:
        """How the fleet stood over time."""
        return _raised(self._native.series)

    @property
    def timeline(self) -> Frame:
        """A row for each task of the drawn steps: rank, stream, operation, start and end."""
        return self._native.timeline()

    @property
    def memory(self) -> Frame:
        """A row for each change of a rank's memory in the drawn steps."""
        return self._native.memory()

    @property
    def lengths(self) -> Frame:
        """Lengths of the sequences of a drawn step."""
        return self._native.lengths()

    def html(self) -> str:
        """The report as one page that loads nothing."""
        return self._native.html()

    def _repr_html_(self) -> str:
        page = self.html().replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{page}" style="width:100%;height:720px;border:0"></iframe>'

    def __repr__(self) -> str:
        return self._native.table()


def run(scenario, set=None, seed=None, **overrides) -> Result:
    """Simulates every policy of a scenario. Other threads run meanwhile, and Ctrl-C stops it."""
    name, text = _asked(scenario)
    return Result(_raised(_native.run, name, text, _overrides(set, overrides), seed))


def command(*arguments) -> str:
    """Any verb of the command line with its arguments; what it prints."""
    return _raised(_native.perform, [str(argument) for argument in arguments])[0]


def _verb(verb, scenario, set, seed, out, overrides, *more):
    """A verb that takes a scenario and writes into a folder; what it prints."""
    arguments = [verb]
    with _file(scenario) as path, _tempfile.TemporaryDirectory() as folder:
        arguments += [path, *(f"--set={item}" for item in _overrides(set, overrides))]
        arguments += [] if seed is None else ["--seed", seed]
        return command(*arguments, "--out", out or folder, *more)


def plan(scenario, policy=None, set=None, seed=None, out=None, **overrides) -> dict:
    """Only decides: ``plan.json`` as a dict; written to ``out`` as well where that is given."""
    with _tempfile.TemporaryDirectory() as folder:
        folder = _pathlib.Path(out or folder)
        _verb("plan", scenario, set, seed, folder, overrides, *([] if policy is None else ["--policy", policy]))
        return _json.loads((folder / "plan.json").read_text())


def search(scenario, set=None, seed=None, out=None, **overrides) -> dict:
    """Looks for the best layout of a training step: the plan with ``parallel.layout`` set to ``search``."""
    return plan(scenario, None, set, seed, out, **{**overrides, "parallel.layout": "search"})


def capacity(scenario="serving/capacity", set=None, seed=None, out=None, **overrides) -> dict:
    """What a fleet costs that keeps the limits of a serving scenario."""
    return _json.loads(_verb("capacity", scenario, set, seed, out, overrides, "--format", "json"))


def tune(scenario="serving/tune", set=None, seed=None, out=None, **overrides) -> dict:
    """Which settings of an engine and a fleet are the best within the limits."""
    return _json.loads(_verb("tune", scenario, set, seed, out, overrides, "--format", "json"))


def compare(*scenarios, baseline=None, seeds=5, seed=0, gates=(), set=None, vary=(), **overrides) -> dict:
    """Policies side by side over seeded batches, or earlier results against the first. A gate that fails raises."""
    import contextlib

    with contextlib.ExitStack() as stack:
        arguments = ["compare", *(stack.enter_context(_file(scenario)) for scenario in scenarios), "--format", "json", "--no-progress"]
        arguments += ["--seeds", seeds, "--seed", seed] + ([] if baseline is None else ["--baseline", baseline])
        arguments += [f"--set={item}" for item in _overrides(set, overrides)]
        arguments += [f"--vary={item}" for item in vary] + [f"--gate={gate}" for gate in gates]
        return _json.loads(command(*arguments))


def export(plan, to, out) -> list[str]:
    """Writes a plan (a dict, or the path of ``plan.json``) as files of another stack; their paths."""
    with _tempfile.TemporaryDirectory() as folder:
        if isinstance(plan, dict):
            path = _pathlib.Path(folder) / "plan.json"
            path.write_text(_json.dumps(plan))
            plan = path
        return command("export", plan, "--to", to, "--out", out).splitlines()


def import_(file, *arguments) -> str:
    """A launch script of another stack as the text of a scenario, or tables as a profile; arguments as the command line takes them."""
    return command("import", file, *arguments)


def calibrate(device="cpu", *arguments) -> str:
    """Measures this machine and fits a profile."""
    return command("calibrate", "--device", device, "--no-progress", *arguments)


def validate(scenario="validate/cpu-small", device="cpu", set=None, seed=None, out=None, arguments=(), **overrides) -> dict:
    """Calibrates, plans, predicts, executes, and says the error term by term."""
    more = ["--device", device, "--no-progress", "--format", "json", *arguments]
    return _json.loads(_verb("validate", scenario, set, seed, out, overrides, *more))


def schema(kind=None) -> dict:
    """The JSON schema of scenario files."""
    return _json.loads(command("schema", *([] if kind is None else ["--kind", kind])))


from . import policy, rules  # noqa: E402
from .sweep import sweep  # noqa: E402

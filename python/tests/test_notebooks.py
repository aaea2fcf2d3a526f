"""Notebooks: every code cell runs in order, and none is kept with outputs."""

import json
import pathlib

import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    names = {"__name__": "notebook"}
    for number, cell in enumerate(cells):
        assert cell["outputs"] == [] and cell["execution_count"] is None, f"cell {number} has outputs"
        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 3

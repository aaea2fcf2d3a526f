"""Scenarios and overrides as the native part takes them: texts of TOML."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import tempfile


def value(found) -> str:
    """A value as TOML."""
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, (str, os.PathLike)):
        return json.dumps(os.fspath(found), ensure_ascii=False)
    if isinstance(found, dict):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {value(below)}" for key, below in found.items()) + " }"
    if hasattr(found, "tolist"):  # arrays and numbers of NumPy
        found = found.tolist()
    if isinstance(found, int):
        return str(found)
    if isinstance(found, float):
        if not math.isfinite(found):
            raise ValueError(f"{found} is no value of a scenario")
        return repr(found)
    if isinstance(found, (list, tuple, range)):
        return "[" + ", ".join(value(item) for item in found) + "]"
    raise TypeError(f"{type(found).__name__} is no value of a scenario")


def text(sections: dict) -> str:
    """A dict of sections as TOML; keys before the first section come first."""
    lines = [f"{json.dumps(str(key))} = {value(found)}\n" for key, found in sections.items() if not isinstance(found, dict)]
    for name, section in sections.items():
        if isinstance(section, dict):
            lines.append(f"\n[{json.dumps(str(name))}]\n")
            lines += [f"{json.dumps(str(key))} = {value(found)}\n" for key, found in section.items()]
    return "".join(lines)


def asked(scenario) -> tuple[str, str | None]:
    """Name and text; without a text, the name is a path or a shipped scenario."""
    if isinstance(scenario, dict):
        return str(scenario.get("name", "scenario")), text(scenario)
    if isinstance(scenario, str) and ("\n" in scenario or "=" in scenario):
        return "scenario", scenario
    return os.fspath(scenario), None


@contextlib.contextmanager
def file(scenario):
    """A path or a shipped name, for verbs that read one."""
    name, found = asked(scenario)
    if found is None:
        yield name
        return
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / f"{name}.toml"
        path.write_text(found, encoding="utf-8")
        yield str(path)


def overrides(given, named) -> list[str]:
    """``section.key=value`` of a dict, of a list of such texts, and of names in which ``__`` stands for a dot."""
    items = list(given.items()) if isinstance(given, dict) else []
    texts = [] if given is None or isinstance(given, dict) else list(given)
    items += [(key.replace("__", "."), found) for key, found in named.items()]
    return texts + [f"{key}={value(found)}" for key, found in items]

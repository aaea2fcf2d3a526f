"""Reads exported options with torchtitan's own reader, which checks them: degrees, lengths and batch are as they were written."""

import importlib.metadata
import sys

from torchtitan.config.manager import ConfigManager

# Any recipe will do: what is exported stands above it.
RECIPE = ["--module=llama3", "--config=llama3_debugmodel"]


def written(path):
    with open(path) as file:
        return [line.strip() for line in file if line.startswith("--")]


def check(path):
    options = written(path)
    found = ConfigManager().parse_args([*RECIPE, *options])
    n_checked = 0
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        section, key = name.split(".")
        if not value:
            is_on, key = not key.startswith("no_"), key.removeprefix("no_")
            value = str(is_on)
        have = getattr(getattr(found, section), key)
        assert str(have) == value, (path, name, have, value)
        n_checked += 1
    return n_checked


counts = [check(path) for path in sys.argv[1:]]
assert counts and min(counts) >= 10, counts
print(f"torchtitan {importlib.metadata.version('torchtitan')}: {len(counts)} plans read, {sum(counts)} options as written")

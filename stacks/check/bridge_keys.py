"""Holds exported overrides of Megatron Bridge against the classes of its package: every section is one of its configuration, every key a field.

The package cannot be imported without Transformer Engine, so its sources are parsed.
"""

import ast
import importlib.metadata
import sys

# Files with the classes of the sections, by package.
SOURCES = {
    "megatron-bridge": ["bridge/training/config.py", "bridge/training/comm_overlap.py", "bridge/models/gpt_provider.py"],
    "megatron-core": [
        "core/model_parallel_config.py",
        "core/transformer/transformer_config.py",
        "core/distributed/distributed_data_parallel_config.py",
        "core/datasets/blended_megatron_dataset_config.py",
    ],
}


def classes(package, ending):
    path = next(file for file in importlib.metadata.files(package) if str(file).endswith(ending))
    tree = ast.parse(path.locate().read_text())
    for one in ast.walk(tree):
        if isinstance(one, ast.ClassDef):
            yield one.name, {line.target.id for line in one.body if isinstance(line, ast.AnnAssign)}


known = [found for package, files in SOURCES.items() for ending in files for found in classes(package, ending)]
sections = next(fields for name, fields in known if name == "ConfigContainer")
keys = set().union(*(fields for _, fields in known))
n_words = 0
for path in sys.argv[1:]:
    with open(path) as file:
        words = [line.split()[0] for line in file if line.strip() and not line.startswith("#")]
    for word in words:
        section, key = word.split("=")[0].split(".", 1)
        assert section.lstrip("+") in sections and key in keys, (path, word)
    n_words += len(words)
assert n_words > 0, "no overrides"
version = importlib.metadata.version("megatron-bridge")
print(f"Megatron Bridge {version}: {n_words} words of {len(sys.argv) - 1} plans are fields of its classes")

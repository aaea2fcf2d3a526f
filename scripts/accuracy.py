#!/usr/bin/env python3
"""Writes the generated tables of the pages of accuracy again.

    python3 scripts/accuracy.py --binary target/release/skrull-sim --tables FOLDER --tables FOLDER [PAGE...]

A page marks a table that a command prints, and a table of some groups of several commands:

    <!-- generated: skrull-sim score torchtitan.csv --format markdown -->
    <!-- end -->

    <!-- groups: set | rows | step mean | median
    torchtitan: skrull-sim score torchtitan.csv --format markdown
    Bridge H100: skrull-sim score megatron_bridge.csv --format markdown | card H100
    -->
    <!-- end -->

What stands between a marker and its end is replaced. Tables are looked for in the folders, and then beside the project. A command whose
table is absent leaves its lines as they are and is named; the script then ends with 0. A command that fails is named too, and ends it with 1.
"""
import argparse
import concurrent.futures
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = [ROOT / "docs" / name for name in ("accuracy-training.md", "accuracy-training-rows.md", "accuracy-serving.md", "accuracy-rl.md")]
BLOCK = re.compile(r"(<!-- (generated|groups): (.*?)-->\n)(.*?)(<!-- end -->)", re.DOTALL)
# Other names of columns in the tables of a command: those of steps that their host bounds, and of reinforcement learning.
ALIASES = {"step mean": ("mean",), "median": ("step median",)}


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def is_rule(line):
    return bool(re.fullmatch(r"\|(-+\|)+", line))


def without_empty_tables(text):
    """The text without tables that have a head alone."""
    parts = text.strip().split("\n\n")
    return "\n\n".join(part for part in parts if not is_rule(part.splitlines()[-1]))


def entries(body):
    """Columns, and of every line its label, its command and its group."""
    head, *lines = [line for line in body.strip().splitlines() if line.strip()]
    found = []
    for line in lines:
        label, rest = line.split(": ", 1)
        command, _, group = rest.partition(" | ")
        found.append((label, command.strip(), group.strip() or "all all"))
    return cells(head), found


def row_of(output, group, columns):
    """The cells of a group by the head of its table. A group is called by its first two cells, or by the head of the first cell and the cell."""
    head = []
    for line in output.splitlines():
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells(line)
            # Errors of memory stand behind those of steps, with the same names.
            at = head.index("memory mean") if "memory mean" in head else len(head)
            head = head[: at + 1] + [f"memory {name}" for name in head[at + 1 :]]
        else:
            row = cells(line)
            if group in (" ".join(row[:2]), f"{head[0]} {row[0]}"):
                where = [next((head.index(name) for name in (column, *ALIASES.get(column, ())) if name in head), None) for column in columns]
                return [row[at] if at is not None else "-" for at in where]
    return None


def play(command, binary, folders):
    """What the command prints, or why it printed nothing, and whether that is a failure."""
    words = shlex.split(command)
    if words[:2] != ["skrull-sim", "score"]:
        return None, f"not a command of `skrull-sim score`: {command}", True
    found = next((path for path in (folder / words[2] for folder in [*folders, ROOT]) if path.exists()), None)
    if found is None:
        return None, f"absent: {words[2]}", False
    try:
        done = subprocess.run([binary, "score", str(found), *words[3:]], capture_output=True, text=True, cwd=ROOT)
    except OSError as why:
        return None, f"cannot start {binary}: {why.strerror}", True
    if done.returncode:
        return None, f"failed: {command}\n{done.stderr.strip()}", True
    return without_empty_tables(done.stdout), None, False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/skrull-sim"))
    parser.add_argument("--tables", action="append", type=pathlib.Path, default=[], help="a folder of measured tables; may be given several times")
    parser.add_argument("--jobs", type=int, default=2, help="commands that run side by side")
    parser.add_argument("--skip", action="append", default=[], help="leave tables of commands with this word as they are, for example `leave-out`")
    parser.add_argument("pages", nargs="*", type=pathlib.Path, default=PAGES)
    options = parser.parse_args()
    texts = {page: page.read_text() for page in options.pages}
    blocks = [block for text in texts.values() for block in BLOCK.finditer(text)]
    commands = {}
    for block in blocks:
        body = block[3]
        for command in [body.strip()] if block[2] == "generated" else [entry[1] for entry in entries(body)[1]]:
            commands[command] = (None, f"skipped: {command}", False)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        asked = [command for command in commands if not any(word in command for word in options.skip)]
        commands.update(zip(asked, pool.map(lambda command: play(command, options.binary, options.tables), asked)))
    complaints = {why: is_failure for _, why, is_failure in commands.values() if why}

    def written(block):
        opening, kind, body, old, end = block.groups()
        if kind == "generated":
            output = commands[body.strip()][0]
            return block[0] if output is None else f"{opening}\n{output}\n\n{end}"
        columns, lines = entries(body)
        before = {cells(line)[0]: line for line in old.splitlines() if line.startswith("|")}
        rows = []
        for label, command, group in lines:
            output = commands[command][0]
            row = row_of(output, group, columns[1:]) if output else None
            if output and row is None:
                complaints[f"no group `{group}` in: {command}"] = True
            rows.append(f"| {' | '.join([label, *row])} |" if row else before.get(label, f"| {label} |{' - |' * len(columns[1:])}"))
        table = "\n".join([f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *rows])
        return f"{opening}\n{table}\n\n{end}"

    for page, text in texts.items():
        new = BLOCK.sub(written, text)
        if new != text:
            page.write_text(new)
        print(f"{page.name}: {len(BLOCK.findall(text))} tables, {'changed' if new != text else 'as before'}")
    for why in complaints:
        print(why, file=sys.stderr)
    return 1 if any(complaints.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

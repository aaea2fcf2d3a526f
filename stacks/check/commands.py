"""The commands that exported files start, as a shell or a container gives them to the server: lists of words, nothing run."""

import os
import pathlib
import shlex
import stat
import subprocess
import tempfile

# Programs that files start. Each is replaced by one that writes down its words.
PROGRAMS = ("vllm", "python", "python3", "trtllm-serve")
RECORDER = """#!/bin/sh
n=$(ls "$RECORDED" | wc -l)
printf '%s\\0' "$(basename "$0")" "$@" >"$RECORDED/$(printf %04d "$n")"
"""
# What Kubernetes and SkyPilot set in a pod or on a node: the second of two.
NODE = {
    "LWS_LEADER_ADDRESS": "127.0.0.1",
    "LWS_WORKER_INDEX": "1",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
}


def of_script(text):
    """Commands that a shell would start for a script, and the folder that it left."""
    folder = pathlib.Path(tempfile.mkdtemp())
    programs, recorded, work = folder / "bin", folder / "recorded", folder / "work"
    for path in (programs, recorded, work):
        path.mkdir()
    for name in PROGRAMS:
        path = programs / name
        path.write_text(RECORDER)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, **NODE, "PATH": f"{programs}:/usr/bin:/bin", "RECORDED": str(recorded)}
    subprocess.run(["/bin/bash", "-eu"], input=text, text=True, cwd=work, env=environment, check=True)
    words = [path.read_text().split("\0")[:-1] for path in sorted(recorded.iterdir())]
    return words, work


def expanded(text):
    """What Kubernetes puts in the place of $(NAME) before a container starts."""
    for name, value in NODE.items():
        text = text.replace(f"$({name})", value)
    return text


def of_container(container):
    """The command of a container; one that runs a shell is given to a shell."""
    words = [expanded(word) for word in container.get("command", []) + container.get("args", [])]
    if words[:2] == ["/bin/sh", "-c"]:
        return of_script(words[2])[0]
    return [words]


def pods(manifest):
    """Pods that a manifest of Kubernetes starts."""
    spec = manifest.get("spec", {})
    if manifest["kind"] == "Deployment":
        return [spec["template"]["spec"]]
    if manifest["kind"] == "LeaderWorkerSet":
        template = spec["leaderWorkerTemplate"]
        return [template[part]["spec"] for part in ("leaderTemplate", "workerTemplate")]
    return []


def shown(words):
    """A command in one line."""
    return shlex.join(words)

"""Wrong input as exceptions with findings."""

from __future__ import annotations

import dataclasses
import json

from . import _native

DefectError = _native.DefectError


@dataclasses.dataclass(frozen=True)
class Finding:
    """One problem: what it is about, where it stands, and what to do."""

    code: str
    severity: str
    what: str
    line: int | None
    column: int | None
    key: str | None
    label: str
    help: str | None


class ScenarioError(ValueError):
    """Input that cannot be used; ``findings`` has everything that is wrong, ``exit_code`` what the command line would return."""

    def __init__(self, message: str, findings=(), exit_code: int = 2):
        super().__init__(message)
        self.findings = list(findings)
        self.exit_code = exit_code


def raised(call, *arguments):
    """Calls the native part; what it refuses is raised with findings."""
    try:
        return call(*arguments)
    except _native.RefusedError as error:
        code, message, findings = error.args
        found = [Finding(**finding) for finding in json.loads(findings)]
    raise ScenarioError(message, found, code)

"""What a check finds."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
"""An error is refused by the server, or served wrongly; a warning misbehaves in some cases; a note is advice."""

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing to mend. `where` is `path:line`, the path relative to the repository; `model` is "" for the root."""

    code: str
    severity: Severity
    where: str
    model: str
    message: str
    hint: str

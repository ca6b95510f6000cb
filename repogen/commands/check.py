"""`repogen check`: what the server would refuse, or accept and then do wrong. Changes nothing."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.console import Console
from repogen.errors import Refused, RepogenError

if TYPE_CHECKING:
    from repogen.check.findings import Finding

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def check(
    repository: Path,
    *,
    server: str,
    console: Console,
    profile: str = "development",
    deployments: Sequence[Path] = (),
) -> int:
    """Check every model of `repository` for `server`; return 1 when there are errors.

    For production also the compose and Kubernetes files `deployments` by which it is served.
    """
    from repogen.check.all_rules import RULES
    from repogen.check.engine import check_repository
    from repogen.check.target import target_of

    _refuse_development(server, profile, deployments)
    production = profile == "production"
    rules = [rule for rule in RULES if production or rule.scope != "deployment"]
    found = check_repository(repository, target_of(server), rules, deployments)
    _show(found, repository, server, console)
    counts = _counts(found)
    console.document({"repository": str(repository), "server": server, "counts": counts, "findings": _plain(found)})
    return 1 if counts["error"] else 0


def _refuse_development(server: str, profile: str, deployments: Sequence[Path]) -> None:
    if profile != "production":
        if deployments:
            raise RepogenError("files of a deployment are checked for production", hint="--profile production")
        return
    if server == "embedded":
        message = "the embedded server is for development only: it lacks the security fixes of 2025 and 2026"
        raise Refused(message, where="--server", hint="name the release that serves, such as 26.08")
    if not deployments:
        hint = "--deployment docker-compose.yml, or a folder of Kubernetes files; `repogen export` writes both"
        raise RepogenError("production is how the repository is served, too", where="--profile", hint=hint)
    for path in deployments:
        if not path.exists():
            raise RepogenError("there is no such file or folder", where=str(path))


def _show(found: Sequence["Finding"], repository: Path, server: str, console: Console) -> None:
    for model, findings in groupby(found, key=lambda it: it.model):
        console.say(console.paint(model or str(repository), "bold"))
        for finding in findings:
            label = console.paint(f"{finding.severity} {finding.code}", _COLOURS[finding.severity])
            console.say(f"  {finding.where}: {label} {finding.message}")
            if finding.hint:
                console.say(console.paint(f"      {finding.hint}", "dim"))
    counts = _counts(found)
    said = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items() if count)
    colour = next((_COLOURS[name] for name, count in counts.items() if count), "green")
    console.say(f"{repository} for Triton {server}: {console.paint(said or 'nothing to mend', colour)}")


def _counts(found: Iterable["Finding"]) -> dict[str, int]:
    counts = Counter(finding.severity for finding in found)
    return {name: counts[name] for name in ("error", "warning", "note")}


def _plain(found: Iterable["Finding"]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    return [asdict(finding) for finding in found]

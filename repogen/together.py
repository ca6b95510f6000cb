"""Ensembles whose models change in one sync: may a request meet the new one of them and the old of another? Pure.

Models go live one after another. An ensemble that names the version it means, of models that serve the former one
beside the new, goes from the old to the new in the one moment in which it is itself loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from repogen import pbtxt
from repogen.ensembles import NEWEST, keeps_former
from repogen.errors import Refused
from repogen.plan import Change, Plan, members
from repogen.repository import Published


def refuse_mixing(plan: Plan, published: Callable[[], Mapping[str, Published]]) -> None:
    """Raise Refused where a sync under a live server would let an ensemble mix two generations.

    `published` reads the repository; it is asked only where there is an ensemble.
    """
    if not any(members(change.model) for change in plan.changes):
        return
    there = published()
    for change in plan.changes:
        if not members(change.model):
            continue
        text = there[change.name].text if change.name in there else ""
        replaced = _replaced(text, {other.name: other for other in plan.writes}) if text else []
        if len(replaced) > 1 or (replaced and change in plan.writes and change.alters):
            names = ", ".join(replaced)
            message = f"{change.name} would mix old and new answers while {names} change one after another"
            hint = (
                f"first give {names} `versions: {{latest: 2}}` and sync; then raise their `version` with the new "
                "files: the ensemble goes over at once. --yes: do it all the same"
            )
            raise Refused(message, where=plan.place, hint=hint)


def _replaced(text: str, writes: Mapping[str, Change]) -> Sequence[str]:
    """Return the models that the published ensemble calls, and whose answers change before it does."""
    config: Any = pbtxt.parse(text)
    found = []
    for step in config.ensemble_scheduling.step:
        change = writes.get(step.model_name)
        if change is None or change.model is None or not change.alters or step.model_name in found:
            continue
        beside = {file.name.split("/")[0] for file in change.model.carried}
        stays = step.model_version != NEWEST and str(step.model_version) in beside and keeps_former(change.model)
        if not stays:
            found.append(step.model_name)
    return found

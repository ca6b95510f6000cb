"""`repogen sync`: make the repository what the manifest says, and live servers serve it."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from repogen.child import MEMORY
from repogen.commands.building import building
from repogen.commands.gates import pass_gates
from repogen.commands.plan import Answer, Question, as_document, basis, planned, refuse_unasked, show
from repogen.console import Console

if TYPE_CHECKING:
    from repogen.generations import Generation
    from repogen.live import Servers
    from repogen.plan import Plan


def sync(
    manifest: Path,
    *,
    jobs: int,
    overwrite: bool,
    console: Console,
    memory: int = MEMORY,
    prune: bool = False,
    yes: bool = False,
    wait: float = 0.0,
    urls: Sequence[str] = (),
    no_load: bool = False,
    load_timeout: float = 600.0,
) -> int:
    from repogen.staging import needs_recovery

    started = time.perf_counter()
    question = Question(manifest, jobs, overwrite, prune, memory)
    answer = planned(question, console)
    show(answer.plan, console)
    refuse_unasked(answer.plan, yes=yes)
    root = answer.plan.repository
    generation = None
    again: list[str] = []
    with ExitStack() as stack:
        live = None
        if urls and not no_load:
            live = stack.enter_context(servers(urls, root, load_timeout, console))
        if answer.plan.writes or answer.plan.removes or needs_recovery(root):
            answer, generation = _publish(question, answer, live, yes=yes, wait=wait, console=console)
        if live:
            again = _prove_the_rest(root, generation, live, console)
    seconds = time.perf_counter() - started
    _tell(answer.plan, generation, again, seconds, console, live=bool(urls) and not no_load)
    document = as_document(answer.plan) | {
        "generation": generation.number if generation else None,
        "published": [step.name for step in generation.steps if step.after] if generation else [],
        "removed": [step.name for step in generation.steps if step.after is None] if generation else [],
        "loaded_again": again,
        "seconds": seconds,
    }
    console.document(document)
    return 0


def servers(urls: Sequence[str], root: Path, load_timeout: float, console: Console) -> "Servers":
    """Return the servers that `urls` mean, each of which answers."""
    from repogen.live import Servers

    found = Servers(urls, root, deadline=load_timeout, note=console.note)
    try:
        found.greet()
    except BaseException:
        found.__exit__()
        raise
    return found


def _publish(
    question: Question, answer: Answer, live: "Servers | None", *, yes: bool, wait: float, console: Console
) -> "tuple[Answer, Generation | None]":
    """Do the plan as the repository's only writer; it is made again when somebody else wrote meanwhile."""
    from repogen.generations import state_folder
    from repogen.lock import writer
    from repogen.lock_file import write_lock
    from repogen.publish import publish, refuse_unpublishable
    from repogen.staging import recover

    root = answer.plan.repository
    refuse_unpublishable(answer.plan)
    pass_gates(answer.plan, console, memory=question.memory)
    with writer(state_folder(root), wait=wait, note=console.note):
        if recover(root):
            console.note("an earlier run was cut short: brought to its end")
        if basis(question.manifest, root) != answer.basis:
            answer = planned(question, console)
            show(answer.plan, console)
            refuse_unasked(answer.plan, yes=yes)
            pass_gates(answer.plan, console, memory=question.memory)
        if answer.plan.pending:
            answer = _built(question, answer, console)
        refuse_unpublishable(answer.plan)
        generation = publish(
            answer.plan, keep=answer.keep, live=live, progress=console.note if console.verbose else _silent
        )
        write_lock(question.manifest, [change.model for change in answer.plan.changes if change.model])
        return answer, generation


def _silent(_: str) -> None:
    return


def _built(question: Question, answer: Answer, console: Console) -> Answer:
    from repogen.builds import build_pending

    models = [change.model for change in answer.plan.changes if change.model and change.model.pending]
    with building(console) as progress:
        build_pending(models, progress=progress)
    return planned(question, console)


def _prove_the_rest(root: Path, generation: "Generation | None", live: "Servers", console: Console) -> list[str]:
    """Compare what the servers run with what is published, for the models that this sync did not bring itself."""
    from repogen.repository import State, read_repository

    brought = {step.name for step in generation.steps} if generation else set()
    again = []
    for name, published in read_repository(root).items():
        if name in brought or published.state not in (State.WHOLE, State.DRIFTED):
            continue
        if live.serve_again(name, published.text, None):
            console.say(f"{name} was not served as published: loaded again")
            again.append(name)
    return again


def _tell(
    found: "Plan", generation: "Generation | None", again: list[str], seconds: float, console: Console, *, live: bool
) -> None:
    if generation:
        published = sum(step.after is not None for step in generation.steps)
        removed = len(generation.steps) - published
        gone = f", removed {removed}" if removed else ""
        console.say(f"published {published} of {len(found.changes)} models{gone} in {seconds:.1f} s")
        if not live:
            console.note("whether a server serves it is not known: --url HOST:PORT loads it and proves it")
    elif live and not again:
        console.say("every server serves what is published")

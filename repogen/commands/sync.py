"""`repogen sync`: make the repository what the manifest says, and live servers serve it."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repogen.child import MEMORY
from repogen.commands.building import building
from repogen.commands.gates import pass_gates, pass_plan_gates
from repogen.commands.plan import Answer, Question, as_document, basis, planned, refuse_unasked, show
from repogen.console import Console
from repogen.errors import Refused

if TYPE_CHECKING:
    from repogen.generations import Generation
    from repogen.live import Servers
    from repogen.plan import Plan

_CUT_SHORT = "an earlier run was cut short: brought to its end"


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
    watch: float = 0.0,
    shadow: Sequence[str] = (),
) -> int:
    if watch:
        from repogen.commands.watching import watching

        options: dict[str, Any] = {"jobs": jobs, "no_load": no_load, "load_timeout": load_timeout}
        options |= {
            "overwrite": overwrite,
            "memory": memory,
            "prune": prune,
            "yes": yes,
            "wait": wait,
            "urls": urls,
            "shadow": shadow,
        }
        return watching(manifest, watch, partial(sync, manifest, console=console, **options), console)
    from repogen.places import place_of

    started = time.perf_counter()
    question = Question(manifest, jobs, overwrite, prune, memory)
    answer = planned(question, console, first=partial(_recover, wait=wait, console=console))
    show(answer.plan, console)
    refuse_unasked(answer.plan, yes=yes)
    root = answer.plan.place
    generation = None
    again: list[str] = []
    with ExitStack() as stack:
        live = None
        if urls and not no_load:
            live = stack.enter_context(servers(urls, root, load_timeout, console))
        if live and not yes:
            from repogen.together import refuse_mixing

            refuse_mixing(answer.plan, lambda: place_of(root).read(root))
        if shadow:
            _refuse_shadow(shadow, answer, live)
        if answer.plan.writes or answer.plan.removes or place_of(root).needs_recovery(root):
            answer, generation = _publish(question, answer, live, yes=yes, wait=wait, shadow=shadow, console=console)
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


def servers(urls: Sequence[str], root: str, load_timeout: float, console: Console) -> "Servers":
    """Return the servers that `urls` mean, each of which answers."""
    from repogen.live import Servers
    from repogen.places import place_of

    touch = partial(place_of(root).touch, root)
    found = Servers(urls, touch=touch, deadline=load_timeout, note=console.note)
    try:
        found.greet()
    except BaseException:
        found.__exit__()
        raise
    return found


def _recover(root: str, *, wait: float, console: Console) -> None:
    """Bring an earlier run to its end where no plan can be made before."""
    from repogen.places import place_of

    place = place_of(root)
    if place.RECOVERS_FIRST and place.needs_recovery(root):
        with place.writer(root, wait=wait, note=console.note):
            if place.recover(root):
                console.note(_CUT_SHORT)


def _publish(
    question: Question,
    answer: Answer,
    live: "Servers | None",
    *,
    yes: bool,
    wait: float,
    shadow: Sequence[str],
    console: Console,
) -> "tuple[Answer, Generation | None]":
    """Do the plan as the repository's only writer; it is made again when somebody else wrote meanwhile."""
    from repogen.lock_file import write_lock
    from repogen.places import place_of

    root = answer.plan.place
    place = place_of(root)
    place.refuse_unpublishable(answer.plan)
    pass_gates(answer.plan, console, memory=question.memory)
    with place.writer(root, wait=wait, note=console.note):
        if place.recover(root):
            console.note(_CUT_SHORT)
        if basis(question.manifest, root) != answer.basis:
            answer = planned(question, console)
            show(answer.plan, console)
            refuse_unasked(answer.plan, yes=yes)
            pass_gates(answer.plan, console, memory=question.memory)
        if answer.plan.pending:
            answer = _built(question, answer, console)
        pass_plan_gates(answer.plan, console)
        place.refuse_unpublishable(answer.plan)
        if place.has_gaps(answer.plan):
            _warn_of_gaps(live, yes=yes, console=console)
        if shadow and live:
            from repogen.shadow import try_out

            try_out(answer.plan, shadow, live, console.note)
        tell = console.note if console.verbose else _silent
        generation = place.publish(answer.plan, keep=answer.keep, live=live, progress=tell)
        write_lock(question.manifest, [change.model for change in answer.plan.changes if change.model])
        return answer, generation


def _refuse_shadow(names: Sequence[str], answer: Answer, live: "Servers | None") -> None:
    from repogen.shadow import refuse_impossible

    refuse_impossible(names, [change.name for change in answer.plan.changes], answer.plan.place, live)


def _warn_of_gaps(live: "Servers | None", *, yes: bool, console: Console) -> None:
    """Say that models will be absent for an instant, and refuse it where a server would see that."""
    what = "this file system cannot exchange two folders, so each model is absent for an instant"
    polling = live.polling() if live else []
    if polling and not yes:
        hint = "a server that polls may unload them: use EXPLICIT, another file system, or --yes; nothing was written"
        raise Refused(f"{what}, and {', '.join(polling)} polls", hint=hint)
    console.note(f"warning: {what}")


def _silent(_: str) -> None:
    return


def _built(question: Question, answer: Answer, console: Console) -> Answer:
    from repogen.builds import build_pending

    models = [change.model for change in answer.plan.changes if change.model and change.model.pending]
    with building(console) as progress:
        build_pending(models, progress=progress)
    return planned(question, console)


def _prove_the_rest(root: str, generation: "Generation | None", live: "Servers", console: Console) -> list[str]:
    """Compare what the servers run with what is published, for the models that this sync did not bring itself."""
    from repogen.places import place_of
    from repogen.repository import State

    brought = {step.name for step in generation.steps} if generation else set()
    again = []
    for name, published in place_of(root).read(root).items():
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
        counts = {"published": published, "removed": removed}
        done = ", ".join(f"{verb} {count}" for verb, count in counts.items() if count)
        console.say(f"{done or 'published 0'} of {len(found.changes)} models in {seconds:.1f} s")
        if not live:
            console.note("whether a server serves it is not known: --url HOST:PORT loads it and proves it")
    elif live and not again:
        console.say("every server serves what is published")

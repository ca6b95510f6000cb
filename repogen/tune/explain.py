"""What a tuning means, in words: what was limiting, what changed, what it buys, how sure that is."""

from repogen.errors import Refused
from repogen.tune.forecast import Forecast, Predictor
from repogen.tune.search import joined
from repogen.tune.setting import Setting
from repogen.tune.trial import Trial
from repogen.tune.tuning import Tuned
from repogen.units import duration_text

_BUSY = 0.85  # of what full batches serve: beyond it, waiting for an instance is what makes requests late


def verdict(tuned: Tuned) -> str:
    """Return the answer in one sentence."""
    goal, answer = tuned.question.goal, tuned.answer
    choice = answer.choice
    if choice is None:
        reason = answer.trials[-1].measured.reason if answer.trials else "nothing was measured"
        return f"no run was valid, so nothing is recommended: {reason}"
    reached = f"{goal.name} {_span(choice)} at {choice.rate:g}/s"
    if goal.slo is None:
        return f"the lowest {goal.name}: {choice.setting.words()}: {reached}"
    if answer.held:
        what = "holds" if choice.measured.high <= goal.slo else "holds, but only just,"
        return f"{choice.setting.words()} {what} {goal.name} {_ms(goal.slo)}: {reached}"
    rate = f" at {goal.rate:g}/s" if goal.rate else ""
    limit = f"; the limit is about {answer.limit:.3g}/s" if answer.limit else ""
    return (
        f"no setting holds {goal.name} {_ms(goal.slo)}{rate}; "
        f"the best is {choice.setting.words()} with {reached}{limit}"
    )


def refuse_unreachable(tuned: Tuned) -> None:
    """Raise Refused where the objective was not met."""
    if not tuned.answer.held:
        raise Refused(verdict(tuned), where=tuned.evidence.model)


def paragraph(tuned: Tuned) -> str:
    """Return a paragraph: what limits, what changed, what it buys, how sure it is, what more would do."""
    choice = tuned.answer.choice
    if choice is None:
        return verdict(tuned) + "."
    predictor = tuned.answer.predictor
    seen = predictor.at(choice.setting, choice.rate)
    parts = [_limiting(seen, choice), _changed(tuned, choice), _buys(tuned, choice), _sure(tuned, choice)]
    return " ".join(part for part in [*parts, _more(tuned, choice, predictor)] if part)


def _limiting(seen: Forecast, choice: Trial) -> str:
    busy = (
        f"the load is {seen.load:.0%} of what full batches could serve, the instances are busy "
        f"{min(seen.busy, 1):.0%} of the time, in batches of {seen.mean_batch:.1f} on average"
    )
    if seen.load > _BUSY:
        return f"What limits is the work itself: {busy}."
    waits = choice.setting.delay * 1e-6 / max(seen.latency, 1e-9)
    if choice.setting.delay and waits > 1 / 3:
        return f"What limits is the queue delay, {waits:.0%} of the latency: {busy}."
    return f"What limits is the time of one batch and the wait for the one before it: {busy}."


def _changed(tuned: Tuned, choice: Trial) -> str:
    """Return what is different from what was served."""
    now, new = tuned.question.current, choice.setting
    changes = []
    if now.batching != new.batching:
        changes.append("dynamic batching on" if new.batching else "dynamic batching off")
    elif new.batching and now.delay != new.delay:
        changes.append(f"queue delay {duration_text(now.delay)} to {duration_text(new.delay)}")
    if now.preferred != new.preferred and new.batching:
        sizes = ",".join(map(str, new.preferred)) or "none"
        changes.append(f"preferred sizes {','.join(map(str, now.preferred)) or 'none'} to {sizes}")
    if now.instances != new.instances:
        changes.append(f"instances {now.instances} to {new.instances}")
    if now.max_batch != new.max_batch:
        changes.append(f"largest batch {now.max_batch} to {new.max_batch}")
    return f"Changed: {'; '.join(changes)}." if changes else "Nothing is to be changed: it is what is served already."


def _buys(tuned: Tuned, choice: Trial) -> str:
    """Return the choice beside the references, at the rate where both were measured."""
    words = []
    for name, setting in (("what was served", tuned.question.current), ("Triton's default", tuned.question.default)):
        if setting == choice.setting:
            continue
        other = _at(tuned, setting, choice.rate)
        if other:
            change = choice.measured.latency / other.measured.latency - 1
            words.append(f"{change:+.0%} beside {name} ({_span(other)})")
    return f"At {choice.rate:g}/s its {tuned.question.goal.name} is {' and '.join(words)}." if words else ""


def _sure(tuned: Tuned, choice: Trial) -> str:
    errors = [abs(trial.error) for trial in joined([t for t in tuned.answer.trials if t.measured.valid])]
    void = sum(not trial.measured.valid for trial in tuned.answer.trials)
    middle = sorted(errors)[len(errors) // 2]
    text = (
        f"The interval of 95 % is {_ms(choice.measured.low)} to {_ms(choice.measured.high)} from "
        f"{choice.measured.requests:,} requests; predictions were off by {middle:.0%} in the middle "
        f"and {max(errors):.0%} at most over {len(errors)} settings and rates."
    )
    return text + (f" {void} void runs were not believed." if void else "")


def _more(tuned: Tuned, choice: Trial, predictor: Predictor) -> str:
    """Return what is predicted, not measured, of an instance more and of a smaller largest batch."""
    setting, goal = choice.setting, tuned.question.goal
    more = Setting(**{**vars(setting), "instances": setting.instances + 1})
    words = []
    if predictor.calibration.covers(more.instances):
        latency = predictor.at(more, choice.rate).latency
        words.append(f"one instance more would give {goal.name} {_ms(latency)}")
    largest = max(candidate.max_batch for candidate in tuned.question.candidates)
    if setting.batching and setting.max_batch < largest:
        latency = predictor.at(Setting(**{**vars(setting), "max_batch": largest}), choice.rate).latency
        words.append(f"batches up to {largest} would give {_ms(latency)}")
    return f"Predicted, not measured: {'; '.join(words)}." if words else ""


def _at(tuned: Tuned, setting: Setting, rate: float) -> Trial | None:
    found = [t for t in joined([t for t in tuned.answer.trials if t.measured.valid]) if t.setting == setting]
    return min(found, key=lambda trial: abs(trial.rate - rate), default=None)


def _span(trial: Trial) -> str:
    seen = trial.measured
    return f"{_ms(seen.latency)} [{seen.low * 1e3:.2f}, {seen.high * 1e3:.2f}]"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"

"""Charts as SVG text: lines, bars and a stacked bar, coloured by the page's style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 520, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 26, 12, 40
_TICKS = 5
_ROW, _LABEL = 28, 160  # of lying bars: the height of each, and where the first begins


@dataclass(frozen=True)
class Axis:
    """One axis: its range, its name, the ticks' places with their words; `log` for a logarithmic one."""

    low: float
    high: float
    name: str
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def part(self, value: float) -> float:
        """Return where a value lies, 0 to 1."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low) if high > low else 0.5


@dataclass(frozen=True)
class Line:
    """A named series. `whiskers` are intervals, where known, one for each point. `colour` is a number, 1 to 4."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    whiskers: Sequence[tuple[float, float] | None] = field(default=())
    dots: bool = False


def linear(high: float, name: str, *, low: float = 0.0) -> Axis:
    """Return an axis from `low` to a round number above `high`, with round ticks."""
    step = _round_step((high - low) / _TICKS)
    count = max(math.ceil((high - low) / step - 1e-9), 1)
    ticks = tuple((low + step * number, _number(low + step * number)) for number in range(count + 1))
    return Axis(low, low + step * count, name, ticks)


def _round_step(rough: float) -> float:
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - from there on digits are grouped


def lines(series: Sequence[Line], x: Axis, y: Axis, title: str) -> str:
    """Return a chart of lines; the words of a point appear where the mouse rests on it."""
    body = [_frame(x, y)]
    for one in series:
        places = [(_x(x, a), _y(y, b)) for a, b in one.points]
        path = " ".join(f"{'L' if number else 'M'}{a:.1f} {b:.1f}" for number, (a, b) in enumerate(places))
        body.append(f'<path class="line c{one.colour}" d="{path}"/>')
        for span, (a, _) in zip(one.whiskers, places, strict=False):
            if span:
                low, high = _y(y, span[0]), _y(y, span[1])
                body.append(f'<path class="line c{one.colour}" d="M{a:.1f} {low:.1f}V{high:.1f}"/>')
        radius = 4 if one.dots else 3
        shown = "" if one.dots else " hover"
        for (a, b), (at, value) in zip(places, one.points, strict=True):
            words = f"{one.name}: {value:.4g} at {_word_at(x, at)}"
            body.append(
                f'<circle class="dot c{one.colour}{shown}" cx="{a:.1f}" cy="{b:.1f}" r="{radius}">'
                f"<title>{escape(words)}</title></circle>"
            )
    return _svg(title, body) + _legend([(one.name, one.colour) for one in series])


def bars(values: Sequence[tuple[str, float, str]], y: Axis, x_name: str, title: str) -> str:
    """Return a chart of bars: label, height, and the words of each."""
    x = Axis(0, max(len(values), 1), x_name, ())
    body = [_frame(x, y)]
    every = max(math.ceil(len(values) / 16), 1)
    wide = min((WIDTH - _LEFT - _RIGHT) / max(len(values), 1), 64) - 2
    for number, (label, value, words) in enumerate(values):
        middle, top = _x(x, number + 0.5), _y(y, value)
        body.append(
            f'<rect class="fill c1" x="{middle - wide / 2:.1f}" y="{top:.1f}" width="{wide:.1f}" '
            f'height="{max(HEIGHT - _BOTTOM - top, 0):.1f}" rx="2"><title>{escape(words)}</title></rect>'
        )
        if number % every == 0:
            body.append(f'<text x="{middle:.1f}" y="{HEIGHT - _BOTTOM + 16}" class="mid">{escape(label)}</text>')
    return _svg(title, body)


def stacked(parts: Sequence[tuple[str, float]], unit: str, title: str) -> str:
    """Return one bar split into its parts, each with its share."""
    total = sum(value for _, value in parts) or 1.0
    at, body = 0.0, []
    for number, (name, value) in enumerate(parts, start=1):
        wide = value / total * WIDTH
        words = f"{name}: {value:.4g} {unit}, {value / total:.0%}"
        body.append(
            f'<rect class="fill c{number}" x="{at:.1f}" y="0" width="{max(wide - 2, 0.5):.1f}" height="28" rx="2">'
            f"<title>{escape(words)}</title></rect>"
        )
        at += wide
    picture = f'<svg viewBox="0 0 {WIDTH} 28" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'
    names = [(f"{name} {value:.3g} {unit} ({value / total:.0%})", n) for n, (name, value) in enumerate(parts, start=1)]
    return picture + _legend(names)


def rows(values: Sequence[tuple[str, Sequence[tuple[str, float]]]], unit: str, title: str) -> str:
    """Return a lying bar for each row, split into its parts: label, then (name, length) of each part."""
    most = max((sum(value for _, value in parts) for _, parts in values), default=0.0) or 1.0
    body = []
    for number, (label, parts) in enumerate(values):
        at, top = float(_LABEL), number * _ROW
        words = ", ".join(f"{name} {value:.4g} {unit}" for name, value in parts)
        body.append(f'<text x="{_LABEL - 8}" y="{top + 18}" class="end">{escape(label)}</text>')
        for colour, (_, value) in enumerate(parts, start=1):
            wide = value / most * (WIDTH - _LABEL - _LEFT)
            body.append(
                f'<rect class="fill c{colour}" x="{at:.1f}" y="{top + 4}" width="{max(wide, 0.5):.1f}" height="20" '
                f'rx="2"><title>{escape(f"{label}: {words}")}</title></rect>'
            )
            at += wide
        total = sum(value for _, value in parts)
        body.append(f'<text x="{at + 6:.1f}" y="{top + 18}">{total:.3g}</text>')
    size = f'viewBox="0 0 {WIDTH} {_ROW * len(values)}"'
    picture = f'<svg {size} role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'
    names = [name for name, _ in values[0][1]] if values else []
    return picture + _legend([(f"{name}, {unit}", colour) for colour, name in enumerate(names, start=1)])


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.part(value) * (WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - _BOTTOM - axis.part(value) * (HEIGHT - _TOP - _BOTTOM)


def _word_at(axis: Axis, value: float) -> str:
    return next((word for place, word in axis.ticks if math.isclose(place, value)), f"{value:.4g}")


def _frame(x: Axis, y: Axis) -> str:
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    body = [f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>']
    for value, word in y.ticks:
        at = _y(y, value)
        body.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
        body.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" class="end">{escape(word)}</text>')
    body += [
        f'<text x="{_x(x, value):.1f}" y="{bottom + 16}" class="mid">{escape(word)}</text>' for value, word in x.ticks
    ]
    middle = (_LEFT + right) / 2
    body.append(f'<text x="{middle}" y="{HEIGHT - 6}" class="mid name">{escape(x.name)}</text>')
    side = (_TOP + bottom) / 2
    body.append(f'<text transform="translate(14 {side}) rotate(-90)" class="mid name">{escape(y.name)}</text>')
    return "".join(body)


def _svg(title: str, body: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
    return f"{head}{''.join(body)}</svg>"


def _legend(names: Sequence[tuple[str, int]]) -> str:
    items = "".join(f'<li><i class="fill-c{colour}"></i>{escape(name)}</li>' for name, colour in names)
    return f'<ul class="legend">{items}</ul>'

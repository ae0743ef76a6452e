"""Charts as inline SVG: no scripts and no other files.

A panel is 340 units wide, which fits a phone; two stand side by side on a wide screen. Titles, labels of axes, notes
and the legend are text of the page, which wraps. A method has its own colour, dashes and mark, so that colour is never
the only difference. Colours are variables of the page's style, which has others for a dark screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from paper_checks.charts import POINTS, PRINTED, REFERENCE, Chart, Curve

_LIGHT = ("#0072b2", "#d55e00", "#007f5f", "#a8488f", "#8f6f00", "#3d9bd9", "#6b4fbb", "#7a4a21")
_DARK = ("#56b4e9", "#ff9f5a", "#3fd0a0", "#e58fcb", "#e6c84b", "#a9d6ff", "#b9a5ff", "#d8a27c")
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2", "7 2 1 2 1 2")
_INK_DASHES = ("", "6 3", "2 2")
_MARKS = ("circle", "square", "triangle", "diamond", "cross", "plus")
_WIDTH, _HEIGHT, _TOP, _RIGHT, _BOTTOM = 340, 214, 10, 326, 192
# Curves of more points have a band in place of bars, and one mark.
_FEW = 12
# Beyond this size nothing is drawn: differences of such numbers overflow.
_LARGEST = 1e100


def _variables(colours: Sequence[str]) -> str:
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))


STYLE = f"""
:root{{{_variables(_LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}
.charts{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,310px),1fr));
gap:.4rem 1.2rem;margin:.6rem 0}}
.chart{{margin:0;max-width:480px;min-width:0}}
.chart figcaption{{font-weight:600;font-size:.9rem;overflow-wrap:anywhere}}.chart svg{{width:100%;margin:.1rem 0}}
.axis,.chart small{{display:block;color:var(--plain);font-size:.8rem;line-height:1.35;overflow-wrap:anywhere}}
.axis.x{{text-align:center}}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;padding:0;margin:.6rem 0 0;font-size:.85rem}}
.legend li{{display:flex;align-items:center;gap:.4rem}}.legend svg{{flex:none;margin:0}}
"""


# --- how a curve looks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Look:
    colour: str
    dash: str
    mark: str  # empty for what others are compared with

    @property
    def stroke(self) -> str:
        dash = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        return f'stroke="{self.colour}"{dash}'


def _looks(charts: Sequence[Chart]) -> dict[str, _Look]:
    """One look per name, in the order in which they appear; what others are compared with has the text's colour."""
    curves = [curve for chart in charts for curve in chart.curves]
    references = {curve.name for curve in curves if curve.kind == REFERENCE}
    names = [name for name in dict.fromkeys(curve.name for curve in curves) if name not in references]
    ink = {
        name: _Look("currentColor", _INK_DASHES[number % len(_INK_DASHES)], "")
        for number, name in enumerate(
            name for name in dict.fromkeys(curve.name for curve in curves) if name in references
        )
    }
    return {name: _look(number) for number, name in enumerate(names)} | ink


def _look(number: int) -> _Look:
    # After eight names colours begin anew, with other dashes.
    turn = number // len(_LIGHT)
    dash = _DASHES[(number + 3 * turn) % len(_DASHES)]
    return _Look(f"var(--c{number % len(_LIGHT)})", dash, _MARKS[number % len(_MARKS)])


def _mark(look: _Look, x: float, y: float, hollow: bool, words: str) -> str:
    """A mark with a text that appears where the pointer rests."""
    shapes = {
        "circle": f"M{x - 3.5:.1f} {y:.1f}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
        "square": f"M{x - 3.2:.1f} {y - 3.2:.1f}h6.4v6.4h-6.4z",
        "triangle": f"M{x:.1f} {y - 4:.1f}l4 7h-8z",
        "diamond": f"M{x:.1f} {y - 4.4:.1f}l4.4 4.4l-4.4 4.4l-4.4 -4.4z",
        "cross": f"M{x - 3:.1f} {y - 3:.1f}l6 6m-6 0l6 -6",
        "plus": f"M{x - 3.8:.1f} {y:.1f}h7.6m-3.8 -3.8v7.6",
    }
    fill = "none" if hollow or look.mark in ("cross", "plus") else look.colour
    return (
        f'<path d="{shapes[look.mark or "circle"]}" fill="{fill}" stroke="{look.colour}" stroke-width="1.6">'
        f"<title>{escape(words)}</title></path>"
    )


# --- axes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """From ``low`` to ``high``, logarithms where ``log``, onto ``start`` to ``end`` in the picture."""

    low: float
    high: float
    log: bool
    start: float
    end: float

    def place(self, value: float) -> float:
        return self._at(_scaled(value, self.log))

    def cut(self, value: float) -> float:
        """The place, or the nearer end of the axis for what lies beyond it."""
        at = self.low if self.log and value <= 0 else _scaled(value, self.log)
        return self._at(min(max(at, self.low), self.high))

    def inside(self, value: float) -> bool:
        return (value > 0 or not self.log) and self.low <= _scaled(value, self.log) <= self.high

    def _at(self, scaled: float) -> float:
        return self.start + (self.end - self.start) * (scaled - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Between two and seven round values."""
        if not self.log:
            return _round_values(self.low, self.high)
        first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
        if last - first >= 2:
            step = -(-(last - first) // 5)
            return [10.0**k for k in range(first, last + 1, step) if -300 < k < 300]
        found = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5) if -300 < k < 300]
        found = [value for value in found if self.inside(value)]
        return found if len(found) > 1 else _round_values(10**self.low, 10**self.high)


def _scaled(value: float, log: bool) -> float:
    return math.log10(value) if log else value


def _round_values(low: float, high: float) -> list[float]:
    rough = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def _range(middles: Sequence[float], ends: Sequence[float], log: bool) -> tuple[float, float]:
    """The ends of an axis: all values, and bars up to as far again as the values reach. It is never empty."""
    low, high = _scaled(min(middles), log), _scaled(max(middles), log)
    reach = [_scaled(end, log) for end in ends] or [low]
    room = high - low if high - low > 1e-9 * max(abs(low), abs(high)) else math.inf
    low, high = max(min(low, *reach), low - room), min(max(high, *reach), high + room)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = 0.2 if log else 0.1 * abs(high) or 1.0
    else:
        margin = 0.05 * (high - low)
    return low - margin, high + margin


def _usable(value: float, log: bool) -> bool:
    return math.isfinite(value) and (1e-100 <= value <= _LARGEST if log else abs(value) <= _LARGEST)


def _seen(chart: Chart) -> Iterator[tuple[Curve, list[int]]]:
    """Every curve with the places that can be drawn."""
    for curve in chart.curves:
        both = zip(curve.xs, curve.ys, strict=True)
        yield curve, [k for k, (x, y) in enumerate(both) if _usable(x, chart.log_x) and _usable(y, chart.log_y)]


def _extent(charts: Sequence[Chart]) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The ranges of both axes over all these charts; None if nothing can be drawn."""
    xs, ys, ends = [], [], []
    for chart in charts:
        for curve, places in _seen(chart):
            xs += [curve.xs[k] for k in places]
            ys += [curve.ys[k] for k in places]
            ends += [part[k] for part in (curve.lows, curve.highs) if part for k in places]
        if xs and chart.rule is not None and _usable(chart.rule[1], chart.log_x):
            xs.append(chart.rule[1])
    if not xs:
        return None
    log_x, log_y = charts[0].log_x, charts[0].log_y
    return _range(xs, [], log_x), _range(ys, [end for end in ends if _usable(end, log_y)], log_y)


def tick(value: float) -> str:
    """A number at an axis."""
    if abs(value) < 1e-200:
        return "0"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    if -4 < power < 5:
        return f"{value:.6g}"
    factor = f"{value / 10.0**power:.3g}"
    exponent = str(power).translate(
        str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
    )
    return {"1": "", "-1": "-"}.get(factor, f"{factor}\u00b7") + f"10{exponent}"


# --- panels ----------------------------------------------------------------------------------------------------------


def drawn(charts: Sequence[Chart]) -> str:
    """All panels of a finding under one legend; empty without charts."""
    if not charts:
        return ""
    looks = _looks(charts)
    shared = _extent([chart for chart in charts if chart.shared])
    # A note that all panels have is shown once.
    notes = {chart.note for chart in charts}
    same = notes.pop() if len(notes) == 1 else ""
    panels = "".join(
        _panel(chart, looks, shared if chart.shared else _extent([chart]), "" if same else chart.note)
        for chart in charts
    )
    below = f"<p class=axis>{escape(same)}</p>" if same else ""
    return f"{_legend(charts, looks)}<div class=charts>{panels}</div>{below}"


def _legend(charts: Sequence[Chart], looks: Mapping[str, _Look]) -> str:
    kinds: dict[str, set[str]] = {}
    for chart in charts:
        for curve in chart.curves:
            kinds.setdefault(curve.name, set()).add(curve.kind)
    entries = "".join(f"<li>{_sample(looks[name], own)}<span>{escape(name)}</span></li>" for name, own in kinds.items())
    return f"<ul class=legend>{entries}</ul>"


def _sample(look: _Look, kinds: set[str]) -> str:
    line = "" if kinds <= {POINTS, PRINTED} else f'<line x1="1" y1="6" x2="33" y2="6" {look.stroke} stroke-width="2"/>'
    mark = "" if not look.mark else _mark(look, 17, 6, kinds == {PRINTED}, "")
    return f'<svg width="34" height="12" viewBox="0 0 34 12" aria-hidden="true">{line}{mark}</svg>'


def _panel(
    chart: Chart, looks: Mapping[str, _Look], extent: tuple[tuple[float, float], tuple[float, float]] | None, note: str
) -> str:
    notes = [note] if note else []
    picture = ""
    if extent is not None:
        picture, cut = _svg(chart, looks, *extent)
        notes += ["A bar without an end goes on beyond the picture."] if cut else []
    absent = sum(len(curve.xs) for curve in chart.curves) - sum(len(places) for _, places in _seen(chart))
    if absent:
        why = "not finite" + (", or not positive on a logarithmic axis" if chart.log_x or chart.log_y else "")
        notes.append(f"Left out: {absent} point{'s' if absent > 1 else ''} ({why}).")
    above = escape(chart.y_label) + (", logarithmic" if chart.log_y else "")
    below = escape(chart.x_label) + (", logarithmic" if chart.log_x else "")
    words = "".join(f"<small>{escape(note)}</small>" for note in notes)
    return (
        f"<figure class=chart><figcaption>{escape(chart.title)}</figcaption><span class=axis>{above}</span>{picture}"
        f'<span class="axis x">{below}</span>{words}</figure>'
    )


def _svg(
    chart: Chart, looks: Mapping[str, _Look], x_range: tuple[float, float], y_range: tuple[float, float]
) -> tuple[str, bool]:
    """The picture, and whether a bar was cut."""
    y = _Axis(*y_range, chart.log_y, _BOTTOM, _TOP)
    left = 10 + 5.8 * max((len(tick(value)) for value in y.ticks()), default=0)
    x = _Axis(*x_range, chart.log_x, left, _RIGHT)
    parts = [_grid(chart, x, y)]
    kept = list(_seen(chart))
    measured = sum(curve.kind != REFERENCE for curve in chart.curves)
    cut, number = False, 0
    for curve, places in sorted(kept, key=lambda pair: pair[0].kind != REFERENCE):
        # Bars at the same place stand side by side.
        shift = 0.0 if not curve.lows or len(curve.xs) > _FEW else 3.4 * (number - (measured - 1) / 2)
        number += curve.kind != REFERENCE
        text, own = _curve(curve, places, looks[curve.name], x, y, min(max(shift, -12), 12))
        parts.append(text)
        cut = cut or own
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">{"".join(parts)}</svg>',
        cut,
    )


def _grid(chart: Chart, x: _Axis, y: _Axis) -> str:
    parts = [
        f'<line x1="{x.start:.1f}" y1="{y.place(value):.1f}" x2="{_RIGHT}" y2="{y.place(value):.1f}" '
        f'stroke="var(--line)"/>{_text(x.start - 5, y.place(value) + 3.5, tick(value), "end")}'
        for value in y.ticks()
    ]
    parts.append(f'<path d="M{x.start:.1f} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="var(--plain)"/>')
    for value in _x_ticks(chart, x):
        at = x.place(value)
        parts.append(f'<line x1="{at:.1f}" y1="{_BOTTOM}" x2="{at:.1f}" y2="{_BOTTOM + 4}" stroke="var(--plain)"/>')
        parts.append(_text(at, _BOTTOM + 15, tick(value), "middle"))
    if chart.rule is not None and _usable(chart.rule[1], x.log):
        at = x.place(chart.rule[1])
        right = at < (x.start + x.end) / 2
        parts.append(
            f'<path d="M{at:.1f} {_TOP}V{_BOTTOM}" stroke="var(--plain)" stroke-dasharray="3 3"/>'
            + _text(at + (4 if right else -4), _TOP + 8, chart.rule[0][:24], "start" if right else "end", _HALO)
        )
    return "".join(parts)


def _x_ticks(chart: Chart, x: _Axis) -> list[float]:
    """The measured places where they are few and far apart, else round values."""
    places = sorted({value for curve, kept in _seen(chart) for value in (curve.xs[k] for k in kept)})
    if len(places) <= 7 and _apart(places, x) == places:
        return places
    return _apart(x.ticks(), x)


def _apart(values: Sequence[float], x: _Axis) -> list[float]:
    """The values whose numbers do not touch the one before."""
    kept: list[float] = []
    for value in values:
        if not kept or x.place(value) - x.place(kept[-1]) >= 3 * (len(tick(kept[-1])) + len(tick(value))) + 6:
            kept.append(value)
    return kept


# Words over lines are read on an edge of the page's colour.
_HALO = ' paint-order="stroke" stroke="var(--paper)" stroke-width="4"'


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="10" text-anchor="{anchor}"'
    return f'<text {place} fill="currentColor"{more}>{escape(words)}</text>'


def _curve(curve: Curve, places: Sequence[int], look: _Look, x: _Axis, y: _Axis, shift: float) -> tuple[str, bool]:
    """Bars or band, line and marks of one curve, and whether a bar was cut."""
    at = {k: (min(max(x.place(curve.xs[k]) + shift, x.start), x.end), y.place(curve.ys[k])) for k in places}
    parts, cut = [], False
    if curve.lows and len(curve.xs) > _FEW:
        parts += [_band(curve, part, at, look, y) for part in _runs(places)]
    elif curve.lows:
        for k in places:
            text, own = _bar(at[k][0], curve.lows[k], curve.highs[k], look, y)
            parts.append(text)
            cut = cut or own
    if curve.kind not in (POINTS, PRINTED):
        width = 1.9 if look.mark else 1.3
        for part in _runs(places):
            line = " ".join(f"{at[k][0]:.1f},{at[k][1]:.1f}" for k in part)
            parts.append(f'<polyline points="{line}" fill="none" {look.stroke} stroke-width="{width}"/>')
    if look.mark or curve.kind == PRINTED:
        marked = places if len(curve.xs) <= _FEW else places[-1:]
        parts += [_mark(look, *at[k], curve.kind == PRINTED, _said(curve, k)) for k in marked]
    return "".join(parts), cut


def _said(curve: Curve, k: int) -> str:
    ends = f" ({curve.lows[k]:.3g} to {curve.highs[k]:.3g})" if curve.lows else ""
    return f"{curve.name}, {curve.xs[k]:.4g}: {curve.ys[k]:.4g}{ends}"


def _runs(places: Iterable[int]) -> list[list[int]]:
    """Neighbouring places together: a line has a gap where a point is left out."""
    runs: list[list[int]] = []
    for k in places:
        if runs and runs[-1][-1] == k - 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return runs


def _bar(at: float, low: float, high: float, look: _Look, y: _Axis) -> tuple[str, bool]:
    """An interval with a cap at each end that is inside the picture."""
    if math.isnan(low) or math.isnan(high):
        return "", False
    bottom, top = y.cut(low), y.cut(high)
    caps = "".join(
        f"M{at - 2.5:.1f} {end:.1f}h5"
        for value, end in ((low, bottom), (high, top)) if math.isfinite(value) and y.inside(value)
    )  # fmt: skip
    line = f'<path d="M{at:.1f} {bottom:.1f}V{top:.1f}{caps}" fill="none" stroke="{look.colour}" stroke-width="1.1"/>'
    return line, caps.count("M") < 2


def _band(curve: Curve, part: Sequence[int], at: Mapping[int, tuple[float, float]], look: _Look, y: _Axis) -> str:
    whole = [k for k in part if not (math.isnan(curve.lows[k]) or math.isnan(curve.highs[k]))]
    if len(whole) < 2:
        return ""
    edge = [(at[k][0], y.cut(curve.highs[k])) for k in whole] + [(at[k][0], y.cut(curve.lows[k])) for k in whole[::-1]]
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in edge)
    return f'<polygon points="{points}" fill="{look.colour}" opacity="0.18"/>'

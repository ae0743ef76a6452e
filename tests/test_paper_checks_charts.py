"""Charts of paper checks: drawn inside their picture whatever the numbers are, kept by JSON, there for every figure."""

from __future__ import annotations

import json
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paper_checks import charts, drawing, findings, html, pages, rates, records, seeds
from paper_checks.__main__ import ROOT
from paper_checks.charts import KINDS, Chart, Curve
from paper_checks.claims import load, paper_folders
from paper_checks.curves import PUBLISHED, TIGHT, Figure
from paper_checks.items import find
from paper_checks.shared import Shared

PAPERS = [load(folder) for folder in paper_folders(ROOT, [])]
ITEMS = {item.id: (paper, item) for paper in PAPERS for item in paper.items if item.judged}
FIGURES = [name for name, (_, item) in ITEMS.items() if item.where.startswith("Figure")]


# --- drawing ---------------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.floats(), st.floats(0, 1e4), st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e300, math.nan, math.inf, 5e-324])
)


@st.composite
def a_curve(draw, name):
    count = draw(st.integers(0, 16))
    numbers = st.just(draw(NUMBERS)) if draw(st.booleans()) else NUMBERS
    xs, ys, lows, highs = (tuple(draw(st.lists(numbers, min_size=count, max_size=count))) for _ in range(4))
    bars = draw(st.booleans())
    return Curve(name, xs, ys, lows if bars else (), highs if bars else (), draw(st.sampled_from(KINDS)))


@st.composite
def a_chart(draw):
    own = tuple(draw(a_curve(f"method {number}")) for number in range(draw(st.integers(1, 10))))
    rule = draw(st.one_of(st.none(), st.tuples(st.just("20 epochs"), NUMBERS)))
    flags = [draw(st.booleans()) for _ in range(3)]
    return Chart("title", "x", "y", own, flags[0], flags[1], rule, "", flags[2])


def _pictures(text):
    return [ElementTree.fromstring(part) for part in re.findall(r"<svg.*?</svg>", text, re.S)]


def _points(element):
    """Every place that an element of a picture reaches."""
    at = {key: element.get(key) for key in ("x1", "y1", "x2", "y2")}
    if element.tag == "line":
        yield from ((float(at["x1"]), float(at["y1"])), (float(at["x2"]), float(at["y2"])))
    if element.tag in ("polyline", "polygon"):
        yield from (tuple(map(float, pair.split(","))) for pair in element.get("points").split())
    if element.tag == "path":
        yield from _path(element.get("d"))
    if element.tag == "text":
        x, y, wide = float(element.get("x")), float(element.get("y")), 5.8 * len(element.text)
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[element.get("text-anchor")]
        yield from ((left, y), (left + wide, y))


def _path(commands):
    x = y = 0.0
    sizes = {"M": 2, "V": 1, "H": 1, "l": 2, "h": 1, "v": 1, "m": 2, "a": 7, "z": 0}
    for letter, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", commands):
        numbers = [float(part) for part in re.findall(r"-?[\d.]+", text)]
        assert len(numbers) % max(sizes[letter], 1) == 0, commands
        for part in [numbers[k : k + sizes[letter]] for k in range(0, len(numbers), sizes[letter] or 1)]:
            dx, dy = {"h": (part[0], 0), "v": (0, part[0]), "H": (part[0] - x, 0), "V": (0, part[0] - y)}.get(
                letter, tuple(part[-2:])
            )
            x, y = (dx, dy) if letter == "M" else (x + dx, y + dy)
            yield x, y


def _check_inside(text):
    for picture in _pictures(text):
        _, _, width, height = map(float, picture.get("viewBox").split())
        for element in picture.iter():
            for x, y in _points(element):
                assert math.isfinite(x) and math.isfinite(y)
                # Marks reach five units beyond their place.
                assert -5 <= x <= width + 5 and -5 <= y <= height + 5, ElementTree.tostring(element)


@given(st.lists(a_chart(), min_size=1, max_size=3))
@example([Chart("t", "x", "y", (Curve("a", (1.0,), (0.0,)),), log_y=True)])
@example([Chart("t", "x", "y", (Curve("a", (1.0,), (0.0,)),))])
@example([Chart("t", "x", "y", (Curve("a", (1.0, 2.0), (1e300, -1e300)),))])
@example([Chart("t", "x", "y", (Curve("a", (0.5, 8.0), (3.0, 3.0), (-1.0, 3.0), (9.0, 3.0)),), log_x=True, log_y=True)])
def test_a_drawn_chart_is_inside_its_picture_and_counts_what_it_leaves_out(drawn):
    # Shared axes are of one kind.
    drawn = [charts.Chart(**{**vars(one), "log_x": drawn[0].log_x, "log_y": drawn[0].log_y}) for one in drawn]
    text = drawing.drawn(drawn)
    _check_inside(text)
    for one, panel in zip(drawn, text.split("<figure")[1:], strict=True):
        left_out = sum(
            not (drawing._usable(x, one.log_x) and drawing._usable(y, one.log_y))
            for curve in one.curves for x, y in zip(curve.xs, curve.ys, strict=True)
        )  # fmt: skip
        assert (f"Left out: {left_out} point" in panel) == (left_out > 0)


def test_what_cannot_be_drawn_is_left_out():
    odd = (math.nan, math.inf, -math.inf, 0.0, -1.0, 2.0)
    one = Chart("t", "x", "y", (Curve("a", (1, 2, 3, 4, 5, 6), odd),), log_y=True)
    assert "Left out: 5 points (not finite, or not positive on a logarithmic axis)." in drawing.drawn([one])
    one = Chart("t", "x", "y", (Curve("a", (1, 2, 3, 4, 5, 6), odd),))
    assert "Left out: 3 points (not finite)." in drawing.drawn([one])
    assert drawing.drawn([]) == ""


def test_a_line_has_a_gap_where_a_point_is_left_out():
    text = drawing.drawn([Chart("t", "x", "y", (Curve("a", (1, 2, 3, 4, 5), (1.0, 2.0, math.nan, 2.0, 1.0)),))])
    lines = [e for picture in _pictures(text) for e in picture.iter("polyline")]
    assert [len(line.get("points").split()) for line in lines] == [2, 2]


def test_places_follow_the_values_on_both_kinds_of_axes():
    def heights(log):
        one = Chart("t", "x", "y", (Curve("a", (1, 2, 3), (1.0, 10.0, 100.0)),), log_y=log)
        (line,) = _pictures(drawing.drawn([one]))[-1].iter("polyline")
        return [float(pair.split(",")[1]) for pair in line.get("points").split()]

    low, middle, high = heights(True)
    assert low - middle == pytest.approx(middle - high, abs=0.2) and low > high
    low, middle, high = heights(False)
    assert (low - middle) / (middle - high) == pytest.approx(0.1, abs=0.01)


def test_a_bar_that_is_cut_is_told_and_shared_panels_have_the_same_ticks():
    wide = Curve("a", (1, 2), (1.0, 2.0), (0.9, -90.0), (1.1, 90.0))
    assert "goes on beyond the picture" in drawing.drawn([Chart("t", "x", "y", (wide,))])
    first, second = (Chart("t", "x", "y", (Curve("a", (1, 2), ys),), shared=True) for ys in ((1.0, 2.0), (50.0, 90.0)))
    pictures = _pictures(drawing.drawn([first, second]))[-2:]
    ticks = [[element.text for element in picture.iter("text")] for picture in pictures]
    assert ticks[0] == ticks[1] and "80" in ticks[0]


def test_text_of_a_chart_cannot_break_the_page():
    bad = "<b>&\"'</b>"
    own = (Curve(bad, (1, 2), (1, 2)), Curve("other", (1, 2), (2, 1)))
    text = drawing.drawn([Chart(bad, bad, bad, own, rule=(bad, 1.5), note=bad)])
    assert "<b>" not in text and text.count("&lt;b&gt;&amp;&quot;&#x27;") >= 6
    _pictures(text)


def test_every_method_has_a_colour_a_dash_and_a_mark_of_its_own():
    names = [f"m{k}" for k in range(16)]
    looks = drawing._looks([Chart("t", "x", "y", tuple(Curve(name, (1,), (1,)) for name in names))])
    assert len({(look.colour, look.dash) for look in looks.values()}) == 16
    assert len({(look.dash, look.mark) for look in list(looks.values())[:8]}) == 8
    # A name looks the same in all panels, and what others are compared with has no colour.
    same = drawing._looks([Chart("t", "x", "y", (Curve("m1", (1,), (1,), kind="reference"),)),
                           Chart("t", "x", "y", (Curve("m0", (1,), (1,)),))])  # fmt: skip
    assert same["m0"] == looks["m0"] and same["m1"].colour == "currentColor"


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0"), (0.1 + 0.2, "0.3"), (16384, "16384"), (1e5, "10\u2075"), (2e-5, "2\u00b710\u207b\u2075"),
     (-1e6, "-10\u2076")],
)  # fmt: skip
def test_numbers_at_axes(value, words):
    assert drawing.tick(value) == words


# --- curves ----------------------------------------------------------------------------------------------------------


def test_intervals_are_those_of_students_t():
    one = charts.mean_curve("a", [1.0], np.array([[1.0, 2.0, 3.0]]))
    # 4.303 is the 97.5 % quantile at two degrees of freedom.
    assert one.ys == (2.0,) and one.highs[0] - 2 == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert charts.mean_curve("a", [1.0], np.array([[1.0]])).lows == ()
    middle = charts.geometric_curve("a", [1.0], np.array([[1.0, 4.0]]))
    assert middle.ys == pytest.approx((2.0,)) and middle.lows[0] * middle.highs[0] == pytest.approx(4.0)


def test_a_course_is_the_mean_of_runs_up_to_where_the_first_ends():
    runs = [[(0.0, 0.0), (2.0, 2.0), (4.0, 4.0)], [(0.0, 2.0), (3.0, 5.0)]]
    assert charts.course("a", runs).xs == (0.0, 2.0) and charts.course("a", runs).ys == (1.0, 3.0)
    assert charts.course("a", runs, start=1.0).xs == (2.0,)
    long = [[(float(k), 1.0) for k in range(500)]]
    assert len(charts.course("a", long).xs) == 24 and charts.course("a", long).xs[-1] == 499


def test_a_figure_has_a_panel_per_kind_of_noise_and_no_method_where_it_was_not_run():
    errors = {(TIGHT, "IGHT"): 1.0, (PUBLISHED, "A"): 2.0, (TIGHT, "A"): 3.0, (TIGHT, "B"): 4.0, (TIGHT, "C"): 40.0}
    figure = Figure([1.0, 2.0], {key: np.full((3, 2), value) for key, value in errors.items()}, {})
    first, second = figure.charts(both=["B", "absent"])
    assert [one.title for one in (first, second)] == [PUBLISHED, TIGHT]
    assert [(one.name, one.ys[0]) for one in first.curves] == [("IGHT, without privacy", 1.0), ("A", 2.0), ("B", 4.0)]
    assert [one.ys[0] for one in second.curves] == [1.0, 3.0, 4.0, 40.0]
    assert "With tight noise here too, as none is printed: B." in first.note and "tight" not in second.note
    assert first.x_label == "epsilon, as claimed" and second.x_label == "epsilon" and first.log_y and second.log_y
    # Intervals end at possible values.
    wide = Figure([1.0], {(TIGHT, "A"): np.array([[0.0], [1.0]])}, {}).charts(most=1)[0].curves[0]
    assert (wide.lows, wide.ys, wide.highs) == ((0.0,), (0.5,), (1.0,))
    (only,) = Figure([1.0], {(TIGHT, "A"): np.ones((3, 1))}, {}).charts()
    assert only.title == TIGHT


def test_a_rate_shows_the_printed_exponent_through_the_middle_or_the_bound():
    values = [1.0, 2.0, 4.0, 8.0]
    growth = rates.Growth("n", values, np.array([[v**2, 4 * v**2] for v in values]).T, [v**3 for v in values])
    measured, line = growth.chart().curves
    assert np.polyfit(np.log(line.xs), np.log(line.ys), 1)[0] == pytest.approx(3)
    assert np.mean(np.log(line.ys)) == pytest.approx(np.mean(np.log(measured.ys)))
    assert measured.kind == charts.POINTS and "2.00 measured, 3.00 printed" in growth.chart().title
    measured, line = growth.chart(2.0).curves
    assert line.ys == (2.0, 16.0, 128.0, 1024.0) and measured.ys[0] == 2.5
    assert len(rates.upper_orders([growth] * 3, 0.1).charts) == 3 and len(rates.below([growth] * 2, 1.0).charts) == 2


# --- records ---------------------------------------------------------------------------------------------------------


@given(a_chart())
def test_a_record_of_a_chart_survives_json(chart):
    once = json.loads(json.dumps(charts.record(chart), allow_nan=False))
    again = charts.of_record(once)
    assert charts.record(again) == once
    assert (again.title, again.log_x, again.log_y, again.shared) == ("title", chart.log_x, chart.log_y, chart.shared)
    for one, other in zip(chart.curves, again.curves, strict=True):
        assert (one.name, one.kind) == (other.name, other.kind)
        np.testing.assert_allclose(other.ys, one.ys, rtol=1e-3)
        np.testing.assert_allclose(other.xs, one.xs, rtol=1e-5)
        np.testing.assert_allclose(other.lows, one.lows, rtol=1e-3)


def test_numbers_in_a_record_are_short():
    chart = Chart("t", "x", "y", (Curve("a", (16384.0,), (1 / 3,), (0.12345678,), (math.inf,)),))
    (own,) = charts.record(chart)["curves"]
    assert own == {"name": "a", "kind": "line", "xs": [16384.0], "ys": [0.3333], "lows": [0.1235], "highs": ["inf"]}


def test_curves_of_unlike_lengths_and_unknown_kinds_are_refused():
    for bad in (((1, 2), (1,), (), ()), ((1, 2), (1, 2), (1,), (1,)), ((1, 2), (1, 2), (), (1, 2))):
        with pytest.raises(ValueError, match="one length"):
            Curve("a", *bad)
    with pytest.raises(ValueError, match="must be one of"):
        Curve("a", (1,), (1,), kind="dots")


def test_the_page_draws_the_charts_of_a_record():
    paper, item = ITEMS["IGHT-F1a"]
    chart = Chart("one panel", "epsilon", "error", (Curve("DP-IGHT", (1.0, 2.0), (0.5, 0.25)),))
    found = findings.Finding(item.verdict, "words", charts=(chart,))
    record = json.loads(json.dumps(records.of_item(paper, item, found)))
    text = html.page(pages.Page(pages.summary([record]), [paper], "command", "today"))
    assert drawing.drawn([chart]) in text and "1 claims and items, 1 with curves" in text
    assert not re.search(r"<script|<link|src=|https?://", text)
    # What the intervals leave out is said where there are any.
    bare = html.page(pages.Page(pages.summary([record | {"charts": []}]), [paper], "command", "today"))
    assert ("Intervals of curves" in text, "Intervals of curves" in bare) == (True, False)


# --- every figure has a chart ----------------------------------------------------------------------------------------


def _measured(methods, budgets, make, error, rng, repetitions, **_):
    """Random errors in place of fits."""
    draw = np.random.default_rng(0)
    errors = {(noise, one.name): draw.random((repetitions, len(budgets))) for one in methods for noise in one.noises}
    return Figure(budgets, errors, {key: [None] * len(budgets) for key in errors})


def _figure(shared, name, methods, budgets, make, error, repetitions, tuning=2):
    return _measured(methods, budgets, make, error, None, repetitions)


def _outcome(shared, budgets, repetitions, *_):
    from paper_checks.khanna_2023_lasso import outcomes, related

    draw = np.random.default_rng(0)
    keys = [(noise, name) for noise in (PUBLISHED, TIGHT) for name in related._grids(noise, (8, 15))]
    shape = (repetitions, len(budgets))
    weights = {key: draw.random((*shape, 100)) < 0.1 for key in keys}
    return outcomes.Outcome(weights, {key: draw.random(shape) for key in keys}, {})


def _plain(shared, label, make, repetitions):
    from paper_checks.khanna_2023_lasso import outcomes, plain

    key = (TIGHT, plain.NAME)
    return outcomes.Outcome({key: np.ones((repetitions, 1, 100))}, {key: np.full((repetitions, 1), 0.1)}, {})


def _run(*_):
    draw = np.random.default_rng(0)
    curve = [[float(k), 4.0 * k, float(draw.random())] for k in range(40)]
    return {"true": 1.0, "curves": [curve] * 4, "losses": [0.5] * 4, "setting": [1, 1]}


def _replace(monkeypatch, item, **fakes):
    """Other functions under these names where the item's check looks for them: a paper's modules are loaded anew."""
    names = item.check.__globals__
    for name in fakes.keys() & names.keys():
        monkeypatch.setitem(names, name, fakes[name])


def _without_fits(monkeypatch, item):
    """Made-up numbers in place of every fit, so that only the way from a run to its charts is left."""
    _replace(
        monkeypatch, item, measure=_measured, shared_figure=_figure, synthetic=_outcome, kddcup=_outcome,
        without_noise=_plain, kddcup_parts=lambda home: None,
        curve=lambda *a: tuple(np.linspace(0.1, 0.9, a[5])),
    )  # fmt: skip
    if "real_data" in item.check.__globals__:
        runs = item.check.__globals__["real_data"]
        monkeypatch.setattr(runs, "private", lambda *_: {f"{epsilon:g}": _run() for epsilon in (2, 4, 6, 8, 10)})
        monkeypatch.setattr(runs, "open_fits", _run)
        monkeypatch.setattr(runs, "charged", lambda *_: {"2": [0.5, 0.6]})
    if "rcv1" in item.check.__globals__:
        tables = item.check.__globals__["rcv1"]
        monkeypatch.setattr(tables, "splits", lambda *_, **__: None)
        monkeypatch.setattr(
            tables, "run", lambda rng, methods, budgets, *_, **__: (_measured(methods, budgets, 0, 0, 0, 3), 0.1)
        )
    if "importlib" in item.check.__globals__:
        # As if PyTorch were installed.
        monkeypatch.setattr(item.check.__globals__["importlib"].util, "find_spec", lambda name: True)


def _shared(paper):
    return Shared(seeds.source(0, paper.name, "shared runs"))


MORE = ["IGHT-P1", "IGHT-P8", "KT-P1", "SHT-P8", "SHT-P9", "SHT-T4", "SHT-T5", "IGHT-T3", "KT-T3"]


@pytest.mark.parametrize("name", [*FIGURES, *MORE])
def test_every_figure_has_curves_of_its_own(name, monkeypatch):
    paper, item = ITEMS[name]
    _without_fits(monkeypatch, item)
    found = find(item, paper.tables, seeds.source(0, paper.name, name), None, {}, _shared(paper))
    assert found.charts and all(one.curves for one in found.charts)
    _check_inside(drawing.drawn(found.charts))
    titles = [one.title for one in found.charts]
    if name not in ("SHT-P8",):
        assert [title for title in titles if title.startswith("published")] == titles[:1], "own panels for both noises"
        assert titles[1].startswith("tight")
    drawn = [one for chart in found.charts for one in chart.curves]
    if paper.key in ("IGHT", "LASSO") or (paper.key, item.where[:6]) == ("KT", "Figure"):
        assert {one.name for one in drawn if one.kind == charts.REFERENCE} <= {
            "IGHT, without privacy", "LASSO, without privacy"}, "an error without privacy"  # fmt: skip
        assert any(one.kind == charts.REFERENCE for one in drawn)
    if name[-3:] in ("-T3", "-T4", "-T5"):
        assert titles[2] == "printed in the paper" and {one.kind for one in found.charts[2].curves} == {charts.PRINTED}
    else:
        # The papers' curves have no numbers in the text.
        assert not any(one.kind == charts.PRINTED for chart in found.charts for one in chart.curves)


# --- every order of a figure can be kept and reversed ----------------------------------------------------------------

WANG_GU = [name for name in FIGURES if name.startswith(("IGHT-F", "KT-F"))]


def _made(levels):
    """In place of fits, errors near ``levels(noise, name)`` on every data set."""

    def measured(methods, budgets, *_, **__):
        repetitions = next(value for value in reversed(_) if isinstance(value, int) and value > 1)
        draw = np.random.default_rng(0)
        errors = {
            (noise, one.name): levels(noise, one.name) + 0.01 * draw.random((repetitions, len(budgets)))
            for one in methods for noise in one.noises
        }  # fmt: skip
        return Figure(budgets, errors, {key: [None] * len(budgets) for key in errors})

    return {
        "measure": measured,
        "shared_figure": lambda shared, name, methods, budgets, make, error, repetitions: measured(
            methods, budgets, repetitions
        ),
    }


@pytest.mark.parametrize("name", WANG_GU)
def test_an_order_of_a_figure_follows_the_errors_and_its_twin_has_one_reading(name, monkeypatch):
    paper, item = ITEMS[name]
    best = item.arguments["best"]

    def verdict(levels, arguments):
        _replace(monkeypatch, item, **_made(levels))
        return find(item, paper.tables, seeds.source(0, paper.name, name), None, arguments, _shared(paper)).verdict

    def own(noise, method):
        return method.startswith(best)

    assert verdict(lambda *key: 0.1 if own(*key) else 0.5, {}) == "order kept"
    assert verdict(lambda *key: 0.9 if own(*key) else 0.5, {}) == "order reversed"
    assert verdict(lambda *key: 0.5, {}) == "tie"
    split = {PUBLISHED: 0.1, TIGHT: 0.9}
    assert verdict(lambda *key: split[key[0]] if own(*key) else 0.5, {}) == "depends on reading"
    # Whatever the runs give, the twin does not end where the item did.
    for levels in (lambda *key: split[key[0]] if own(*key) else 0.5,
                   lambda *key: split[key[0]] if key[1].startswith("Frank-Wolfe") else 0.5,
                   lambda *key: 0.1 if own(*key) else 0.5):  # fmt: skip
        assert verdict(levels, item.twin) in ("order kept", "order reversed", "tie")


# Of the functions about rates these measure no exponents, or fit too much for a test.
_OTHERS = ("enough_steps", "logistic_steps", "fewer_gradients", "theorem_16_6")
RATES = [name for name, (_, item) in ITEMS.items()
         if item.check.__module__.endswith("rates") and item.check.__name__ not in _OTHERS]  # fmt: skip


@pytest.mark.parametrize("name", RATES)
def test_every_rate_has_a_picture(name, monkeypatch):
    paper, item = ITEMS[name]
    _replace(monkeypatch, item, grow=_grown, _error=lambda *_: 1.0, noisy_thresholding=_noises)
    found = find(item, paper.tables, seeds.source(0, paper.name, name), None, {"repetitions": 2}, _shared(paper))
    assert found.charts and all(len(one.curves) == 2 and one.log_x and one.log_y for one in found.charts)
    _check_inside(drawing.drawn(found.charts))


def _noises(draws, *_, **__):
    return np.array([draw.random() + 0.1 for draw in draws])


def _grown(measure, base, ranges, printed):
    """Made-up errors in place of ``measure``."""
    draw, found = np.random.default_rng(0), []
    for size, values in ranges.items():
        expected = [printed(**dict(base) | {size: value}) for value in values]
        found.append(rates.Growth(size, values, draw.random((2, len(values))) + 0.1, expected))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["IGHT-F1a", "KT-F2a", "LASSO-F4"])
@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning", "ignore::dptoolkit.solvers.HopelessPlanWarning")
def test_figures_from_real_fits_are_drawn(name):
    paper, item = ITEMS[name]
    settings = {"budgets": [2.0, 8.0], "repetitions": 2}
    found = find(item, paper.tables, seeds.source(0, paper.name, name), None, settings, _shared(paper))
    assert len(found.charts) == 2 and {one.xs for chart in found.charts for one in chart.curves} == {(2.0, 8.0)}
    _check_inside(drawing.drawn(found.charts))


def test_the_noise_that_reaches_the_loss_without_privacy_is_drawn(monkeypatch):
    paper, item = ITEMS["SHT-T4n"]
    _without_fits(monkeypatch, item)
    runs = item.check.__globals__["real_data"]
    monkeypatch.setattr(runs, "scaled", lambda shared, epsilon, factors: {
        f"{factor:g}": {"true": 1.0, "loss": 0.5 + factor} for factor in factors})  # fmt: skip
    (chart,) = find(item, paper.tables, seeds.source(0, paper.name, item.id), None, {}, _shared(paper)).charts
    assert chart.curves[0].ys == tuple(0.5 + x for x in chart.curves[0].xs) and chart.curves[1].ys == (0.5, 0.5)
    _check_inside(drawing.drawn([chart]))

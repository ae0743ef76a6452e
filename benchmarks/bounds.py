"""What public bounds of the columns are worth: the tables of docs/dp_pipeline.md and the rounds of docs/rules.md.

    python -m benchmarks.bounds --data FOLDER                  # compute what is missing, in about 15 minutes
    python -m benchmarks.bounds --data FOLDER --part tables    # one part of those below
    python -m benchmarks.bounds --part report                  # write the saved results into the pages

A result is one line of benchmarks/results/bounds.jsonl and is not computed again; remove lines to have them anew. Noise
is fast noise from seeds. "Before" is ``dp_pipeline`` without bounds, on columns that ScaleToBounds has moved and scaled
to [-1, 1]; columns with the bounds 0 and 1 are used as they are. Use one thread: OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.large_tables import LOWER, UPPER
from benchmarks.lib.contenders import logistic
from benchmarks.lib.intervals import interval
from benchmarks.lib.methods import changed
from benchmarks.lib.problems import parts
from benchmarks.lib.report import markdown
from benchmarks.lib.tables import Table, hospital_scores, load
from dptoolkit import datasets, solvers
from dptoolkit.accounting import gaussian

RESULTS = Path(__file__).parent / "results" / "bounds.jsonl"
DOCS = Path(__file__).parents[1] / "docs"
DELTA = 1e-5
# (table, most training rows, epsilon, seeds).
TABLES: tuple[tuple[str, int | None, float, int], ...] = (
    ("hospital", 5_000, 1.0, 5), ("hospital", 1_000, 1.0, 5), ("covtype.binary", 20_000, 1.0, 3),
    ("pneumoniamnist", None, 2.0, 3), ("phishing", None, 2.0, 5), ("a9a", None, 1.0, 3), ("kddcup99", 15_809, 2.0, 3),
    ("mushrooms", None, 2.0, 10), ("mnist", 10_000, 2.0, 1), ("covtype, 7 classes", 20_000, 1.0, 1),
    ("hospital, three ordered classes", 5_000, 1.0, 5),
)  # fmt: skip
NUMBERS = (
    ("bodyfat", 1.0, 10),
    ("bodyfat", 2.0, 10),
    ("elevation of covtype", 1.0, 3),
    ("elevation of covtype", 2.0, 3),
)
WORDS = {
    "hospital": "made-up hospital table, 12 of 16 columns numeric",
    "hospital, three ordered classes": "the hospital table in three ordered classes",
    "covtype.binary": "covtype.binary, bounds from the description of its columns",
    "pneumoniamnist": "pneumoniamnist, pixels in [0, 1]", "phishing": "phishing, as 0 and 1", "a9a": "a9a, 0 and 1",
    "kddcup99": "kddcup99, raw units, 15,809 of its rows", "mushrooms": "mushrooms, 0 and 1",
    "mnist": "mnist, 10 classes, pixels in [0, 1]",
}  # fmt: skip
WIDE, ROUNDS = (1, 10, 100, 1_000, 10_000, 100_000), (1, 2, 3)
PIXELS = ("(0, 16)", "(0, 16) and numeric=()", "(0, 1) after X / 16")
CODES = ("0, and indicators", "the middle of the bounds, and indicators", "the middle of the bounds, no indicators")
Result = dict[str, Any]


# --- fits -----------------------------------------------------------------------------------------------------


def _error(X: Any, y: Any, X_test: Any, y_test: Any, epsilon: float, seed: int, **more: Any) -> float:
    """The share of wrong labels of one fit; of numbers, the part of the variance that is left."""
    classes = int(max(y.max(), y_test.max())) + 1
    if more.get("loss") != "squared" and classes > 2:
        more = more | {"loss": "softmax", "classes": classes}
    fit = solvers.dp_pipeline(X, y, epsilon=epsilon, delta=DELTA, rng=seed, **more)
    margins = solvers.margins(fit, X_test)
    if more.get("loss") == "squared":
        return float(np.mean((margins - y_test) ** 2) / np.var(y_test))
    return float(np.mean((margins.argmax(axis=1) if margins.ndim == 2 else margins > 0) != y_test))


def _scaled(X: Any, lower: Any, upper: Any) -> Any:
    from dptoolkit.estimators import ScaleToBounds

    return X if (lower == 0).all() and (upper == 1).all() else ScaleToBounds(lower, upper).fit(X).transform(X)


def _errors(table: Table, epsilon: float, seeds: int, rows: int | None = None, **more: Any) -> list[float]:
    """Errors with bounds, one per seed; each seed has its own training rows where not all are used."""
    out = []
    for seed in range(seeds):
        part = table.cut(rows, seed)
        bounds = {"bounds": (table.lower, table.upper)} | more
        out.append(_error(part.X, part.y, table.X_test, table.y_test, epsilon, seed, **bounds))
    return out


def _before(table: Table, epsilon: float, seeds: int, rows: int | None = None) -> list[float]:
    out, test = [], _scaled(table.X_test, table.lower, table.upper)
    for seed in range(seeds):
        part = table.cut(rows, seed)
        X = _scaled(part.X, table.lower, table.upper)
        out.append(_error(X, part.y, test, table.y_test, epsilon, seed))
    return out


def _table(name: str, home: Path) -> Table:
    if name != "mnist":
        return load(name, home)
    X, y, X_test, y_test = parts("mnist, 10 classes", home)
    return Table(name, X.toarray(), y, X_test.toarray(), y_test, np.zeros(784), np.ones(784))


def tables(home: Path, done: set[str]) -> Iterator[Result]:
    """Errors before and with bounds."""
    for name, rows, epsilon, seeds in TABLES:
        key = f"{name}, {rows}"
        if key in done:
            continue
        table = _table(name, home)
        n, d = len(table.cut(rows, 0).y), table.X.shape[1]
        yield {"key": key, "name": name, "n": n, "d": d, "epsilon": epsilon,
               "before": _before(table, epsilon, seeds, rows), "with": _errors(table, epsilon, seeds, rows),
               }  # fmt: skip


def numbers(home: Path, done: set[str]) -> Iterator[Result]:
    """Regression: the share of variance that is left, before, with bounds, and by least squares; one split per seed."""
    for name, epsilon, seeds in NUMBERS:
        key = f"{name}, {epsilon:g}"
        if key in done:
            continue
        X, y, X_test, y_test = parts("bodyfat" if name == "bodyfat" else "covtype, elevation", home)
        X, y = np.concatenate([X, X_test]), np.concatenate([y, y_test])
        if name == "bodyfat":
            size, lower, upper, units = 200, -np.ones(14), np.ones(14), np.sqrt(14)
        else:
            size, lower, upper = 20_000, LOWER[1:], UPPER[1:]
            units = np.sqrt(8) * np.array([360, 66, 1397, 601, 7117, 254, 254, 254, 7173, *[1] * 44])
        before, own, squares = [], [], []
        for seed in range(seeds):
            order = np.random.default_rng([2, seed]).permutation(len(y))
            train, test = order[:size], order[size:]
            numeric = {"loss": "squared", "label_bound": 1.0}
            before.append(_error(X[train], y[train], X[test], y[test], epsilon, seed, row_norm=1.0, **numeric))
            raw, own_bounds = X * units, {"bounds": (lower, upper)}
            own.append(_error(raw[train], y[train], raw[test], y[test], epsilon, seed, **own_bounds, **numeric))
            ones = [np.column_stack([X[some], np.ones(len(some))]) for some in (train, test)]
            line = np.linalg.lstsq(ones[0], y[train], rcond=None)[0]
            squares.append(float(np.mean((ones[1] @ line - y[test]) ** 2) / np.var(y[test])))
        yield {"key": key, "name": name, "n": size, "d": X.shape[1], "epsilon": epsilon, "before": before, "with": own,
               "open": squares}  # fmt: skip


def wide(home: Path, done: set[str]) -> Iterator[Result]:
    """Upper bounds of numeric columns that are w times as large, on made-up tables with 5,000 rows at epsilon 1."""
    for name in ("hospital", "clinic"):
        table = load(name, home)
        for w in WIDE:
            if f"{name}, {w}" not in done:
                errors = _errors(_widened(table, w), 1.0, 5, 5_000)
                yield {"key": f"{name}, {w}", "name": name, "w": w, "with": errors}


def _widened(table: Table, w: float) -> Table:
    numeric = (table.lower != 0) | (table.upper != 1)
    return replace(table, upper=np.where(numeric, table.upper * w, table.upper))


def rounds(home: Path, done: set[str]) -> Iterator[Result]:
    """Other numbers of releases of a histogram."""
    for name, rows, epsilon, seeds, widths in (
        ("hospital", 5_000, 1.0, 5, (1, 10, 100)),
        ("kddcup99", 15_809, 2.0, 3, (1,)),
    ):
        if all(f"{name}, {w}, {count}" in done for w in widths for count in ROUNDS):
            continue
        table = load(name, home)
        for w in widths:
            for count in ROUNDS:
                with changed({"ROUNDS": count}):
                    errors = _errors(_widened(table, w), epsilon, seeds, rows)
                yield {"key": f"{name}, {w}, {count}", "name": name, "w": w, "rounds": count, "with": errors}


def pixels(home: Path, done: set[str]) -> Iterator[Result]:
    """Odd and even digits of 8 x 8 pixels from 0 to 16: pixels as ranks, or as they are."""
    table = load("digits, odd", home)
    ways: tuple[tuple[Table, dict[str, Any]], ...] = (
        (table, {}), (table, {"numeric": ()}),
        (replace(table, X=table.X / 16, X_test=table.X_test / 16, upper=table.upper / 16), {}),
    )  # fmt: skip
    for words, (own, more) in zip(PIXELS, ways, strict=True):
        if words not in done:
            yield {"key": words, "n": len(table.y), "with": _errors(own, 1.0, 20, **more)}


def ordered(home: Path, done: set[str]) -> Iterator[Result]:
    """Three ordered classes of make_khanna, 8,000 rows at (1, 1e-5): one softmax model, and a fit per class."""
    for p in (20, 100):
        if f"{p}" in done:
            continue
        one, three = [], []
        for seed in range(3):
            data = datasets.make_khanna(10_000, p, scale=3.0, rng=seed)
            along = data.X @ data.truth
            y = np.searchsorted(np.quantile(along, [1 / 3, 2 / 3]), along).astype(float)
            X, y, X_test, y_test = data.X[:8_000], y[:8_000], data.X[8_000:], y[8_000:]
            one.append(1 - _error(X, y, X_test, y_test, 1.0, seed))
            # Three Gaussian fits with a third of mu^2 each.
            epsilon = gaussian.epsilon(gaussian.mu(1.0, DELTA) / np.sqrt(3), DELTA)
            fits = [
                solvers.dp_pipeline(X, (y == k).astype(float), epsilon=epsilon, delta=DELTA, rng=10 * seed + k)
                for k in range(3)
            ]
            answers = np.column_stack([solvers.margins(fit, X_test) for fit in fits]).argmax(axis=1)
            three.append(float(np.mean(answers == y_test)))
        yield {"key": f"{p}", "softmax": one, "a fit per class": three}


def floors(home: Path, done: set[str]) -> Iterator[Result]:
    """What the hospital table allows: logistic regression without privacy, on columns and on ranks, and the truth."""
    for rows in (5_000, 1_000):
        if f"hospital, {rows}" in done:
            continue
        table = load("hospital", home)
        own: dict[str, list[float]] = {"columns": [], "ranks": []}
        for seed in range(5):
            part = table.cut(rows, seed)
            for way, one in (("columns", part), ("ranks", _ranked(part))):
                answers = logistic(one, 0.0, seed)(one.X_test)
                own[way].append(float(np.mean(np.asarray(answers) != table.y_test)))
        truth = float(np.mean((hospital_scores() > 0) != table.y_test))
        yield {"key": f"hospital, {rows}", "name": "hospital", "n": rows, "d": 16, **own, "truth": truth}


def _ranked(table: Table) -> Table:
    """Numeric columns as their ranks among the training rows, without noise."""
    X, X_test = table.X.copy(), table.X_test.copy()
    for j in np.flatnonzero((table.lower != 0) | (table.upper != 1)):
        order = np.sort(table.X[:, j])
        for values in (X, X_test):
            values[:, j] = np.interp(values[:, j], order, np.linspace(-1, 1, len(order)))
    return replace(table, X=X, X_test=X_test)


def missing(home: Path, done: set[str]) -> Iterator[Result]:
    """The league's table with missing cells, by the public constant that stands for them."""
    table = load("missing cells", home)
    middle = (table.lower + table.upper)[:12] / 2
    for words in CODES:
        if words in done:
            continue
        own = table if words == CODES[0] else replace(table, X=_coded(table.X, middle),
                                                      X_test=_coded(table.X_test, middle))  # fmt: skip
        if words == CODES[2]:
            own = replace(own, X=own.X[:, :12], X_test=own.X_test[:, :12], lower=own.lower[:12], upper=own.upper[:12])
        ranked = _ranked(own)
        yield {"key": words, "n": 5_000, "with": _errors(own, 1.0, 5, 5_000), "many": _errors(own, 4.0, 1),
               "open": _share_wrong(own), "ranks": _share_wrong(ranked)}  # fmt: skip


def _share_wrong(table: Table) -> list[float]:
    """The error of logistic regression without privacy on all rows."""
    return [float(np.mean(np.asarray(logistic(table, 0.0, 0)(table.X_test)) != table.y_test))]


def _coded(X: Any, constant: Any) -> Any:
    return np.hstack([np.where(X[:, 12:] > 0, constant, X[:, :12]), X[:, 12:]])


PARTS: dict[str, Callable[[Path, set[str]], Iterator[Result]]] = {
    "tables": tables, "numbers": numbers, "wide": wide, "rounds": rounds, "pixels": pixels, "ordered": ordered,
    "floors": floors, "missing": missing,
}  # fmt: skip


# --- the pages ------------------------------------------------------------------------------------------------


def read() -> list[Result]:
    """Saved results."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def on_pages() -> dict[str, str]:
    """The tables by the name of their marks: ``<!-- bounds: NAME -->`` and ``<!-- end -->``."""
    saved = {(one["part"], one["key"]): one for one in read()}
    keys = [("tables", f"{name}, {rows}") for name, rows, *_ in TABLES]
    own = [saved[key] for key in keys if key in saved]
    heads = ["data", "rows x columns", "epsilon", "seeds", "before", "with bounds"]
    lines = [
        [*_about(one, WORDS.get(one["name"], one["name"])), interval(one["before"]), interval(one["with"])]
        for one in own
    ]
    found = {"tables": markdown(heads, lines)}
    keys = [("numbers", f"{name}, {epsilon:g}") for name, epsilon, _ in NUMBERS]
    own = [saved[key] for key in keys if key in saved]
    lines = [[*_about(one, one["name"]), *(interval(one[k], 3) for k in ("before", "with", "open"))] for one in own]
    found["numbers"] = markdown([*heads, "least squares, no privacy"], lines)
    lines = [
        [name, *(f"{np.mean(saved['wide', f'{name}, {w}']['with']):.3f}" for w in WIDE)]
        for name in ("hospital", "clinic")
    ]
    found["wide"] = markdown(["upper bounds times", *(f"{w:,}" for w in WIDE)], lines)
    columns = [("hospital", 1), ("hospital", 10), ("hospital", 100), ("kddcup99", 1)]
    lines = [
        [str(count), *(interval(saved["rounds", f"{name}, {w}, {count}"]["with"]) for name, w in columns)]
        for count in ROUNDS
    ]
    found["rounds"] = markdown(["releases of a histogram", "w = 1", "w = 10", "w = 100", "kddcup99"], lines)
    lines = [[words, interval(saved["pixels", words]["with"])] for words in PIXELS]
    found["pixels"] = markdown(["bounds of the pixels", "test error"], lines)
    found["floors"] = _floors(saved)
    lines = [
        [words, *(interval(saved["missing", words][k]) for k in ("with", "many", "open", "ranks"))] for words in CODES
    ]
    heads = ["a missing cell is", "5,000 rows, epsilon 1", "50,000 rows, epsilon 4", "logistic regression, no privacy"]
    found["missing"] = markdown([*heads, "the same on exact ranks"], lines)
    return found


def _floors(saved: dict[tuple[str, str], Result]) -> str:
    """Errors without privacy on the same rows, and how many times as large those with it are."""
    lines = []
    for rows in (5_000, 1_000):
        one, own = saved["floors", f"hospital, {rows}"], np.mean(saved["tables", f"hospital, {rows}"]["with"])
        ratios = [f"{own / np.mean(one[way]):.2f}" for way in ("columns", "ranks", "truth")]
        lines.append(
            [f"{rows:,}", f"{own:.4f}", interval(one["columns"]), ratios[0], interval(one["ranks"]), ratios[1],
             f"{one['truth']:.4f}", ratios[2]]
        )  # fmt: skip
    return markdown(
        ["rows", "with bounds", "logistic regression", "ratio", "logistic regression on ranks", "ratio",
         "the true score", "ratio"], lines
    )  # fmt: skip


def _about(one: Result, words: Any) -> list[str]:
    return [words, f"{one['n']:,} x {one['d']}", f"{one['epsilon']:g}", str(len(one["with"]))]


def write() -> None:
    """Put the tables between their marks on the pages."""
    for page in (DOCS / "dp_pipeline.md", DOCS / "rules.md"):
        text = page.read_text()
        for name, table in on_pages().items():
            if (mark := f"<!-- bounds: {name} -->\n") in text:
                before, after = text.split(mark)
                text = f"{before}{mark}{table}\n<!-- end -->{after.partition('<!-- end -->')[2]}"
        page.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=(*PARTS, "report"), default=[*PARTS])
    parser.add_argument("--data", type=Path, help="folder of the real data sets")
    options = parser.parse_args()
    if options.part == ["report"]:
        write()
        return
    if options.data is None:
        parser.error("--data is needed")
    warnings.simplefilter("ignore")
    for part in options.part:
        done = {one["key"] for one in read() if one["part"] == part}
        for result in PARTS[part](options.data, done):
            with RESULTS.open("a") as file:
                file.write(json.dumps({"part": part} | result) + "\n")
            print(
                part, {k: np.round(np.mean(v), 4) if isinstance(v, list) else v for k, v in result.items()}, flush=True
            )


if __name__ == "__main__":
    main()

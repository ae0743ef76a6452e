"""Pictures of guarantees, plans, models and audits: what they draw is what was computed."""

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

from dptoolkit import models, plots, solvers
from dptoolkit.accounting import ExponentialMechanism, Gaussian, Repeated, account
from dptoolkit.errors import InvalidValue

IGHT = {"loss": "squared", "sparsity": 3, "steps": 4, "step_size": 1.0, "grad_norm": 1.0, "epsilon": 2.0, "delta": 1e-5}


@pytest.fixture(scope="module")
def fit():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 8))
    return solvers.dp_ight(X, X[:, 0], rng=0, trace=True, **IGHT), X


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_everything_with_a_plot_method_writes_a_file(fit, tmp_path, suffix):
    result, _ = fit
    for name, thing in (("guarantee", result.guarantee), ("plan", result.plan), ("result", result)):
        path = tmp_path / f"{name}.{suffix}"
        thing.plot(path)
        assert path.stat().st_size > 1000


def test_a_profile_draws_what_account_says():
    guarantee = account(Repeated(ExponentialMechanism(0.1), 50))
    (axes,) = plots.profile(guarantee).axes
    curves = {line.get_label(): line.get_xydata() for line in axes.lines}
    own = curves[f"dptoolkit ({guarantee.method})"]
    assert [guarantee.epsilon(float(d)) for d, _ in own] == [e for _, e in own]
    assert (curves["rdp"][:, 1] >= own[:, 1] * (1 - 1e-9)).all()


def test_a_trade_off_curve_draws_what_the_guarantee_says():
    guarantee = account(Repeated(Gaussian(4.0), 10), adjacency="replace-one")
    (axes,) = plots.guarantee_trade_off(guarantee).axes
    curve, blind = axes.lines[0].get_xydata(), axes.lines[1].get_xydata()
    assert (curve[:, 1] == guarantee.tradeoff(curve[:, 0])).all() and blind.tolist() == [[0, 1], [1, 0]]


def test_a_guarantee_that_promises_nothing_is_not_drawn():
    with pytest.raises(InvalidValue, match="promises something"):
        plots.profile(account(Gaussian(0.0)))


def test_bars_of_noise_say_what_the_noise_gives():
    logistic = IGHT | {"loss": "logistic", "row_norm": 1.0, "grad_norm": None}
    tight = solvers.plan("dp_ight", n=1000, d=8, **logistic)
    published = solvers.plan("dp_ight", n=1000, d=8, calibration="published", **logistic)
    (axes,) = plots.noise({"tight": tight, "published": published}).axes
    words = [text.get_text() for text in axes.texts]
    assert any(w == "epsilon 2" for w in words)
    assert any(w.startswith("epsilon 5.3") and w.endswith("claimed 2") for w in words)
    assert [bar.get_width() for bar in axes.patches] == [published.noise, tight.noise]


def test_errors_have_bands_a_chance_line_and_true_epsilons():
    series = {"a": [[0.3, 0.2], [0.5, 0.2]], "b": [0.4, 0.1]}
    (axes,) = plots.errors([1.0, 2.0], series, chance=0.5, true_epsilons={"b": [2.4, 5.3]}).axes
    assert axes.lines[0].get_ydata().tolist() == [0.4, 0.2] and axes.lines[0].get_xdata().tolist() == [1.0, 2.0]
    assert axes.lines[0].get_linewidth() > 2 * axes.lines[1].get_linewidth()
    # Published noise stands at its true epsilon; its claims are where the arrows begin.
    assert axes.lines[1].get_xdata().tolist() == [2.4, 5.3] and axes.lines[1].get_ydata().tolist() == [0.4, 0.1]
    arrows = [(text.xyann[0], text.xy[0]) for text in axes.texts if not text.get_text()]
    assert arrows == [(1.0, 2.4), (2.0, 5.3)]
    assert len(axes.collections) == 2  # only the repeated series has a band; the claims are points
    assert {"chance", "truly 2.4", "truly 5.3"} <= {text.get_text() for text in axes.texts}


def test_support_counts_what_was_found_and_what_is_true(fit):
    result, _ = fit
    truth = np.eye(8)[0] + np.eye(8)[1]
    (axes,) = plots.support(truth, {"fit": result}).axes
    chosen = set(np.flatnonzero(result.coef))
    assert [bar.get_height() for bar in axes.patches] == [len(chosen & {0, 1}) / 2, len(chosen & {0, 1}) / len(chosen)]
    with pytest.raises(InvalidValue, match="truth"):
        plots.support(np.zeros(8), {"fit": result})


def test_convergence_draws_the_objective_of_every_iterate(fit):
    result, X = fit
    (axes,) = plots.convergence(result, lambda w: float(np.mean((X @ w - X[:, 0]) ** 2))).axes
    values = axes.lines[0].get_ydata()
    assert len(values) == len(result.history["iterates"])
    assert values[-1] == pytest.approx(float(np.mean((X @ result.coef - X[:, 0]) ** 2)))
    untraced = solvers.dp_ight(X, X[:, 0], rng=0, **IGHT)
    with pytest.raises(InvalidValue, match="trace=True"):
        plots.convergence(untraced, lambda w: 0.0)


def test_weights_are_the_largest_ones_with_their_names(fit):
    result, _ = fit
    names = [f"column {j}" for j in range(8)]
    (axes,) = plots.weights(result, names).axes
    shown = {label.get_text() for label in axes.get_yticklabels()}
    assert shown == {names[j] for j in np.flatnonzero(result.coef)}
    with pytest.raises(InvalidValue, match="names"):
        plots.weights(result, names[:3])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("classes", [2, 4])
def test_weights_of_models_and_estimators_come_with_their_names(fit, classes):
    _, X = fit
    y = np.digitize(X[:, 0], np.linspace(-1, 1, classes - 1)) if classes > 2 else (X[:, 0] > 0).astype(int)
    names = tuple(f"cost $ {j}" for j in range(8))
    model = models.fit(X, y, task="classification", epsilon=50.0, row_norm=1.0, rng=0, feature_names=names)
    figure = plots.weights(model)
    drawn = [axes for axes in figure.axes if axes.get_visible()]
    assert len(drawn) == len(model.coef)
    for axes, row in zip(drawn, model.coef, strict=True):
        shown = [label.get_text().replace("\\$", "$") for label in axes.get_yticklabels()]
        assert shown == [names[j] for j in np.argsort(np.abs(row), kind="stable") if row[j] != 0]
        assert sorted(bar.get_width() for bar in axes.patches) == sorted(w for w in row if w != 0)
    figure.canvas.draw()
    estimators = pytest.importorskip("dptoolkit.estimators", reason="estimators need scikit-learn")
    estimator = estimators.PrivateSparseClassifier(epsilon=50.0, random_state=0)
    with pytest.raises(InvalidValue, match="Fit it first"):
        plots.weights(estimator)
    fitted = estimator.fit(X, y).sparsify()
    widths = [bar.get_width() for axes in plots.weights(fitted).axes for bar in axes.patches]
    assert sorted(widths) == sorted(fitted.coef_.data.tolist())

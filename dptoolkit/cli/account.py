"""``dptoolkit account``: what a release guarantees, or how much noise a guarantee needs."""

from __future__ import annotations

import argparse
import decimal
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dptoolkit
from dptoolkit._validate import invalid, positive, probability, whole
from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.ledger import saved_ledger
from dptoolkit.cli.output import in_shell, json_text
from dptoolkit.errors import InvalidValue, UnsupportedEvent

# --- what was released ----------------------------------------------------------------------------

_OMITTED = object()


@dataclass(frozen=True)
class _Mechanism:
    """An option that names a mechanism: what its numbers are called, and whether the number is noise."""

    numbers: tuple[str, ...]
    help: str
    make: Callable[..., Any]
    is_noise: bool = False


_MECHANISMS = {
    "gaussian": _Mechanism(
        ("noise_multiplier",), "Gaussian noise, scale / L2 sensitivity",
        lambda args, z: dptoolkit.accounting.Gaussian(z), is_noise=True),
    "laplace": _Mechanism(
        ("noise_multiplier",), "Laplace noise, scale / L1 sensitivity",
        lambda args, z: dptoolkit.accounting.Laplace(z), is_noise=True),
    "two-sided-geometric": _Mechanism(
        ("epsilon",), "integer noise on an integer query",
        lambda args, e: dptoolkit.accounting.TwoSidedGeometric(e, 1 if args.sensitivity is None else args.sensitivity)),
    "discrete-gaussian": _Mechanism(
        ("sigma",), "integer Gaussian noise on an integer query",
        lambda args, s: dptoolkit.accounting.DiscreteGaussian(s, 1 if args.sensitivity is None else args.sensitivity),
        is_noise=True),
    "selection": _Mechanism(
        ("epsilon",), "selection by the exponential mechanism (Gumbel noise), epsilon = range / scale",
        lambda args, e: dptoolkit.accounting.ExponentialMechanism(e)),
    "noisy-max": _Mechanism(
        ("epsilon",), "selection by report-noisy-max, epsilon = range / scale",
        lambda args, e: dptoolkit.accounting.NoisyMax(e, args.noise or "laplace")),
    "pure": _Mechanism(("epsilon",), "any epsilon-DP mechanism", lambda args, e: dptoolkit.accounting.PureDp(e)),
    "approx": _Mechanism(
        ("epsilon", "delta"), "any (epsilon, delta)-DP mechanism",
        lambda args, e, d: dptoolkit.accounting.ApproxDp(e, d)),
    "objective-perturbation": _Mechanism(
        ("noise_multiplier", "jacobian"), "minimiser of a perturbed objective: sigma / (L or 2L), log(1 + beta/lambda)",
        lambda args, z, c: dptoolkit.accounting.ObjectivePerturbation(
            z, c, args.signed, dptoolkit.accounting.Adjacency.parse(args.adjacency or "replace-one"))),
    "zcdp": _Mechanism(("rho",), "any rho-zCDP mechanism", lambda args, rho: dptoolkit.accounting.ZCdp(rho)),
}  # fmt: skip

_NOISES = {mechanism.numbers[0] for mechanism in _MECHANISMS.values() if mechanism.is_noise}
# An option that needs another, and the options of which one must be there.
_NEEDS = (
    ("noise", ("noisy_max",)), ("signed", ("objective_perturbation",)),
    ("sensitivity", ("two_sided_geometric", "discrete_gaussian")),
    ("sampling", ("rate",)), ("rate", ("sampling",)), ("round_limit", ("random_rounds",)),
)  # fmt: skip
_NOT_WITH_LEDGER = ("sampling", "steps", "random_rounds", "epochs", "calibrate")
_NOT_WITH_COMPARE = ("method", "epsilon", "bracket", "tradeoff")


def _account_arguments(parser: argparse.ArgumentParser) -> None:
    one = parser.add_argument_group("what is released").add_mutually_exclusive_group(required=True)
    for name, mechanism in _MECHANISMS.items():
        _add_mechanism(one, name, mechanism)
    one.add_argument("--ledger", metavar="FILE", help="all charges of a saved ledger")
    how = parser.add_argument_group("how it is released")
    how.add_argument("--noise", help="noise of --noisy-max: laplace (default) or exponential")
    how.add_argument("--sensitivity", type=int, metavar="D", help="sensitivity for integer noise, default 1")
    how.add_argument("--signed", action="store_true", help="of --objective-perturbation: slopes have one sign")
    how.add_argument("--sampling", metavar="SCHEME", help="sampling of a random batch: poisson or without-replacement")
    how.add_argument("--rate", type=float, help="sampling rate: batch size / n")
    how.add_argument("--steps", type=int, metavar="T", help="number of repetitions, default 1")
    how.add_argument("--random-rounds", type=float, metavar="GAMMA", help="random rounds: P(N=k) = (1-GAMMA) GAMMA^k")
    how.add_argument("--round-limit", type=int, metavar="K", help="largest number of random rounds")
    how.add_argument("--epochs", type=int, metavar="J", help="number of repetitions of all of the above, default 1")
    how.add_argument("--adjacency", help="adjacency of the sensitivity: replace-one or zero-out")
    ask = parser.add_argument_group("what to print")
    ask.add_argument("--delta", type=float, action="append", help="print epsilon at this delta; may be repeated")
    ask.add_argument("--epsilon", type=float, action="append", help="print delta at this epsilon; may be repeated")
    ask.add_argument("--bracket", action="store_true", help="also print a lower bound on epsilon")
    ask.add_argument(
        "--tradeoff",
        type=float,
        action="append",
        nargs="?",
        const=_OMITTED,
        metavar="ALPHA",
        help="print the smallest missed-detection rate of any test at this false-alarm rate, and how "
        "often a guess can be right; may be repeated; without a number, at a few rates",
    )
    ask.add_argument("--method", help="use this method instead of the tightest; --compare lists them")
    ask.add_argument("--compare", action="store_true", help="print epsilon by every method")
    calibrate = "find the smallest noise that meets this epsilon"
    ask.add_argument("--calibrate", type=float, metavar="EPSILON", help=calibrate)


def _add_mechanism(group: Any, name: str, mechanism: _Mechanism) -> None:
    metavar = tuple(number.upper() for number in mechanism.numbers)
    if len(metavar) > 1:
        group.add_argument(f"--{name}", nargs=len(metavar), type=float, metavar=metavar, help=mechanism.help)
    else:
        group.add_argument(f"--{name}", nargs="?", const=_OMITTED, type=float, metavar=metavar[0], help=mechanism.help)


def _check_options(args: argparse.Namespace) -> None:
    for option, partners in _NEEDS:
        if getattr(args, option) not in (None, False) and all(getattr(args, other) is None for other in partners):
            raise InvalidValue(f"{_flag(option)}: must be given together with {' or '.join(map(_flag, partners))}.")
    for option in _NOT_WITH_LEDGER:
        if args.ledger is not None and getattr(args, option) is not None:
            raise InvalidValue(f"{_flag(option)}: must be left out with --ledger. The ledger lists what was released.")
    for option in _NOT_WITH_COMPARE:
        if args.compare and getattr(args, option):
            raise InvalidValue(f"{_flag(option)}: must be left out with --compare.")


def _flag(dest: str) -> str:
    return "--" + dest.replace("_", "-")


def _mechanism_option(args: argparse.Namespace) -> tuple[str, Any]:
    """The name of the mechanism and its value on the command line; argparse makes sure that there is one."""
    options = {name: getattr(args, name.replace("-", "_")) for name in _MECHANISMS}
    return next((name, value) for name, value in options.items() if value is not None)


def _given_event(args: argparse.Namespace) -> Any:
    if args.ledger is not None:
        return _ledger_event(args)
    name, value = _mechanism_option(args)
    if value is _OMITTED:
        raise InvalidValue(f"--{name}: must have a number. Give one, or use --calibrate EPSILON to find it.")
    return _event(args, *(value if isinstance(value, list) else [value]))


def _ledger_event(args: argparse.Namespace) -> Any:
    """Everything in the ledger; its adjacency, if it has one, is that of the answer."""
    ledger = saved_ledger("ledger", "--ledger", args.ledger)
    if ledger.adjacency is not None:
        if args.adjacency not in (None, ledger.adjacency.value):
            raise invalid("adjacency", args.adjacency, f"'{ledger.adjacency}', as in the ledger, or left out")
        args.adjacency = ledger.adjacency.value
    return ledger.event


def _event(args: argparse.Namespace, *numbers: float) -> Any:
    """epochs x random rounds x steps x sampling x mechanism; a layer that was not asked for is left out."""
    acc = dptoolkit.accounting
    event = _elementary(args, *numbers)
    if args.sampling is not None:
        event = acc.Subsampled(event, args.sampling, args.rate, args.adjacency)
    if args.steps is not None:
        event = acc.Repeated(event, whole("steps", args.steps))
    if args.random_rounds is not None:
        event = acc.RandomRounds(event, _rounds(args.random_rounds, args.round_limit))
    return event if args.epochs is None else acc.Repeated(event, whole("epochs", args.epochs))


def _elementary(args: argparse.Namespace, *numbers: float) -> Any:
    """The event of the mechanism alone; an error about one of its numbers names the mechanism's option."""
    name = _mechanism_option(args)[0]
    mechanism = _MECHANISMS[name]
    try:
        return mechanism.make(args, *numbers)
    except InvalidValue as problem:
        own = dict.fromkeys(mechanism.numbers, f"--{name}")
        raise InvalidValue(in_shell(str(problem), own)) from None


def _rounds(gamma: float, limit: int | None) -> Any:
    acc = dptoolkit.accounting
    return acc.Geometric(gamma) if limit is None else acc.TruncatedGeometric(gamma, limit)


# --- what to tell ---------------------------------------------------------------------------------

# Digits of a calibrated number.
_DIGITS = 7
# A comparison leaves out the recursion for selections above this cost, a few seconds.
_COMPARE_COST = 2e9

Told = tuple[str, dict[str, Any]]  # for people, for machines


def _account(args: argparse.Namespace) -> tuple[str, int]:
    _check_options(args)
    calibration = None if args.calibrate is None else _calibrated(args)
    event = _given_event(args) if calibration is None else _event(args, calibration["value"])
    guarantee = dptoolkit.accounting.account(event, args.method, adjacency=args.adjacency)
    text, record = _compare(args, guarantee) if args.compare else _tell(args, guarantee)
    if calibration is not None:
        text, record = f"{_sentence(calibration)}\n\n{text}", {"calibrated": calibration} | record
    return (json_text(record) if args.json else text), FINE


def _calibrated(args: argparse.Namespace) -> dict[str, Any]:
    """The number of the mechanism that spends the budget, rounded to the private side."""
    name, value = _mechanism_option(args)
    mechanism = _MECHANISMS[name]
    if value is not _OMITTED:
        raise InvalidValue(f"--{name}: must be given without a number with --calibrate, which finds it.")
    if args.delta is None or len(args.delta) != 1:
        raise invalid("delta", args.delta, "exactly one with --calibrate", "For example --delta 1e-5.")
    epsilon, delta = positive("calibrate", args.calibrate), args.delta[0]

    def event(noise: float) -> Any:
        return _event(args, noise if mechanism.is_noise else 1 / noise)

    noise = dptoolkit.accounting.calibrate(event, epsilon, delta, method=args.method)
    exact = noise if mechanism.is_noise else 1 / noise
    short = _rounded(exact, up=mechanism.is_noise)
    within_budget = dptoolkit.accounting.account(_event(args, short), args.method).epsilon(delta) <= epsilon
    value = short if within_budget else exact
    return {"number": mechanism.numbers[0], "value": value, "epsilon": epsilon, "delta": delta}


def _rounded(value: float, *, up: bool) -> float:
    rounding = decimal.ROUND_CEILING if up else decimal.ROUND_FLOOR
    return float(decimal.Context(prec=_DIGITS, rounding=rounding).create_decimal_from_float(value))


def _sentence(answer: dict[str, Any]) -> str:
    which = "smallest" if answer["number"] in _NOISES else "largest"
    budget = f"epsilon {answer['epsilon']:g} at delta {answer['delta']:g}"
    return f"{answer['number']} = {answer['value']!r}: the {which} that meets {budget}"


def _deltas(args: argparse.Namespace) -> list[float]:
    from dptoolkit.accounting.guarantee import REFERENCE_DELTA

    return args.delta or [REFERENCE_DELTA]


def _tell(args: argparse.Namespace, guarantee: Any) -> Told:
    """The guarantee, and the answers that were asked for."""
    deltas = _deltas(args) if args.bracket else args.delta or []
    answers = [_at_delta(guarantee, delta, args.bracket) for delta in deltas]
    answers += [{"delta": guarantee.delta(epsilon), "epsilon": epsilon} for epsilon in args.epsilon or []]
    text, record = str(guarantee), guarantee.to_dict() | {"asked": answers}
    if answers:
        text += "\n\nAsked for\n" + _answer_table(answers)
    if args.tradeoff:
        more, guesses = _guesses(args, guarantee)
        text, record = f"{text}\n\n{more}", record | {"tradeoff": guesses}
    return text, record


# False-alarm rates at which the trade-off curve is shown if none is given.
_FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)


def _guesses(args: argparse.Namespace, guarantee: Any) -> Told:
    """The trade-off curve at a few rates, and the guarantee in a sentence."""
    from dptoolkit.accounting.report import at_least, at_most, number, table

    given = [rate for rate in args.tradeoff if rate is not _OMITTED]
    rates = [probability("tradeoff", rate) for rate in given] or list(_FALSE_ALARMS)
    bounds = [guarantee.tradeoff_bounds(rate) for rate in rates] if args.bracket else []
    missed = [guarantee.tradeoff(rate) for rate in rates]
    header = ["false alarms", "missed, at least", *(["some test misses"] if bounds else [])]
    rows = [
        [number(rate), at_least(beta), *([at_most(bounds[i].upper)] if bounds else [])]
        for i, (rate, beta) in enumerate(zip(rates, missed, strict=True))
    ]
    points = [
        {"false_alarm": rate, "missed": beta} | ({"missed_by_some_test": bounds[i].upper} if bounds else {})
        for i, (rate, beta) in enumerate(zip(rates, missed, strict=True))
    ]
    record = {"points": points, "advantage": guarantee.advantage, "bayes_success": guarantee.bayes_success(),
              "sentence": guarantee.sentence}  # fmt: skip
    return f"Trade-off curve\n{table(header, rows)}\n\n{guarantee.sentence}", record


def _at_delta(guarantee: Any, delta: float, bracket: bool) -> dict[str, Any]:
    answer = {"delta": delta, "epsilon": guarantee.epsilon(delta), "method": guarantee.method_at(delta)}
    return answer | ({"lower": guarantee.bounds(delta).lower} if bracket else {})


def _answer_table(answers: list[dict[str, Any]]) -> str:
    from dptoolkit.accounting.report import at_least, at_most, number, table

    formats: dict[str, Callable[[Any], str]] = {"delta": number, "epsilon": at_most, "method": str, "lower": at_least}
    names = [name for name in formats if any(name in answer for answer in answers)]
    rows = [[formats[name](answer[name]) if name in answer else "-" for name in names] for answer in answers]
    return table(names, rows)


def _compare(args: argparse.Namespace, guarantee: Any) -> Told:
    """Epsilon by every method, or in a few words why a method does not apply."""
    from dptoolkit.accounting.report import at_most, table

    deltas = _deltas(args)
    names = [None, *dptoolkit.accounting.METHODS]
    results = {name or "(default)": _by_method(guarantee, name, deltas) for name in names}
    header = ["method", *(f"epsilon at {delta:g}" for delta in deltas), "why not"]
    rows = [
        [name, *([at_most(e) for e in answer] if isinstance(answer, list) else ["-"] * len(deltas)),
         answer if isinstance(answer, str) else ""]
        for name, answer in results.items()
    ]  # fmt: skip
    record = {name: {"why_not" if isinstance(answer, str) else "epsilon": answer} for name, answer in results.items()}
    return table(header, rows), {"event": guarantee.event.to_dict(), "delta": deltas, "methods": record}


def _by_method(guarantee: Any, method: str | None, deltas: list[float]) -> list[float] | str:
    if method == "bounded-range" and any(_is_long(guarantee.event, delta) for delta in deltas):
        return "slow for this event: use --method bounded-range"
    try:
        answer = dptoolkit.accounting.account(guarantee.event, method)
        return [answer.epsilon(delta) for delta in deltas]
    except UnsupportedEvent as problem:
        # Errors read "what: must be <bound>. <repair>": the bound is the reason.
        bound = str(problem).partition(": must ")[2].partition(". ")[0]
        return f"must {bound}".replace(f" for method {method!r}", "").rstrip(".")
    except (ArithmeticError, MemoryError):
        # Not an error here: other methods may still have an answer.
        return "the numbers are too large or too small for it"


def _is_long(event: Any, delta: float) -> bool:
    acc = dptoolkit.accounting
    ranges = [(acc.rules.rules_of(part).bounded_range, part, count) for part, count in acc.events.flatten(event)]
    selections = [(of(part), count) for of, part, count in ranges if of is not None]
    return delta > 0 and any(
        math.isfinite(epsilon) and epsilon > 0 and acc.selection.recursion_cost(epsilon, count, delta) > _COMPARE_COST
        for epsilon, count in selections
    )


COMMAND = Command(
    "What a release guarantees, or how much noise a guarantee needs.",
    """\
  dptoolkit account --gaussian 2.5 --sampling without-replacement --rate 0.01 --steps 1000 --delta 1e-5
  dptoolkit account --gaussian --calibrate 1 --delta 1e-5 --sampling poisson --rate 0.01 --steps 1000
  dptoolkit account --selection 0.1 --steps 1000 --compare
  dptoolkit account --selection --calibrate 1 --delta 1e-5 --steps 100
  dptoolkit account --gaussian 20 --random-rounds 0.9 --epochs 10 --delta 1e-5 --bracket
  dptoolkit account --gaussian 2.5 --steps 10 --adjacency replace-one --tradeoff
  dptoolkit account --ledger ledger.json --delta 1e-6 --json""",
    _account_arguments,
    _account,
)

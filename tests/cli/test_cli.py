"""The command line: what it prints, what it refuses, and how it exits."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

import dptoolkit
from dptoolkit import cli, progress, solvers
from dptoolkit.accounting import (
    METHODS,
    ApproxDp,
    DiscreteGaussian,
    ExponentialMechanism,
    Gaussian,
    Geometric,
    Laplace,
    Ledger,
    NoisyMax,
    ObjectivePerturbation,
    PureDp,
    RandomRounds,
    Repeated,
    Subsampled,
    TruncatedGeometric,
    TwoSidedGeometric,
    ZCdp,
    account,
)
from dptoolkit.audit import presets
from paper_checks.__main__ import main as checks
from paper_checks.progress import Progress


@pytest.fixture(autouse=True)
def without_progress(monkeypatch):
    """No line of progress among the lines that are counted, however slow the machine is or how much is compiled."""
    monkeypatch.setattr(cli.output, "DELAY", 1e6)


@pytest.fixture
def run(capsys):
    """Run a command line given as one string; (exit code, stdout, stderr)."""

    def _run(line: str) -> tuple[int, str, str]:
        code = cli.main(shlex.split(line))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return _run


@pytest.fixture
def asked(run):
    """The JSON that ``dptoolkit account <line> --json`` prints."""

    def _asked(line: str) -> dict:
        code, out, err = run(f"account {line} --json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return _asked


EVENTS = [
    ("--gaussian 2.5", Gaussian(2.5)),
    ("--laplace 4", Laplace(4.0)),
    ("--objective-perturbation 4 0.2", ObjectivePerturbation(4.0, 0.2)),
    ("--objective-perturbation 4 0.2 --signed --adjacency zero-out", ObjectivePerturbation(4.0, 0.2, True, "zero-out")),
    ("--two-sided-geometric 0.5", TwoSidedGeometric(0.5)),
    ("--two-sided-geometric 0.5 --sensitivity 3", TwoSidedGeometric(0.5, 3)),
    ("--discrete-gaussian 2.5", DiscreteGaussian(2.5)),
    ("--discrete-gaussian 2.5 --sensitivity 3", DiscreteGaussian(2.5, 3)),
    ("--selection 0.1", ExponentialMechanism(0.1)),
    ("--noisy-max 0.1", NoisyMax(0.1)),
    ("--noisy-max 0.1 --noise exponential", NoisyMax(0.1, "exponential")),
    ("--pure 0.3", PureDp(0.3)),
    ("--approx 0.3 1e-7", ApproxDp(0.3, 1e-7)),
    ("--zcdp 0.02", ZCdp(0.02)),
    ("--gaussian 2.5 --steps 7", Repeated(Gaussian(2.5), 7)),
    ("--gaussian 2 --sampling poisson --rate 0.1", Subsampled(Gaussian(2.0), "poisson", 0.1)),
    (
        "--gaussian 2 --sampling poisson --rate 0.1 --adjacency replace-one",
        Subsampled(Gaussian(2.0), "poisson", 0.1, "replace-one"),
    ),
    (
        "--gaussian 2 --sampling without-replacement --rate 0.1 --steps 3",
        Repeated(Subsampled(Gaussian(2.0), "without-replacement", 0.1), 3),
    ),
    ("--gaussian 20 --random-rounds 0.9", RandomRounds(Gaussian(20.0), Geometric(0.9))),
    (
        "--gaussian 20 --steps 2 --random-rounds 0.9 --round-limit 30 --epochs 4",
        Repeated(RandomRounds(Repeated(Gaussian(20.0), 2), TruncatedGeometric(0.9, 30)), 4),
    ),
    ("--gaussian 2 --steps 3 --epochs 5", Repeated(Repeated(Gaussian(2.0), 3), 5)),
]


@pytest.mark.parametrize(("line", "event"), EVENTS, ids=[line for line, _ in EVENTS])
def test_options_build_the_event_they_say(asked, line, event):
    record = asked(f"{line} --delta 1e-5")
    assert record["event"] == event.to_dict()
    assert record["asked"] == [
        {"delta": 1e-5, "epsilon": account(event).epsilon(1e-5), "method": account(event).method_at(1e-5)}
    ]


def test_the_guarantee_is_printed_and_then_what_was_asked_for(run):
    guarantee = account(Repeated(Gaussian(2.5), 7))
    code, out, err = run("account --gaussian 2.5 --steps 7 --delta 1e-4 --delta 1e-6 --epsilon 2")
    assert (code, err) == (0, "")
    assert out.startswith(str(guarantee))
    rows = [line.split() for line in out.splitlines()[-3:]]
    assert rows == [
        ["0.0001", f"{guarantee.epsilon(1e-4):.4g}", "gaussian"],
        ["1e-06", f"{guarantee.epsilon(1e-6):.4g}", "gaussian"],
        [f"{guarantee.delta(2.0):.4g}", "2", "-"],
    ]


def test_without_a_question_only_the_guarantee_is_printed(run):
    assert run("account --gaussian 2.5")[1] == f"{account(Gaussian(2.5))}\n"


def test_tradeoff_gives_the_curve_and_a_sentence(asked):
    record = asked("--gaussian 1 --adjacency replace-one --tradeoff 0.1 --tradeoff 0 --bracket")["tradeoff"]
    first, second = record["points"]
    assert first["missed"] == pytest.approx(0.610856, abs=1e-6) and first["missed"] <= first["missed_by_some_test"]
    assert (second["false_alarm"], second["missed"]) == (0.0, 1.0)
    assert record["advantage"] == pytest.approx(0.382925, abs=1e-6) and record["bayes_success"] < 0.6915
    assert "is right at most 70 times in 100" in record["sentence"]
    assert len(asked("--laplace 2 --tradeoff")["tradeoff"]["points"]) > 3


def test_bracket_gives_the_lower_bound_too(asked):
    event = Repeated(Subsampled(Gaussian(2.5), "without-replacement", 0.01), 1000)
    (answer,) = asked("--gaussian 2.5 --steps 1000 --sampling without-replacement --rate 0.01 --bracket")["asked"]
    bounds = account(event).bounds(1e-5)
    assert (answer["lower"], answer["epsilon"]) == (bounds.lower, bounds.upper)
    assert answer["lower"] < answer["epsilon"]


def test_a_forced_method_is_used(asked):
    (answer,) = asked("--gaussian 2 --steps 10 --method zcdp --delta 1e-5")["asked"]
    assert answer["method"] == "zcdp"
    assert answer["epsilon"] == account(Repeated(Gaussian(2.0), 10), "zcdp").epsilon(1e-5)


def test_infinity_is_valid_json(asked):
    record = asked("--gaussian 0 --delta 1e-5")
    assert record["asked"][0]["epsilon"] == "inf"


def test_compare_shows_every_method_or_why_not(run, asked):
    line = "--gaussian 2 --steps 10 --sampling poisson --rate 0.1 --compare --delta 1e-5 --delta 1e-8"
    methods = asked(line)["methods"]
    event = Repeated(Subsampled(Gaussian(2.0), "poisson", 0.1), 10)
    assert methods["rdp"]["epsilon"] == [account(event, "rdp").epsilon(d) for d in (1e-5, 1e-8)]
    assert methods["(default)"]["epsilon"] == [account(event).epsilon(d) for d in (1e-5, 1e-8)]
    assert methods["gaussian"] == {"why_not": "must be Gaussian"}
    assert methods["bounded-range"] == {"why_not": "must be ExponentialMechanism"}
    table = run(f"account {line}")[1]
    assert all(any(row.startswith(name) for row in table.splitlines()) for name in methods)


def test_compare_does_not_wait_for_the_long_recursion(asked):
    methods = asked("--selection 0.1 --steps 10000 --compare")["methods"]
    assert methods["bounded-range"]["why_not"].startswith("slow for this event")
    assert "epsilon" in asked("--selection 0.1 --steps 20 --compare")["methods"]["bounded-range"]


def test_a_method_that_fails_does_not_take_the_others_along(asked, monkeypatch):
    failing = dataclasses.replace(METHODS["rdp"], epsilon=_raising(OverflowError("large")))
    monkeypatch.setitem(METHODS, "rdp", failing)
    methods = asked("--laplace 2 --steps 10 --compare")["methods"]
    assert methods["rdp"] == {"why_not": "the numbers are too large or too small for it"}
    assert "epsilon" in methods["zcdp"]


CALIBRATIONS = [
    ("--gaussian", "noise_multiplier", lambda v: Repeated(Gaussian(v), 100)),
    ("--laplace", "noise_multiplier", lambda v: Repeated(Laplace(v), 100)),
    ("--discrete-gaussian --sensitivity 3", "sigma", lambda v: Repeated(DiscreteGaussian(v, 3), 100)),
    ("--selection", "epsilon", lambda v: Repeated(ExponentialMechanism(v), 100)),
    ("--noisy-max --noise exponential", "epsilon", lambda v: Repeated(NoisyMax(v, "exponential"), 100)),
    ("--pure", "epsilon", lambda v: Repeated(PureDp(v), 100)),
    ("--zcdp", "rho", lambda v: Repeated(ZCdp(v), 100)),
]


@pytest.mark.parametrize(("line", "number", "make"), CALIBRATIONS, ids=[line for line, _, _ in CALIBRATIONS])
def test_calibration_keeps_the_budget_and_wastes_little_of_it(asked, line, number, make):
    record = asked(f"{line} --steps 100 --calibrate 1 --delta 1e-5")
    found = record["calibrated"]
    assert found["number"] == number
    assert record["event"] == make(found["value"]).to_dict()
    assert account(make(found["value"])).epsilon(1e-5) <= 1
    more_loss = found["value"] * (0.98 if number in ("noise_multiplier", "sigma") else 1.02)
    assert account(make(more_loss)).epsilon(1e-5) > 1


def test_a_calibrated_number_is_printed_as_it_was_accounted_for(run, asked):
    line = "account --gaussian --calibrate 1 --delta 1e-5"
    value = asked(line.removeprefix("account "))["calibrated"]["value"]
    first = run(line)[1].splitlines()[0]
    assert first == f"noise_multiplier = {value!r}: the smallest that meets epsilon 1 at delta 1e-05"
    assert float(f"{value:.7g}") == value


@pytest.mark.parametrize("up", [True, False])
def test_rounding_never_leaves_the_private_side(up):
    for value in (1.41469012345, 0.0527318799, 123456789.123, 3e-9, 1.0):
        short = cli.account._rounded(value, up=up)
        assert short >= value if up else short <= value
        assert abs(short / value - 1) <= 1e-6


def test_a_saved_ledger_is_accounted_for(asked, run, tmp_path):
    ledger = Ledger(epsilon=5.0, delta=1e-5)
    ledger.spend(Gaussian(4.0), count=3)
    ledger.spend(Subsampled(Laplace(5.0), "poisson", 0.1), count=2, label="counts")
    path = tmp_path / "ledger.json"
    path.write_text(ledger.to_json(), encoding="utf-8")
    (answer,) = asked(f"--ledger {path} --delta 1e-6")["asked"]
    assert answer["epsilon"] == ledger.guarantee.epsilon(1e-6)
    assert "Laplace" in run(f"account --ledger {path}")[1]
    # Poisson sampling has fixed the adjacency.
    assert "zero-out" in run(f"account --ledger {path}")[1]
    assert "must be 'zero-out', as in the ledger" in run(f"account --ledger {path} --adjacency replace-one")[2]


BAD = [
    ("", "arguments are required: COMMAND"),
    ("nonsense", "invalid choice: 'nonsense'"),
    ("account", "one of the arguments --gaussian"),
    ("plan nope --n 3 --d 5", "SOLVER nope: must be one of"),
    ("account --gaussian two", "invalid float value: 'two'"),
    ("account --gaussian -3", "--gaussian -3.0: must be >= 0"),
    ("account --gaussian nan", "--gaussian nan: must be"),
    ("account --gaussian", "--gaussian: must have a number"),
    ("account --gaussian 2 --laplace 3", "not allowed with argument"),
    ("account --gaussian 2 --steps 1.5", "invalid int value: '1.5'"),
    ("account --gaussian 2 --steps -1", "--steps -1: must be >= 0"),
    ("account --gaussian 2 --epochs -1", "--epochs -1: must be >= 0"),
    ("account --gaussian 2 --step 1", "unrecognized arguments: --step"),
    ("account --gaussian 2 --rate 0.1", "--rate: must be given together with --sampling"),
    ("account --gaussian 2 --sampling poisson", "--sampling: must be given together with --rate"),
    ("account --gaussian 2 --sampling some --rate 0.1", "--sampling some: must be one of"),
    ("account --gaussian 2 --sampling poisson --rate 2", "--rate 2.0: must be"),
    ("account --gaussian 2 --round-limit 3", "--round-limit: must be given together with --random-rounds"),
    ("account --gaussian 2 --random-rounds 1", "--random-rounds 1.0: must be"),
    ("account --gaussian 2 --noise laplace", "--noise: must be given together with --noisy-max"),
    ("account --gaussian 2 --signed", "with --objective-perturbation"),
    ("account --gaussian 2 --sensitivity 2", "with --two-sided-geometric or --discrete-gaussian"),
    ("account --noisy-max 1 --noise gumbel", "--noise gumbel: must be one of"),
    ("account --gaussian 2 --delta 1", "--delta 1.0: must be"),
    ("account --gaussian 2 --epsilon -1", "--epsilon -1.0: must be"),
    ("account --gaussian 2 --method magic", "--method magic: must be one of"),
    ("account --laplace 2 --method gaussian --delta 1e-5", "must be Gaussian for method 'gaussian'"),
    ("account --gaussian 2 --adjacency add", "--adjacency add: must be one of"),
    ("account --gaussian 2 --compare --method rdp", "--method: must be left out with --compare"),
    ("account --gaussian 2 --calibrate 1 --delta 1e-5", "--gaussian: must be given without a number"),
    ("account --approx 1 1e-6 --calibrate 1 --delta 1e-5", "--approx: must be given without a number"),
    ("account --gaussian --calibrate 1", "--delta: must be exactly one"),
    ("account --gaussian --calibrate 0 --delta 1e-5", "--calibrate 0.0: must be > 0"),
    ("account --gaussian --calibrate 1 --delta 0", "must be reachable"),
    ("account --ledger no-such-file", "--ledger no-such-file: must be a file"),
    ("account --ledger setup.cfg", "--ledger setup.cfg: must be JSON"),
    ("account --ledger x --steps 3", "--steps: must be left out with --ledger"),
    (f"account --laplace 2 --steps 1{'0' * 400}", "must be at most 1e+100"),
]


@pytest.mark.parametrize(("line", "message"), BAD, ids=[line[:60] or "nothing" for line, _ in BAD])
def test_bad_input_is_told_in_one_line_and_nothing_is_written(run, root, monkeypatch, line, message):
    monkeypatch.chdir(root)
    code, out, err = run(line)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("dptoolkit: ")
    assert message in err


@pytest.mark.parametrize("line", ["", *cli.COMMANDS])
def test_help_is_there_with_examples(capsys, line):
    with pytest.raises(SystemExit) as stop:
        cli.main([*line.split(), "--help"])
    assert stop.value.code == 0
    assert ("examples:\n  dptoolkit " + line if line else "Each command has its own help") in capsys.readouterr().out


def _commands_in_help() -> list[str]:
    examples = cli.COMMANDS["account"].examples + "\n" + cli.COMMANDS["plan"].examples
    lines = examples.replace("\\\n", "").splitlines()
    return [line.strip() for line in lines if "--ledger" not in line and "--help" not in line]


@pytest.mark.parametrize("line", _commands_in_help())
def test_the_examples_in_the_help_run(run, line):
    code, out, err = run(line.removeprefix("dptoolkit "))
    assert (code, err) == (0, "")
    assert out


def test_check_is_refused_where_the_checks_are_not(run, monkeypatch, tmp_path):
    monkeypatch.setattr(dptoolkit, "__file__", str(tmp_path / "dptoolkit" / "__init__.py"))
    code, out, err = run("check")
    assert (code, out) == (2, "")
    assert "paper_checks is not beside dptoolkit" in err


@pytest.mark.parametrize("code", [0, 1, 2])
def test_check_exits_as_the_checks_do(run, monkeypatch, tmp_path, code):
    checks = tmp_path / "paper_checks"
    checks.mkdir()
    expected = ["--tier", "full", "a"]
    (checks / "__main__.py").write_text(f"import sys; sys.exit({code} if sys.argv[1:] == {expected} else 9)")
    monkeypatch.setattr(dptoolkit, "__file__", str(tmp_path / "dptoolkit" / "__init__.py"))
    assert run("check --full a") == (code, "", "")


def test_the_module_runs_as_a_command(root):
    command = [sys.executable, "-m", "dptoolkit", "account", "--gaussian", "2"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{account(Gaussian(2.0))}\n", "")


def test_a_reader_that_has_left_is_no_error(root):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dptoolkit", "account", "--gaussian", "2"]
    done = subprocess.run(command, cwd=root, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["dptoolkit check", "paper_checks"])
def test_a_reader_of_the_checks_that_has_left_is_no_error(root, module):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", *module.split(), "--list"]
    done = subprocess.run(command, cwd=root, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 0 and "Error" not in done.stderr


@pytest.mark.parametrize(("line", "code"), [("account --gaussian 2", 0), ("account --gaussian two", 2),
                                            ("account --gaussian -2", 2), ("check nothing", 2)])  # fmt: skip
def test_the_exit_code_is_kept_where_nobody_reads_stderr(root, line, code):
    """A code of 1 would say that a check failed."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dptoolkit", *line.split()]
    done = subprocess.run(command, cwd=root, stdout=writer, stderr=writer)
    os.close(writer)
    assert done.returncode == code


def test_progress_that_nobody_reads_is_no_error(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    for terminal in (False, True):
        monkeypatch.setattr(Gone, "isatty", lambda self, terminal=terminal: terminal)
        monkeypatch.setattr("paper_checks.progress._PAUSE", 0.0)
        shown = Progress(1, Gone())
        shown.step("one")
        shown.close()
        monkeypatch.setattr(sys, "stderr", Gone())
        # A thread that fails is a warning of pytest, and so an error.
        with progress.reported("fit", delay=0.0):
            time.sleep(0.02)


# --- audit -------------------------------------------------------------------------------------------------


def test_audit_finds_nothing_where_the_noise_is_right(capsys):
    assert cli.main(["audit", "dp_ight", "--epsilon", "4", "--trials", "3000"]) == 0
    assert "no violation found by this attack" in capsys.readouterr().out


def test_audit_refutes_a_published_constant(capsys, tmp_path):
    # Remark 5.3 claims 4 and gives 4.84; the p-value at this seed is below 1e-30.
    page = tmp_path / "audit.html"
    line = ["audit", "dp_ight", "--epsilon", "4", "--published", "--trials", "30000", "--report", str(page)]
    assert cli.main(line) == 1
    out = capsys.readouterr().out
    assert "Audit: violation" in out
    assert "What this noise gives: epsilon 4.844" in out
    assert "data:image/png;base64," in page.read_text()


def test_audit_as_json(capsys):
    line = ["audit", "dp_frank_wolfe", "--epsilon", "4", "--adversary", "releases", "--trials", "1000", "--json"]
    assert cli.main(line) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "no violation found by this attack"
    assert record["trials"] == 1000
    assert record["epsilon_computed"] == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("audit nobody --epsilon 1", "SOLVER nobody: must be one of"),
        ("audit dp_ight --epsilon -1", "--epsilon -1.0: must be > 0"),
        ("audit dp_ight", "--epsilon"),
        ("audit dp_ight --epsilon 1 --trials 3", "--trials 3: must be >= 200"),
        ("audit dp_ight --epsilon 1 --trials 1000 --seconds 2", "not allowed with"),
        ("audit dp_ight --epsilon 1 --trials 1000 --adversary god", "--adversary god: must be one of"),
        ("audit dp_ight --epsilon 1 --trials 1000 --seed -3", "--seed -3: must be an integer >= 0"),
    ],
)
def test_audit_refuses_in_one_line(line, words, capsys):
    assert cli.main(line.split()) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert words in out.err
    assert out.err.count("\n") == 1


# --- nothing but one line, and the right exit code -----------------------------------------------------------------


def _is_one_line(result: tuple[int, str, str], code: int) -> str:
    assert result[0] == code
    assert result[1] == ""
    assert result[2].count("\n") == 1 and result[2].startswith("dptoolkit: ")
    return result[2]


PROBLEMS = [
    (ValueError("cannot convert\nfloat NaN"), "unexpected ValueError: cannot convert float NaN"),
    (KeyError("x"), "unexpected KeyError: 'x'"),
    (AssertionError(), "unexpected AssertionError. Set DPTOOLKIT_TRACEBACK=1"),
    (RecursionError("deep"), "nested too deeply"),
    (MemoryError("Unable to allocate 29.8 GiB"), "not enough memory. Unable to allocate"),
    (OverflowError("large"), "too large or too small"),
    (ZeroDivisionError("zero"), "too large or too small"),
    (OSError(28, "No space left on device"), "No space left on device"),
    (BrokenPipeError(), "BrokenPipeError"),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "unexpected UnicodeDecodeError"),
]


@pytest.mark.parametrize(("problem", "words"), PROBLEMS, ids=[type(problem).__name__ for problem, _ in PROBLEMS])
def test_whatever_goes_wrong_is_one_line_and_never_a_failed_check(run, monkeypatch, problem, words):
    monkeypatch.delenv("DPTOOLKIT_TRACEBACK", raising=False)
    monkeypatch.setattr(dptoolkit.accounting, "account", _raising(problem))
    assert words in _is_one_line(run("account --gaussian 2"), 2)


def _raising(problem: BaseException):
    def fail(*arguments, **named):
        raise problem

    return fail


def test_the_traceback_can_be_asked_for(run, monkeypatch):
    monkeypatch.setenv("DPTOOLKIT_TRACEBACK", "1")
    monkeypatch.setattr(dptoolkit.accounting, "account", _raising(KeyError("x")))
    code, out, err = run("account --gaussian 2")
    assert (code, out) == (2, "")
    assert "Traceback" in err and "in fail" in err and err.splitlines()[-1].startswith("dptoolkit: unexpected KeyError")


@pytest.mark.parametrize("line", [
    "--gaussian 2 --random-rounds 0.99999999 --delta 1e-5", f"--laplace 2 --steps 1{'0' * 22} --delta 1e-5",
    f"--pure 1e-3 --steps 1{'0' * 16} --delta 1e-5", f"--pure 1e-3 --steps 1{'0' * 22}",
    pytest.param(f"--pure 1e-3 --steps 1{'0' * 16} --delta 1e-5 --method optimal", marks=pytest.mark.slow),
])  # fmt: skip
def test_ends_of_the_ranges_have_an_answer_or_one_line(run, line):
    code, out, err = run(f"account {line}")
    assert (code == 0 and out and not err) or (code == 2 and not out and err.count("\n") == 1)


@pytest.mark.parametrize(("content", "words"), [
    (b"[" * 100_000, "nested too deeply"), (b'{"a":' * 3000 + b"1" + b"}" * 3000, "nested"), (b"\xff\xfe", "decode"),
    (b"", "must be JSON"), (b"[1, 2]", "must be JSON with format"),
])  # fmt: skip
def test_a_ledger_that_cannot_be_read_is_named(run, tmp_path, content, words):
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    told = _is_one_line(run(f"account --ledger {path}"), 2)
    assert words in told and "mine.json" in told


def test_a_ledger_without_end_is_not_read_to_its_end(run, monkeypatch):
    monkeypatch.setattr(cli.output, "_MAX_TEXT", 1000)
    assert "more than 1,000 bytes" in _is_one_line(run("account --ledger /dev/zero"), 2)


TYPOS = [
    ("acount --gaussian 2", "Did you mean account?"),
    ("--verson", "unrecognized arguments: --verson. Did you mean --version?"),
    ("account --gausian 2", "unrecognized arguments: --gausian. Did you mean --gaussian?"),
    ("account --gaussian 2 --detla=1e-5", "unrecognized arguments: --detla. Did you mean --delta?"),
    ("account --gaussian 2 -delta 1e-5", "unrecognized arguments: -delta. Did you mean --delta?"),
    ("audit dp_ight --epsilom 1", "unrecognized arguments: --epsilom. Did you mean --epsilon?"),
    ("check --ful", "Did you mean --full?"),
    ("demo --output x", "unrecognized arguments: --output. Did you mean --out?"),
    ("account --gaussian 2 --zzzzzz", "unrecognized arguments: --zzzzzz. See dptoolkit account --help"),
]


@pytest.mark.parametrize(("line", "words"), TYPOS, ids=[line for line, _ in TYPOS])
def test_a_typo_is_named_with_what_was_meant(run, line, words):
    assert words in _is_one_line(run(line), 2)


def test_numbers_below_zero_are_no_typos(run):
    assert "--gaussian -3.0: must be >= 0" in _is_one_line(run("account --gaussian -3"), 2)


def test_a_warning_is_one_line_too(run, monkeypatch):
    def warn(*arguments, **named):
        warnings.warn("delta is\nlarge", UserWarning, stacklevel=2)
        return account(Gaussian(2.0))

    monkeypatch.setattr(dptoolkit.accounting, "account", warn)
    code, out, err = run("account --gaussian 2")
    assert (code, err) == (0, "dptoolkit: warning: delta is large\n") and out


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line(root):
    command = [sys.executable, "-m", "dptoolkit", "account", "--gaussian", "2"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, cwd=root, stdout=full, stderr=subprocess.PIPE, text=True)
    assert _is_one_line((done.returncode, "", done.stderr), 2)


def test_help_for_a_reader_that_has_left_is_no_error(root):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dptoolkit", "account", "--help"]
    done = subprocess.run(command, cwd=root, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_letters_that_the_terminal_lacks_are_no_error(root, tmp_path):
    ledger = Ledger()
    ledger.spend(Gaussian(4.0), label="\u03b5")
    (tmp_path / "\u03b5.json").write_text(ledger.to_json(), encoding="utf-8")
    command = [sys.executable, "-m", "dptoolkit", "account", "--ledger", str(tmp_path / "\u03b5.jso")]
    done = subprocess.run(command, cwd=root, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    code = "from dptoolkit.cli import output; output.write('\\u03b5')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"\\u03b5", b"")


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_is_one_line_and_130(run, monkeypatch):
    monkeypatch.setattr(dptoolkit.accounting, "account", _raising(KeyboardInterrupt()))
    assert _is_one_line(run("account --gaussian 2"), 130) == "dptoolkit: stopped.\n"


def test_ctrl_c_while_a_compiled_module_is_loaded_is_130(run, monkeypatch, capsys, tmp_path):
    problem = ImportError("initialization failed")
    problem.__cause__ = KeyboardInterrupt()
    monkeypatch.setattr(dptoolkit.accounting, "account", _raising(problem))
    assert _is_one_line(run("account --gaussian 2"), 130) == "dptoolkit: stopped.\n"
    monkeypatch.setattr("paper_checks.__main__._collect", _raising(problem))
    assert checks(["IGHT-P3", "--out", str(tmp_path)]) == 130
    assert "stopped. 0 results are kept" in capsys.readouterr().err


@pytest.fixture
def interruptible():
    """The usual answer to Ctrl-C, which a shell takes from what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_that_a_library_swallows_is_heard(run, monkeypatch, interruptible):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)

    def deaf(*arguments, **named):
        # Short sleeps: a signal that comes just before signal.pause() would be waited for without end.
        try:
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                time.sleep(0.001)
        except KeyboardInterrupt:
            while True:
                time.sleep(0.001)

    monkeypatch.setattr(cli.output, "_AGAIN", 0.01)
    monkeypatch.setattr(dptoolkit.accounting, "account", deaf)
    assert _is_one_line(run("account --gaussian 2"), 130)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_command_runs_in_a_thread_where_there_are_no_signals(monkeypatch, capsys):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(cli.main(["account", "--gaussian", "2"])))
    thread.start()
    thread.join()
    assert codes == [0] and "epsilon" in capsys.readouterr().out


def test_a_stopped_audit_goes_on_from_its_file(run, monkeypatch, tmp_path):
    from dptoolkit.audit import engine

    path, played = tmp_path / "kept", []
    line = f"audit dp_ight --epsilon 4 --trials 9000 --resume {path}"
    whole = run("audit dp_ight --epsilon 4 --trials 9000 --json")
    monkeypatch.setattr(engine.Game, "portion", lambda self, seconds: 1000)
    play = engine.Game.play

    def stopping(game, first, count):
        played.append((first, count))
        if first >= 5000 and len(played) < 100:
            raise KeyboardInterrupt
        return play(game, first, count)

    monkeypatch.setattr(engine.Game, "play", stopping)
    assert "The finished trials are in" in _is_one_line(run(line), 130)
    before = len(played)
    played.extend([(0, 0)] * 100)
    again = run(line + " --json")
    # A few trials are played again, to see that the file is of this mechanism, and nothing else that was finished; the
    # report is that of an audit that was not stopped.
    assert played[before + 100][1] <= 4 and min(first for first, _ in played[before + 101 :]) >= 5000
    one, two = json.loads(whole[1]), json.loads(again[1])
    assert {key: value for key, value in one.items() if key != "seconds"} == {
        key: value for key, value in two.items() if key != "seconds"
    }


def test_a_stopped_audit_says_how_to_keep_trials(run, monkeypatch, tmp_path):
    from dptoolkit.audit import engine

    monkeypatch.setattr(engine.Game, "play", _raising(KeyboardInterrupt()))
    line = "audit dp_ight --epsilon 4 --trials 9000"
    assert "with --resume FILE" in _is_one_line(run(line), 130)
    assert "No trial was finished" in _is_one_line(run(f"{line} --resume {tmp_path / 'kept'}"), 130)
    assert list(tmp_path.iterdir()) == []


def _checks(tmp_path, monkeypatch, program: str) -> None:
    checks = tmp_path / "paper_checks"
    checks.mkdir()
    (checks / "__main__.py").write_text(program)
    monkeypatch.setattr(dptoolkit, "__file__", str(tmp_path / "dptoolkit" / "__init__.py"))


def test_ctrl_c_reaches_the_checks_and_waits_for_what_they_print(run, monkeypatch, tmp_path):
    # The checks say that they are up by a file, then wait for the signal; the parent is told by a patched wait.
    # They sleep for short times: a signal that comes just before signal.pause() would be waited for without end.
    ready, done = tmp_path / "ready", tmp_path / "done"
    _checks(tmp_path, monkeypatch, f"""
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with the signal ignored
try:
    pathlib.Path({str(ready)!r}).touch()
    while True:
        time.sleep(0.001)
except KeyboardInterrupt:
    pathlib.Path({str(done)!r}).touch()
    sys.exit(130)
""")  # fmt: skip
    wait, calls = subprocess.Popen.wait, []

    def stopping(child, timeout=None):
        calls.append(timeout)
        if len(calls) == 1:
            while not ready.exists():
                pass
            raise KeyboardInterrupt
        return wait(child, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", stopping)
    monkeypatch.setattr(cli.check, "_GRACE", 0.01)
    assert run("check") == (130, "", "")
    assert done.exists()


@pytest.mark.parametrize(("program", "code"), [
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137), ("import sys; sys.exit(77)", 2),
])  # fmt: skip
def test_checks_that_crash_are_not_checks_that_fail(run, monkeypatch, tmp_path, program, code):
    _checks(tmp_path, monkeypatch, program)
    assert run("check")[0] == code


# --- files that cannot be written are refused before the work --------------------------------------------------------


@pytest.mark.parametrize("option", ["--report", "--resume"])
@pytest.mark.parametrize("where", ["nowhere/page.html", "folder", "file/page.html"])
def test_an_audit_is_not_begun_for_a_file_that_cannot_be_written(run, monkeypatch, tmp_path, option, where):
    from dptoolkit import audit

    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(audit, "audit", _raising(AssertionError("the audit has begun")))
    told = _is_one_line(run(f"audit dp_ight --epsilon 1 {option} {tmp_path / where}"), 2)
    assert f"{option} {tmp_path / where}: must be a file" in told
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_report_that_is_there_stays_until_there_is_a_new_one(run, monkeypatch, tmp_path):
    from dptoolkit import audit

    page = tmp_path / "page.html"
    monkeypatch.setattr(audit, "audit", _raising(KeyboardInterrupt()))
    assert run(f"audit dp_ight --epsilon 1 --report {page}")[0] == 130
    assert not page.exists()
    page.write_text("old")
    assert run(f"audit dp_ight --epsilon 1 --report {page}")[0] == 130
    assert page.read_text() == "old"


def test_names_of_solvers_may_have_dashes(run):
    options = "--n 100 --d 5 --epsilon 1 --delta 1e-5 --sparsity 2 --steps 3 --loss logistic --row-norm 1"
    assert run(f"plan dp-ight {options}") == run(f"plan dp_ight {options}")
    assert run("audit dp-ight --epsilon 1 --trials 400")[0] == 0


def test_the_report_does_not_overwrite_the_trials(run, tmp_path):
    path = tmp_path / "x"
    told = _is_one_line(run(f"audit dp_ight --epsilon 1 --report {path} --resume {tmp_path}/./x"), 2)
    assert "another file than that of --resume" in told


def test_a_report_that_fails_at_the_end_does_not_lose_what_was_found(run, monkeypatch, tmp_path):
    from dptoolkit.audit.report import AuditReport

    monkeypatch.setattr(AuditReport, "to_html", _raising(OSError(28, "No space left on device")))
    code, out, err = run(f"audit dp_ight --epsilon 4 --trials 1000 --report {tmp_path / 'page.html'}")
    assert code == 2 and "no violation found" in out and "No space left" in err and err.count("\n") == 1


# --- plan ------------------------------------------------------------------------------------------------------------

PLAN = "dp_ight --n 1000 --d 50 --loss logistic --sparsity 5 --steps 10 --row-norm 1 --epsilon 1 --delta 1e-6"


def test_plan_prints_the_plan(run):
    settings = {"loss": "logistic", "sparsity": 5, "steps": 10, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    made = solvers.plan("dp_ight", n=1000, d=50, **settings)
    assert run(f"plan {PLAN}") == (0, f"{made}\n", "")
    record = json.loads(run(f"plan {PLAN} --json")[1])
    assert record["releases"][0]["scale"] == made.noise
    assert record["guarantee"]["event"] == made.event.to_dict()


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
def test_every_solver_can_be_planned_from_its_own_options(run):
    for name in solvers.PRIVATE:
        settings = dict(presets.PRESETS[name])
        settings |= {"epsilon": 1.0, "delta": 1e-5}
        options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in settings.items())
        options += " --fit-intercept no" if hasattr(solvers.settings_class(name), "fit_intercept") else ""
        *found, said = run(f"plan {name} {options}")
        assert found == [0, f"{solvers.plan(name, **settings)}\n"]
        # Presets are so small that the noise of some is too large.
        assert not said or "the noise is too large" in _is_one_line((2, "", said), 2)


@pytest.mark.parametrize(("line", "words"), [
    ("plan", "--solver: must be given"), ("plan nobody", "SOLVER nobody: must be one of"),
    ("plan nobody --n 3", "SOLVER nobody: must be one of"), ("plan ight", "must be one of"),
    (PLAN.replace("--sparsity", "--sparsty").join(["plan ", ""]), "--sparsty. Did you mean --sparsity?"),
    ("plan dp_ight --n 10", "arguments are required: --d"), (f"plan {PLAN} --fit-intercept 2", "must be yes or no"),
    (f"plan {PLAN} --n 0", "--n 0: must be >= 1"), (f"plan {PLAN} --snapshot-size 3", "unrecognized arguments"),
])  # fmt: skip
def test_plan_refuses_in_one_line(run, line, words):
    assert words in _is_one_line(run(line), 2)

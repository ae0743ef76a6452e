"""What people open in a browser: the docs site and the demo's report, on a telephone's screen."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WIDTH = 390


def listed_pages() -> list[str]:
    """The pages that the site's contents name."""
    lines = (DOCS / "contents.rst").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.startswith("   ") and not line.strip().startswith(":")]


def test_every_page_is_in_the_contents_once():
    # The records of decisions are listed by the page that introduces them.
    assert sorted(listed_pages()) == sorted([*(page.stem for page in DOCS.glob("*.md")), "decisions/index"])
    records = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8").partition(":hidden:")[2].strip("` \n")
    assert sorted([*records.split(), "index"]) == sorted(page.stem for page in (DOCS / "decisions").glob("*.md"))


def test_make_test_builds_the_site_and_sees_every_warning():
    """The build itself takes 12 seconds, once, in ``make test``; here it would be made by every worker."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:.*\bdocs\b.*##", makefile, re.MULTILINE) for target in ("test", "check-full"))
    (command,) = re.findall(r"-m sphinx (.*)", makefile)
    assert {"-E", "-W"} <= set(command.split())


def test_wide_tables_have_a_style_of_their_own():
    settings = (DOCS / "conf.py").read_text(encoding="utf-8")
    assert 'html_css_files = ["tables.css"]' in settings and 'html_static_path = ["_static"]' in settings
    assert "position: sticky" in (DOCS / "_static" / "tables.css").read_text(encoding="utf-8")


def index_groups() -> dict[str, list[str]]:
    """The pages that index.md names, by heading."""
    parts = re.split(r"^## ", (DOCS / "index.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    named = {part.partition("\n")[0]: re.findall(r"^\| \[[^]]+\]\((\S+)\.md\)", part, re.MULTILINE) for part in parts}
    return {heading: pages for heading, pages in named.items() if pages}


def test_the_index_and_the_contents_have_the_same_pages_in_the_same_groups():
    text = (DOCS / "contents.rst").read_text(encoding="utf-8")
    groups = re.findall(r":caption: (.*)\n\n((?:   \S+\n)+)", text)
    index = index_groups()
    assert list(index) == ["Start here", "How to", "Understand", "Reference"]
    index["Start here"].insert(0, "index")
    assert index == {heading: pages.split() for heading, pages in groups}


def docstrings() -> Iterator[tuple[str, str]]:
    """(place, text) of every docstring of the package."""
    for path in sorted((ROOT / "dptoolkit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}", ast.get_docstring(node) or ""


def misplaced(text: str) -> list[str]:
    """Lines that Sphinx would take for something else: a heading's line with words in it, a formula without space."""
    lines = ["", *text.splitlines()]
    # Below the name of a parameter, or a type, its description is indented; below a sentence nothing is.
    sentences = [(a, b) for a, b in zip(lines, lines[1:], strict=False) if len(a.split()) > 5]
    formulas = [b for a, b in sentences if b.startswith("    ") and not re.match(r" |- |\w+(, \w+)*( :|$)", a)]
    return formulas + [line for line in lines if re.match(r"\s*-{4,} +\w", line)]


def test_docstrings_keep_headings_and_formulas_apart_from_their_text():
    assert {place: found for place, text in docstrings() if (found := misplaced(text))} == {}


@pytest.mark.parametrize(("text", "count"), [
    ("Words.\n\nPrivacy\n------- Words.", 1), ("It is, for all n, at least\n    2 n\nthere.", 1),
    ("Words.\n\nPrivacy\n-------\nWords.", 0), ("It is, for all n, at least\n\n    2 n\n\nthere.", 0),
])  # fmt: skip
def test_a_misplaced_line_is_noticed(text, count):
    assert len(misplaced(text)) == count


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name, reason="the site needs the extra docs")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="pages are opened by selenium")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("pages are opened in chromium with chromedriver, which are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.add_experimental_option("mobileEmulation", {"deviceMetrics": {"width": WIDTH, "height": 844}})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


# The first words of every table that is cut off on this screen: it is too wide, and nothing around it scrolls, or its
# first column scrolls away with the others.
CUT_OFF = """
const found = [];
for (const table of document.querySelectorAll("article table")) {
  if (table.getBoundingClientRect().width <= document.documentElement.clientWidth) continue;
  let box = table.parentElement;
  while (box && !["auto", "scroll"].includes(getComputedStyle(box).overflowX)) box = box.parentElement;
  const first = table.querySelector("td, th");
  if (!box || getComputedStyle(first).position != "sticky") found.push("cut off: " + table.innerText.slice(0, 40));
}
return found;
"""


def complaints(browser, path):
    """What a reader of the page would stumble over."""
    browser.get(path.as_uri())
    cut = browser.execute_script(CUT_OFF)
    widest = browser.execute_script("return document.documentElement.scrollWidth")
    missing = browser.execute_script("return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
    logged = [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    return ([f"{widest} pixels wide"] if widest > WIDTH else []) + cut + missing + logged


@pytest.mark.slow
def test_every_page_of_the_site_fits_a_telephone_and_complains_of_nothing(site, browser):
    found = {page: complaints(browser, site / f"{page}.html") for page in listed_pages()}
    assert {page: words for page, words in found.items() if words} == {}


@pytest.mark.slow
def test_the_search_of_the_site_knows_a_solver(site):
    assert "dp_frank_wolfe" in (site / "searchindex.js").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_report_of_the_demo_fits_a_telephone_and_shows_its_pictures(browser, tmp_path):
    from dptoolkit import demo
    from dptoolkit.demo.sections import Picture, Section, Table
    from dptoolkit.plots import grid

    wide = Table("wide", [f"column {i}" for i in range(30)], [["1"] * 30])
    section = Section("Title", "words", [wide], [Picture("p", "a picture", grid(1, 1, "t")[0])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SECTIONS", (lambda: section,))
        demo.run(tmp_path)
    assert complaints(browser, tmp_path / "index.html") == []


@pytest.mark.slow
def test_a_page_that_is_too_wide_or_lacks_a_picture_is_noticed(browser, tmp_path):
    page = tmp_path / "bad.html"
    head = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    table = '<article><table style="width: 900px"><tr><td>a table</td></tr></table></article>'
    page.write_text(f'{head}{table}<img src="none.png"><script>nothing()</script>')
    words = " ".join(complaints(browser, page))
    assert "pixels wide" in words and "none.png" in words and "nothing" in words and "cut off: a table" in words

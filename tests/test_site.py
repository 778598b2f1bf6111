"""The documentation is built without warnings, opens from the disk without a network, and can be searched there."""

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "report"))

from browser import CHROMIUM, DRIVER, MISSING, Browser  # noqa: E402  # that of the report's tests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason='needs pip install ".[docs]": make docs'),
]
FETCHED = "return performance.getEntriesByType('resource').map((e) => e.name).filter((n) => !/^(file|data):/.test(n))"

RESULTS = (  # the links inside of the search, which has a tree of its own
    "return [...document.querySelectorAll('*')].filter((e) => e.shadowRoot)"
    ".flatMap((e) => [...e.shadowRoot.querySelectorAll('a')]).map((a) => a.href)"
)


@pytest.fixture(scope="module")
def site() -> Path:
    run = subprocess.run([sys.executable, ROOT / "docs" / "tools" / "build.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return ROOT / "site"


def test_pages_are_whole(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert "{{" not in text.replace("{{{", ""), f"{page}: a line that was not expanded"
        assert "--8<--" not in text or page.name == "adding.html", page
    assert "<math" in (site / "methods" / "laplace.html").read_text()
    assert "directions structure" in (site / "methods" / "laplace.html").read_text()


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fetch_nothing_and_fit_the_window(site, width):
    with Browser(width, 850) as window:
        for page in ("index", "start", "methods/laplace", "studies/resnets", "api/fitting", "examples/transformer"):
            window.open(site / f"{page}.html")
            assert window.run(FETCHED) == []
            assert window.run("return document.documentElement.scrollWidth <= window.innerWidth")
            assert window.complaints() == []


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)
def test_search_works_from_the_disk(site):
    with Browser(1280, 850) as window:
        window.open(site / "studies" / "size.html")
        window.run("document.querySelector('.md-search__button').click()")
        deadline = time.time() + 60
        window.press(*"thermostat")  # results of its first letters come before those of the word
        while not (shown := "methods/sgnht.html" in " ".join(window.run(RESULTS))) and time.time() < deadline:
            time.sleep(0.3)
        assert shown

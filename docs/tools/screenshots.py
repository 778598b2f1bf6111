"""Takes the pictures of reports with Chromium and writes them to docs/pictures.

`python docs/tools/screenshots.py RUN` takes those of the digits; `python docs/tools/screenshots.py STUDY study` those
of the study compare, from the folder that `basinet study compare --out STUDY` wrote.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from basinet.report import write_report

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "report"))

from browser import Browser  # noqa: E402  # the tests' own


def shoot(page: Path, name: str, width: int, height: int, *, dark: bool = False, at: str = "") -> None:
    """One picture of what is seen, from the top or from the section `at`."""
    with Browser(width, height, dark) as window:
        window.open(page)
        window.run("document.getElementById(arguments[0])?.scrollIntoView()", at)
        time.sleep(3)  # figures draw in steps
        window.picture(ROOT / "docs" / "pictures" / f"{name}.png")


if __name__ == "__main__":
    run = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        if sys.argv[2:] == ["study"]:
            write_report(run / "fashion_mnist", page)
            shoot(page, "report-images", 1180, 900, at="examples")
            write_report(run / "uci_energy", page)
            shoot(page, "report-regression", 1180, 1180)
            write_report(run / "flats", page)
            shoot(page, "report-rows", 1180, 620, at="examples")
        else:
            write_report(run, page)
            shoot(page, "report", 1180, 1180)
            shoot(page, "report-dark", 1180, 580, dark=True, at="differences")
            shoot(page, "report-phone", 390, 844, at="cost")

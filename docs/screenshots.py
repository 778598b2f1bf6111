"""Takes the pictures of the report: `python docs/screenshots.py RUN` writes them beside this file, with Chromium."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from basinet.report import write_report

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "report"))

from browser import Browser  # noqa: E402  # the tests' own


def shoot(page: Path, name: str, width: int, height: int, *, dark: bool = False, at: str = "") -> None:
    """One picture of what is seen, from the top or from the section `at`."""
    with Browser(width, height, dark) as window:
        window.open(page)
        window.run("document.getElementById(arguments[0])?.scrollIntoView()", at)
        time.sleep(3)  # figures draw in steps
        window.picture(HERE / f"{name}.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        written = write_report(Path(sys.argv[1]), Path(folder) / "report.html")
        shoot(written, "report", 1180, 1180)
        shoot(written, "report-dark", 1180, 1000, dark=True, at="differences")
        shoot(written, "report-phone", 390, 844, at="cost")

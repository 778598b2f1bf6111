"""The report: a run folder of `basinet compare` as one page that opens anywhere, and as pictures."""

from __future__ import annotations

from pathlib import Path

from ..pool.files import atomically
from .chains import write_chains
from .figures import chosen, figures
from .page import make_page
from .pictures import write_pictures
from .run import Row, Run, read_run

__all__ = ["Row", "Run", "read_run", "write_chains", "write_figures", "write_report"]


def write_report(run: Path | str, out: Path | str | None = None) -> Path:
    """Writes the page of a run folder, as `report.html` in it unless `out` says where, and returns its path."""
    folder = Path(run)
    path = folder / "report.html" if out is None else Path(out)
    text = make_page(read_run(folder))
    atomically(path, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))
    return path


def write_figures(run: Path | str, folder: Path | str) -> list[Path]:
    """Writes the figures of a run folder as PNG and SVG files, and returns their paths."""
    read = read_run(Path(run))
    return write_pictures(figures(read), list(chosen(read)), Path(folder))

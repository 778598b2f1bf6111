"""Run folders that were altered at random: the report is a page or one line that says what is wrong."""

import shutil

import pytest
from altered import alter
from runs import METHODS, make_run

from basinet.pool import FileError
from basinet.report import page as pages
from basinet.report import read_run
from basinet.report.figures import chosen, figures
from basinet.report.pictures import write_pictures

FEW = {name: METHODS[name] for name in ("MAP", "deep ensemble", "PEP", "Laplace")}
WHOLE = (("classes", "images", 1), ("labels", "rows", 2), ("real", "rows", 2), ("classes", "rows", 2))
SEEDS, BLOCK = 160, 20  # altered folders, and those of one test
DRAWN = 40  # one in this many is drawn as pictures too, which takes longer


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole")
    return [make_run(place / str(i), k, n=40, inputs=x, seeds=s, labels=FEW) for i, (k, x, s) in enumerate(WHOLE)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*cast.*")  # of the alterations themselves
@pytest.mark.parametrize("block", [pytest.param(b, marks=[pytest.mark.slow] * (b > 1)) for b in range(SEEDS // BLOCK)])
def test_an_altered_folder_is_a_page_or_one_clean_line(whole, tmp_path, monkeypatch, block):
    monkeypatch.setattr(pages, "_plotly", lambda: "var Plotly;")
    shown = 0
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        folder = tmp_path / str(seed)
        shutil.copytree(whole[seed % len(whole)], folder)
        alteration = alter(folder, seed)
        try:
            run = read_run(folder)
            pages.make_page(run).encode("utf-8")
            if seed % DRAWN == 0:
                write_pictures(figures(run), list(chosen(run)), folder / "pictures")
            shown += 1
        except FileError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {alteration}") from error
        finally:
            shutil.rmtree(folder)
    assert shown > BLOCK / 2  # most alterations leave something to show

"""The page as text: one file, nothing from outside, all user text escaped; and the command that writes it."""

import base64
import builtins
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from runs import CLASSES, METHODS, edit, make_run, older
from typer.testing import CliRunner

from basinet.cli import app
from basinet.report import page as pages
from basinet.report import read_run, write_report
from basinet.report.examples import EACH, gallery
from basinet.report.png import MOST, data_uri

LIMIT = 6_000_000


class Tags(HTMLParser):
    """All tags and attributes, and whether they nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


@pytest.fixture
def small(monkeypatch):
    """A page without plotly inside, which is quicker to read."""
    monkeypatch.setattr(pages, "_plotly", lambda: "var Plotly;")


@pytest.mark.parametrize("kind", ["classes", "labels", "real"])
def test_the_page_is_one_small_file_that_asks_for_nothing(tmp_path, kind):
    path = write_report(make_run(tmp_path, kind, seeds=2))
    assert path == tmp_path / "report.html" and path.stat().st_size < LIMIT
    text = path.read_text()
    assert "Plotly" in text
    without = text.replace(pages._plotly(), "")
    links = [v for tag, attrs in Tags(without).tags for k, v in attrs.items() if k in ("src", "href", "action", "data")]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "default-src 'none'" in text and "http://" not in without.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in without


@pytest.mark.usefixtures("small")
def test_tags_nest_and_ids_are_unique(tmp_path):
    for kind in ("classes", "labels", "real"):
        tags = Tags(write_report(make_run(tmp_path / kind, kind)).read_text())
        assert not tags.open
        ids = [attrs["id"] for _, attrs in tags.tags if "id" in attrs]
        assert len(ids) == len(set(ids))
        for _, attrs in tags.tags:
            if attrs.get("href", "").startswith("#"):
                assert attrs["href"][1:] in ids
            if "aria-labelledby" in attrs:
                assert attrs["aria-labelledby"] in ids
            assert not any(name.startswith("on") for name in attrs)


@pytest.mark.usefixtures("small")
def test_user_text_is_text(tmp_path):
    nasty = "<img src=x onerror=alert(1)>"
    make_run(tmp_path, labels={nasty: (2, 0.5, 1.0), '"quotes" & <b>': (1, 1.0, 1.0)}, inputs="rows")
    edit(
        tmp_path,
        data=nasty,
        target=nasty,
        unit=nasty,
        network=nasty,
        warnings=[nasty],
        command=[nasty],
        planned=[nasty, "</script><script>alert(1)</script>"],
        finished=False,
        versions={nasty: nasty},
    )
    records = (tmp_path / "records.jsonl").read_text().replace('"made up"', json.dumps(nasty))
    (tmp_path / "records.jsonl").write_text(records)
    text = write_report(tmp_path).read_text()
    tags = Tags(text)
    assert not tags.open and "img" not in [tag for tag, _ in tags.tags]
    assert [tag for tag, _ in tags.tags].count("script") == 4
    assert nasty in "".join(tags.text) and "</script><script>alert(1)</script>" in "".join(tags.text)


@pytest.mark.usefixtures("small")
def test_the_data_are_json_that_no_tag_can_end(tmp_path):
    text = write_report(make_run(tmp_path)).read_text()
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert "<" not in inside
    data = json.loads(inside)
    assert CLASSES[2] in json.dumps(data["gallery"]) and set(data["chosen"]) <= set(METHODS)


@pytest.mark.usefixtures("small")
def test_what_is_not_finite_is_null(tmp_path):
    make_run(tmp_path)
    path = tmp_path / "arrays" / "MAP-0.npz"
    arrays = dict(np.load(path))
    arrays["log_prob"][:5] = -np.inf
    arrays["test_uncertainty"][:5] = np.nan
    arrays["confidence"][:5] = np.nan  # spoils a bin of its reliability
    np.savez(path, **arrays)
    data = json.loads(
        write_report(tmp_path).read_text().split('id="data">')[1].split("</script>")[0], parse_constant=int
    )
    lines = data["figures"]["reliability"]["views"][0]["panels"][0]["series"]
    assert None in next(s for s in lines if s.get("row") == "MAP")["x"]


@pytest.mark.usefixtures("small")
def test_an_unfinished_run_says_so_first(tmp_path):
    make_run(tmp_path, finished=False)
    edit(tmp_path, warnings=["column id looks like an identifier"], failed={"EMA": "it became NaN"})
    text = write_report(tmp_path).read_text()
    said = "".join(Tags(text).text)
    assert (
        "Unfinished run: 3 of 8 planned rows are complete, 1 failed." in said
        and "Failed: EMA: it became NaN." in said
        and "anchored ensemble" in said
    )
    assert said.index("Unfinished") < said.index("Lowest NLL") and "Warning: column id" in said


@pytest.mark.usefixtures("small")
def test_an_older_folder_has_a_page(tmp_path):
    for kind in ("classes", "real"):
        said = "".join(Tags(write_report(older(tmp_path / kind, kind)).read_text()).text)
        assert "older version" in said and "MultiSWAG" in said


@pytest.mark.usefixtures("small")
def test_how_to_reproduce_it(tmp_path):
    said = "".join(Tags(write_report(make_run(tmp_path, seeds=3)).read_text()).text)
    assert "basinet compare 'data & more.csv' --target price" in said and "0, 1, 2" in said
    assert "torch 2.13.0" in said and "epochs=50, betas=(0.9, 0.999))" in said and "Linear(64, 200)" in said


def test_many_rows_and_large_images_still_fit(tmp_path):
    make_run(tmp_path, n=120, labels={f"method number {i}": (5, 0.5 + 0.01 * i, 1.0) for i in range(40)})
    images = np.random.default_rng(0).integers(0, 256, (120, 96, 96, 3)).astype(np.uint8)  # noise: nothing to compress
    np.savez(tmp_path / "test.npz", targets=np.load(tmp_path / "test.npz")["targets"], inputs=images)
    assert write_report(tmp_path).stat().st_size < LIMIT
    shown = gallery(read_run(tmp_path))
    assert 1 <= len(shown.rows) < 40 and shown.left_out == 40 - len(shown.rows)


def test_examples_are_the_most_uncertain_and_the_surest_mistakes(tmp_path):
    run = read_run(make_run(tmp_path))
    best = run.rows[0]
    arrays, shown = best.arrays[0], gallery(run)
    examples = shown.rows[best.name]
    doubt = arrays["test_uncertainty"]
    assert [e["number"] for e in examples["uncertain"]] == np.argsort(-doubt, kind="stable")[:EACH].tolist()
    wrong = [e["number"] for e in examples["wrong"]]
    assert not arrays["correct"][wrong].any() and (np.diff(arrays["confidence"][wrong]) <= 0).all()
    rest = np.setdiff1d(np.flatnonzero(~arrays["correct"]), wrong)
    assert arrays["confidence"][rest].max() <= arrays["confidence"][wrong].min()
    first = examples["wrong"][0]
    assert first["truth"] == CLASSES[run.test["targets"][wrong[0]]]
    assert first["said"].startswith(CLASSES[arrays["probs"][wrong[0]].argmax()])
    assert shown.inputs[wrong[0]] == data_uri(run.test["inputs"][wrong[0]])


def test_rows_are_shown_as_rows(tmp_path):
    run = read_run(make_run(tmp_path, "real", inputs="rows"))
    shown = gallery(run)
    assert shown.columns == ["age", "income", "<b>town</b>", "rooms"]
    best = run.rows[0]
    worst = int(best.arrays[0]["log_prob"].argmin())
    assert shown.rows[best.name]["wrong"][0]["number"] == worst and len(shown.inputs[worst]) == 4


def test_classes_too_many_for_all_probabilities(tmp_path):
    make_run(tmp_path)
    for path in (tmp_path / "arrays").iterdir():
        arrays = dict(np.load(path))
        probs = arrays.pop("probs")
        order = np.argsort(-probs, axis=1)[:, :5]
        np.savez(path, **arrays, top_classes=order, top_probs=np.take_along_axis(probs, order, 1))
    run = read_run(tmp_path)
    assert gallery(run).rows[run.rows[0].name]["wrong"][0]["said"].count("%") >= 1


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (5, 7, 1), (300, 10, 3)])
def test_images_are_png(shape):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    raw = base64.b64decode(data_uri(image).split(",")[1])
    width, height, _, colour = (int.from_bytes(raw[a:b], "big") for a, b in ((16, 20), (20, 24), (24, 25), (25, 26)))
    step = -(-max(shape[:2]) // MOST)
    expected = image[::step, ::step].reshape(height, width, -1)
    assert colour == (2 if expected.shape[2] == 3 else 0) and max(width, height) <= MOST
    at = raw.index(b"IDAT")
    size = int.from_bytes(raw[at - 4 : at], "big")
    lines = np.frombuffer(zlib.decompress(raw[at + 4 : at + 4 + size]), np.uint8).reshape(height, -1)
    assert (lines[:, 0] == 0).all() and (lines[:, 1:] == expected.reshape(height, -1)).all()
    assert int.from_bytes(raw[at + 4 + size : at + 8 + size], "big") == zlib.crc32(raw[at : at + 4 + size])


def test_an_image_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="expected a uint8 image"):
        data_uri(np.zeros((4, 4), np.float32))


def invoke(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


@pytest.mark.usefixtures("small")
def test_the_command(tmp_path):
    run = make_run(tmp_path / "run", labels={"MAP": (1, 1.0, 1.0)})
    result = invoke(run)
    assert result.exit_code == 0 and (run / "report.html").is_file() and "report.html" in result.output
    result = invoke(run, "--out", tmp_path / "there" / "page.html", "--figures", tmp_path / "figures")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "there" / "page.html").is_file() and (tmp_path / "figures" / "split.svg").is_file()


def test_the_command_refuses_what_is_not_a_run_and_leaves_nothing(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        result = invoke(folder, "--out", tmp_path / "page.html")
        assert result.exit_code == 2 and not (tmp_path / "page.html").exists()


def test_without_plotly_the_error_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def none(name, *rest, **more):
        if name.split(".")[0] == "plotly":
            raise ImportError(f"No module named {name}")
        return real(name, *rest, **more)

    make_run(tmp_path)
    monkeypatch.setattr(builtins, "__import__", none)
    with pytest.raises(ImportError, match=r"basinet\[report\]"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_cells_of_a_file_are_shown_as_they_were(tmp_path):
    run = read_run(make_run(tmp_path, "real", inputs="rows"))
    rows = np.array([["2023-05-12", "gas", "1992", "<b>"]] * run.n_test)
    shown = gallery(replace(run, test=run.test | {"inputs": rows}))
    assert shown is not None and shown.doubt == "sd"
    assert set(map(tuple, shown.inputs.values())) == {("2023-05-12", "gas", "1992", "<b>")}


@pytest.mark.usefixtures("small")
def test_the_verdict_and_three_tiles_come_before_the_paragraphs(tmp_path):
    text = write_report(make_run(tmp_path)).read_text()
    verdict, tiles, paragraphs = (
        text.index(mark) for mark in ('id="verdict">Use ', 'class="tiles"', 'class="answers"')
    )
    assert verdict < tiles < paragraphs and text[tiles:paragraphs].count("<li") == 3
    assert "±" not in text[text.index('class="board"') : text.index("What the columns are")]


@pytest.mark.usefixtures("small")
def test_rows_without_sets_are_named_with_the_reason(tmp_path):
    from basinet.report.calibration import sets

    make_run(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    for r in lines:
        if r["method"] == "PEP":
            del r["sets"]
            r["unset"] = "it was tuned on the validation examples, which then cannot calibrate"
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    [view] = sets(read_run(tmp_path)).views
    assert view.note == "Not shown: PEP (it was tuned on the validation examples, which then cannot calibrate)."


@pytest.mark.usefixtures("small")
def test_the_line_of_no_noise_is_explained_where_it_is_drawn(tmp_path):
    from basinet.report.diagnostics import WITHOUT, diagnostics

    for name, members in (("one", 1), ("five", 5)):
        figure = diagnostics(read_run(make_run(tmp_path / name, labels={"PEP": (members, 0.5, 1.0)})))
        assert "dashed" not in figure.read
        [view] = figure.views
        drawn = any(series.name == WITHOUT for panel in view.panels for series in panel.series)
        assert drawn == ("dashed line" in view.note) == (members == 1)

"""The page in a real Chromium: it loads in silence, draws, sorts, switches, and fits a phone."""

import time

import pytest
from browser import CHROMIUM, DRIVER, MISSING, Browser
from runs import METHODS, make_run

from basinet.report import read_run, write_report

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)
TAB, ENTER, DOWN = "\ue004", "\ue007", "\ue015"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of every kind; those of labels and of real numbers with fewer rows."""
    few = {name: METHODS[name] for name in ("MAP", "deep ensemble", "PEP", "Laplace")}
    paths = {}
    for kind, inputs, labels in (("classes", "images", METHODS), ("labels", "rows", few), ("real", "rows", few)):
        folder = make_run(tmp_path_factory.mktemp(kind), kind, inputs=inputs, labels=labels, seeds=2)
        paths[kind] = write_report(folder)
    return paths


@pytest.fixture(scope="module")
def browser():
    with Browser() as window:
        yield window


def until(window, script, *values):
    """Waits until a script returns something true, and returns it."""
    for _ in range(200):
        answer = window.run(script, *values)
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"never came true: {script}")


def show(window, key):
    """Scrolls to a figure and waits until it is drawn."""
    window.run("document.getElementById(arguments[0]).scrollIntoView()", key)
    until(window, f"return document.querySelector('#{key} figure').dataset.drawn")


@pytest.mark.parametrize("kind", ["classes", "labels", "real"])
def test_every_view_of_every_figure_is_drawn_without_a_word_in_the_console(browser, pages, kind):
    browser.resize(1280, 900)
    browser.open(pages[kind])
    until(browser, "return document.documentElement.dataset.ready")
    keys = browser.run("return [...document.querySelectorAll('figure[data-key]')].map((f) => f.dataset.key)")
    assert len(keys) >= 9
    for key in keys:
        show(browser, key)
    drawn = browser.run(
        """
        return (async () => {
        const counts = [];
        for (const figure of document.querySelectorAll("figure[data-key]")) {
          const select = figure.querySelector("select");
          for (let i = 0; i < (select ? select.options.length : 1); i += 1) {
            if (select) {
              select.selectedIndex = i;
              select.dispatchEvent(new Event("change"));
              while (figure.dataset.drawn !== select.value) await new Promise((wake) => setTimeout(wake, 5));
            }
            const panels = [...figure.querySelectorAll(".panel")];
            const marks = panels.map((p) => p.querySelectorAll(".trace, .bars .point").length);
            counts.push([figure.dataset.key, i, figure.querySelector(".note").textContent, ...marks]);
          }
        }
        return counts;
        })();
        """
    )
    assert len(drawn) > 2 * len(keys)
    for key, _, note, *marks in drawn:
        assert all(m > 0 for m in marks) and (marks or note), key
    assert browser.complaints() == []
    assert browser.run("return performance.getEntriesByType('resource').map((e) => e.name)") == []


def test_the_table_sorts_by_every_column(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages["classes"])
    heads = browser.texts(".board thead button")
    order = "return [...document.querySelectorAll('.board tbody tr')].map((r) => r.dataset.row)"
    by_nll = [row.name for row in read_run(pages["classes"].parent).rows]
    assert browser.run(order) == by_nll
    for i, head in enumerate(heads, 1):
        button = f".board thead th:nth-child({i}) button"
        sort = f"return document.querySelector('.board thead th:nth-child({i})').getAttribute('aria-sort')"
        for direction in ("ascending", "descending"):
            browser.click(button)
            assert browser.run(sort) == direction
            assert browser.run("return document.querySelectorAll('[aria-sort]').length") == 1
            rows = "[...document.querySelectorAll('.board tbody tr')]"
            cells = browser.run(f"return {rows}.map((row) => row.children[{i - 1}].dataset.value)")
            values = cells if i == 1 else [float(c) for c in cells if c]
            key = str.lower if i == 1 else float
            assert values == sorted(values, key=key, reverse=direction == "descending"), head
    assert sorted(browser.run(order)) == sorted(METHODS)


def test_a_row_is_coloured_when_it_is_ticked(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages["classes"])
    show(browser, "risk")
    legend = "#risk .legend li"
    off = browser.run(
        "const rows = [...document.querySelectorAll('.board tbody tr')];"
        "return rows.find((r) => !r.querySelector('input').checked).dataset.row"
    )
    assert off not in browser.texts(legend) and any("grey" in t for t in browser.texts(legend))
    tick = "document.querySelector(`.board tr[data-row='${arguments[0]}'] input`).click()"
    named = f"return [...document.querySelectorAll('{legend}')].some((e) => e.textContent === arguments[0])"
    browser.run(tick, off)
    assert until(browser, named, off)
    on = browser.texts(legend)[0]
    browser.run(tick, on)
    assert until(browser, named.replace("return ", "return !"), on)


def test_figures_switch_by_keyboard(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages["classes"])
    show(browser, "size")
    assert browser.run("return document.querySelector('#size .ytitle').textContent") == "NLL"
    browser.run("document.querySelector('#size select').focus()")
    browser.press(DOWN)
    assert until(browser, "return document.querySelector('#size figure').dataset.drawn != 'NLL'")
    assert browser.run("return document.querySelector('#size .ytitle').textContent") == "Brier score"


def test_all_controls_can_be_reached_by_tab(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages["classes"])
    for key in ("cost", "size"):
        show(browser, key)
    browser.run("window.scrollTo(0, 0); document.activeElement.blur(); window.reached = new Set();"
                "document.addEventListener('focusin', (e) => window.reached.add(e.target));")  # fmt: skip
    wanted = browser.run("return document.querySelectorAll('button, select, input, a, summary').length")
    browser.press(*[TAB] * (wanted + 60))
    left = browser.run(
        "return [...document.querySelectorAll('button, select, input, a, summary')]"
        ".filter((e) => !window.reached.has(e) && e.checkVisibility()).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert left == []


def test_numbers_of_a_figure_can_be_read(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages["classes"])
    show(browser, "differences")
    browser.click("#differences details summary")
    cells = until(
        browser, "return [...document.querySelectorAll('#differences .numbers td')].map((c) => c.textContent)"
    )
    assert "MAP" in cells


def test_examples_follow_the_row_that_is_chosen(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages["classes"])
    first = browser.texts("#examples-wrong li")
    assert browser.run(
        "return [...document.querySelectorAll('#examples img')].every((i) => i.complete && i.naturalWidth === 8)"
    )
    browser.run(
        "const s = document.getElementById('examples-row'); s.selectedIndex = 3; s.dispatchEvent(new Event('change'));"
    )
    assert browser.texts("#examples-wrong li") != first
    assert any("<script>alert(1)</script>" in t for t in first + browser.texts("#examples-uncertain li"))
    browser.open(pages["real"])
    assert "<b>town</b>" in browser.texts("#examples-wrong th")


def test_light_and_dark(pages):
    with Browser(dark=True) as window:
        window.open(pages["classes"])
        show(window, "cost")
        ground = "return getComputedStyle(document.body).backgroundColor"
        plot = "return document.querySelector('#cost .main-svg').style.background"
        dark = window.run(ground), window.run(plot)
        window.click("#theme")
        until(window, f"{plot} != arguments[0]", dark[1])
        light = window.run(ground)
        assert dark[0] == "rgb(16, 19, 24)" and light == "rgb(246, 247, 249)"
        window.open(pages["classes"])  # the choice is remembered
        assert window.run(ground) == light
        assert window.complaints() == []


@pytest.mark.parametrize("kind", ["classes", "labels", "real"])
def test_a_phone_shows_all_without_scrolling_sideways(browser, pages, kind):
    browser.resize(390, 800)
    browser.open(pages[kind])
    for key in browser.run("return [...document.querySelectorAll('figure[data-key]')].map((f) => f.dataset.key)"):
        show(browser, key)
    assert browser.run("return document.documentElement.scrollWidth") == 390
    right = "[...document.querySelectorAll('.panel')].map((p) => p.getBoundingClientRect().right)"
    assert browser.run(f"return Math.max(...{right})") <= 390
    sizes = browser.run(
        "return [...document.querySelectorAll('button, select')].filter((e) => e.checkVisibility())"
        ".map((e) => e.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 24  # what a finger hits
    assert browser.complaints() == []


def test_names_with_tags_are_text_in_figures_too(browser, tmp_path):
    name = '<b>bold</b> & <a href="x">y</a>'
    labels = {name: (2, 0.5, 1.0), "MAP": (1, 1.0, 1.0)}
    browser.resize(1280, 900)
    browser.open(write_report(make_run(tmp_path, labels=labels, n=50)))
    show(browser, "differences")
    show(browser, "cost")
    ticks = browser.texts("#differences .ytick text")
    assert any(tick.startswith("<b>bold</b> & <a href=") for tick in ticks), ticks
    assert name[:23] in browser.texts("#cost .textpoint")[0]
    assert browser.run("return document.querySelectorAll('.panel a').length") == 0


def test_switching_faster_than_figures_are_drawn(browser, pages):
    browser.resize(1280, 900)
    browser.open(pages["classes"])
    show(browser, "reliability")
    last = browser.run(
        """
        const select = document.querySelector("#reliability select");
        for (let round = 0; round < 3; round += 1) {
          for (let i = 0; i < select.options.length; i += 1) {
            select.selectedIndex = i;
            select.dispatchEvent(new Event("change"));
          }
        }
        document.getElementById("theme").click();
        return select.value;
        """
    )
    until(browser, "return document.querySelector('#reliability figure').dataset.drawn === arguments[0]", last)
    assert browser.run("return document.querySelectorAll('#reliability .panel').length") == 2
    time.sleep(0.5)  # what went wrong may be said late
    assert browser.complaints() == []
    browser.run("localStorage.clear()")


def test_names_of_any_length_leave_the_page_as_wide_as_it_is(browser, tmp_path):
    from runs import edit

    long = "n" * 100_000
    make_run(tmp_path, labels={long: (2, 0.5, 1.0), long + "m": (1, 1.0, 1.0)}, inputs="rows", n=50)
    lines = (tmp_path / "records.jsonl").read_text().replace('"made up"', f'"{long}"')
    (tmp_path / "records.jsonl").write_text(lines)
    columns = {"kind": "rows", "shape": [4], "columns": [long, "w " * 50_000, long, "c"]}
    edit(tmp_path, data=long, target=long, classes=[long + str(i) for i in range(5)], inputs=columns, warnings=[long])
    path = write_report(tmp_path)
    assert len(read_run(tmp_path).rows) == 2  # names that differ at their ends stay different
    for width in (390, 1280):
        browser.resize(width, 900)
        browser.open(path)
        for key in ("differences", "cost", "reliability"):
            show(browser, key)
        assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [390, 1366])
def test_the_table_shows_scores_first_and_says_that_there_is_more(browser, pages, width):
    browser.resize(width, 900)
    browser.open(pages["classes"])
    until(browser, "return document.documentElement.dataset.ready")
    right = "return document.querySelector('.board thead th:nth-child(2)').getBoundingClientRect().right"
    assert browser.texts(".board thead th:nth-child(2)") == ["NLL"] and browser.run(right) < width
    box = "document.querySelector('#table .wide')"
    cut = browser.run(f"return {box}.scrollWidth - {box}.clientWidth > 4")
    assert cut == (width == 390)
    assert browser.run("return !document.querySelector('#table .more').hidden") == cut
    assert browser.run(f"return {box}.classList.contains('cut')") == cut
    browser.run(f"{box}.scrollLeft = 10000")
    until(browser, f"return !{box}.classList.contains('cut')")

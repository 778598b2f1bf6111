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
    """A page of every kind."""
    made = {}
    for kind, inputs in (("classes", "images"), ("labels", "rows"), ("real", "rows")):
        folder = make_run(tmp_path_factory.mktemp(kind), kind, inputs=inputs, seeds=1 if kind == "labels" else 2)
        made[kind] = write_report(folder)
    return made


@pytest.fixture(scope="module")
def browser():
    with Browser() as window:
        yield window


def until(window, script, *values):
    """Waits until a script returns something true, and returns it."""
    for _ in range(200):
        found = window.run(script, *values)
        if found:
            return found
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

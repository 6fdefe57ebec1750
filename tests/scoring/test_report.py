"""The HTML report in a headless browser without network: it loads, answers to its controls, fits a phone, prints."""

from __future__ import annotations

import re
import shutil
from html import unescape

import polars as pl
import pytest

from scoring import Settings, score
from scoring.report import POINTS_PER_CURVE, _curve_data, write_report
from scoring.subjects import subjects
from scoring.summary import frontier_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def scores(study):
    hostile = study.with_columns(pl.col("system").replace("gru-64", "<img src=x onerror=boom()>"))
    return score(hostile, Settings(redraws=40, selectivity_redraws=40))


@pytest.fixture(scope="module")
def report(scores, tmp_path_factory):
    return write_report(scores, tmp_path_factory.mktemp("report") / "report.html", title="A & B")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the playwright package")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, report):
    """Open the report at a width; the page must stay free of errors and requests until the test ends."""
    problems, contexts = [], []

    def open_(width: int, height: int = 900):
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: problems.append(str(e)))
        page.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else problems.append(r.url))
        page.goto(report.as_uri())
        page.wait_for_selector("body[data-ready=true]", timeout=30_000)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert problems == []


@needs_browser
def test_the_explorer_agrees_with_the_scorer(open_page, scores):
    page = open_page(1200)
    (subject, *_) = subjects(scores)
    page.select_option("#band", "low")
    page.select_option("#length", "64")
    cells = [c for c in subject.cells(scores) if c.band == "low" and c.length == 64 and not c.is_reference]
    read = "(() => { const t = document.getElementById('frontier').data.at(-1); return [[...t.x], [...t.y]]; })()"
    for button, budget, admitted in (
        ("no budget", None, 3),
        ("≤ 10,000 MFLOPs", 10e9, 2),
        ("≤ 1,750 MFLOPs", 1.75e9, 1),
    ):
        page.get_by_role("button", name=button, exact=True).click()
        assert f"{admitted} of 3 systems admitted" in page.inner_text("#budget-text")
        points = frontier_of(cells, budget).points
        x, y = page.evaluate(read)
        assert x == pytest.approx([p.coverage for p in points], abs=2e-5)
        assert y == pytest.approx([p.accuracy for p in points], abs=2e-5)
        for name in {s for p in points for s in p.systems}:
            assert {"gla-64": "GLA D=64", "gla-128": "GLA D=128"}.get(name, "GRU D=64") in page.inner_text("#holders")


@needs_browser
def test_the_slider_admits_and_drops_systems(open_page):
    page = open_page(1200)
    seen = []
    for value in (0, 300, 999, 1000):
        page.fill("#budget", str(value))
        seen.append(page.inner_text("#budget-text"))
    counts = [int(re.search(r"(\d) of 3 systems", text).group(1)) for text in seen]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 3)
    assert page.inner_text("#holders").startswith("On the frontier: ")
    page.select_option("#queries", "1024")  # the write is shared: everything becomes cheap
    page.get_by_role("button", name="≤ 1,750 MFLOPs", exact=True).click()
    assert "3 of 3 systems" in page.inner_text("#budget-text")


@needs_browser
def test_hovering_names_the_system_and_its_threshold(open_page):
    page = open_page(1200)
    page.locator("#frontier").scroll_into_view_if_needed()
    spot = page.evaluate(
        "(() => { const d = document.getElementById('frontier'), t = d.data.at(-1), b = d.getBoundingClientRect();"
        "const { xaxis: x, yaxis: y } = d._fullLayout;"
        "return [b.x + x._offset + x.d2p(t.x[0]), b.y + y._offset + y.d2p(t.y[0])]; })()"
    )
    page.mouse.move(spot[0] - 30, spot[1] + 30)
    page.mouse.move(*spot)
    label = "document.querySelector('#frontier .hoverlayer').textContent"
    page.wait_for_function(f"{label}.includes('GLA D=128')", timeout=10_000)
    assert "threshold 0." in page.evaluate(label)


@needs_browser
def test_tables_sort_by_any_column_and_follow_the_choosers(open_page):
    page = open_page(1200)
    values = (
        "(i) => [...document.querySelector('#tables > div:not([hidden]) tbody').rows].filter(r => !r.hidden)"
        ".map(r => r.cells[i].dataset.v)"
    )
    head = page.locator("#tables > div:not([hidden]) thead button", has_text="capacity")
    head.click()
    falling = [float(v) for v in page.evaluate(values, 1)]
    assert falling == sorted(falling, reverse=True)
    head.click()
    assert [float(v) for v in page.evaluate(values, 1)] == falling[::-1]
    heads = page.locator("#tables > div:not([hidden]) th[scope=col]").all_inner_texts()
    column = [h.strip() for h in heads].index("FLOPs per answer")
    page.locator("#tables > div:not([hidden]) thead button", has_text="FLOPs per answer").click()
    costs = page.evaluate(values, column)
    assert [v for v in costs if v] == sorted((v for v in costs if v), key=float)
    assert costs[-2:] == ["", ""]  # unknown values last
    for length in ("32", "64"):
        page.select_option("#length", length)
        assert page.inner_text("#tables > div:not([hidden]) p").endswith(f"L = {length}")
    page.locator("#legend button", has_text="GRU D=64").click()
    assert len(page.evaluate(values, 0)) == 4
    assert "of 2 systems" in page.inner_text("#budget-text")
    page.select_option("#subject", "1")
    assert "order negatives" in page.inner_text("#tables > div:not([hidden]) p")


@needs_browser
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_it_fits_the_screen(open_page, width):
    page = open_page(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in page.locator(".chart .main-svg").all()[:3]:
        assert chart.bounding_box()["width"] <= width
    small = page.evaluate(
        "[...document.querySelectorAll('button, select')].filter(b => b.offsetHeight && b.offsetHeight < 24).length"
    )
    assert small == 0


@needs_browser
def test_it_prints(open_page, tmp_path):
    page = open_page(1200)
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    pdf = (tmp_path / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 14


def test_the_file_is_self_contained_and_of_reasonable_size(report):
    page = report.read_text(encoding="utf-8")
    markup = re.sub(r'<script type="application/(json|octet-stream)".*?</script>', "", page, flags=re.DOTALL)
    assert not re.search(r'(src|href)\s*=\s*"?(https?:)?//', markup)
    assert "<img" not in markup.replace("&lt;img", "")
    assert report.stat().st_size < 4_000_000
    assert "<title>A &amp; B</title>" in page


def test_tables_and_definitions_can_be_read_without_scripts(report, scores):
    page = unescape(report.read_text(encoding="utf-8"))
    assert "Right answers over questions asked" in page
    e = scores.value("capacity", system="gla-64", L=64, query_set="uniform")
    assert f"{100 * e.value:.1f}%" in page
    assert f"[{100 * e.low:.1f}, {100 * e.high:.1f}]" in page


def test_equal_scores_give_equal_reports(report, scores, tmp_path):
    again = write_report(scores, tmp_path / "r.html", title="A & B")
    assert again.read_bytes() == report.read_bytes()


def test_thinned_curves_keep_their_ends_and_their_best_points(simulate):
    (cell,) = score(simulate(0.6, streams=80), Settings(redraws=5, selectivity_redraws=5)).cells
    data = _curve_data(cell.curve)
    assert len(data["c"]) <= 2 * POINTS_PER_CURVE < len(cell.curve.coverage)
    assert data["c"][-1] == 1
    assert data["a"][-1] == pytest.approx(cell.accuracy, abs=1e-5)
    assert max(data["a"]) == pytest.approx(cell.curve.accuracy.max(), abs=1e-5)


def test_a_table_without_confidences_or_costs_still_makes_a_report(rows, tmp_path):
    path = write_report(score(rows([(1, 1, None), (0, None, None)]), Settings(redraws=5)), tmp_path / "r.html")
    page = path.read_text(encoding="utf-8")
    assert "<button>capacity</button>" in page
    assert "<button>AURC" not in page  # a column that is empty for all systems is left out

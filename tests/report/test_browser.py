"""The page in a real browser: opened from disk, searched, clicked, sorted, printed, without a console message."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qdqtool.core.difference import DifferenceCause, EngineDiff, EngineTotals
from qdqtool.core.findings import Severity
from qdqtool.core.report import Reply, verdict_of
from qdqtool.core.sweep import FloatPoint, Outcome, Sweep, Trial
from qdqtool.core.wording import Command
from qdqtool.report import html, sweeps
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.html import render
from tests.report.material import EVIL, chain, chain_material, finding, tensor
from tests.report.test_details import LOG

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield session
    session.quit()


class Page:
    """A page that is open in the browser."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.browser = browser
        browser.get(path.as_uri())

    def script(self, text: str, *values: object) -> Any:
        return self.browser.execute_script(text, *values)

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def type(self, selector: str, keys: str) -> None:
        self.one(selector).send_keys(keys)


def opened(browser: Any, folder: Path, material: Material, against: Material | None = None) -> Page:
    path = folder / "report.html"
    path.write_text(render(assemble(material), None if against is None else assemble(against)), "utf-8")
    return Page(browser, path)


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Page]:
    """Twenty layers, one of them called like a script."""
    material = chain_material(20)
    assert material.engine is not None
    layers = material.engine.layers
    evil = replace(layers[7], name=EVIL, onnx_nodes=(EVIL,))
    engine = replace(material.engine, layers=(*layers[:7], evil, *layers[8:]))
    found = opened(browser, tmp_path, replace(material, model_name=EVIL, engine=engine))
    yield found
    assert browser.get_log("browser") == []


def test_a_layer_called_script_is_text(page: Page) -> None:
    assert page.script("return document.scripts.length") == 2
    page.script(
        "document.querySelector('[data-layer=\"7\"]').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    assert page.one(".details h3").text == EVIL
    assert page.browser.title == f"{EVIL}: precision report"


def test_searching_marks_the_layers_and_enter_shows_the_next_one(page: Page) -> None:
    page.type("input.find", "layer1")
    assert page.one(".count").text == "11 of 20 layers"
    assert len(page.all(".graph .hit")) == 11
    page.type("input.find", "\ue007")
    assert page.one(".details h3").text == "layer1"
    page.type("input.find", "\ue007")
    assert page.one(".details h3").text == "layer10"


def test_clicking_a_layer_shows_nodes_tensors_bytes_and_findings(page: Page) -> None:
    page.script("document.querySelector('.explorer').scrollIntoView()")
    page.one("[data-layer='2']").click()
    text = page.one(".details").text
    for words in ("layer2 (Conv) fp32: no scale", "t2: fp32 1x8x4x4", "1.00 KiB", "0.02 ms"):
        assert words in text


def test_findings_of_a_kind_fold_away_and_stand_with_their_layer(browser: Any, tmp_path: Path) -> None:
    entry = replace(finding(Severity.WARNING, "layer3", 2048), reason="writes floats", hazard="Floats cost.")
    material = chain_material(20)
    assert material.audit is not None
    audit = replace(material.audit, findings=(entry, replace(entry, subject="layer5")))
    page = opened(browser, tmp_path, replace(material, audit=audit))
    group = page.one("details.group")
    assert "2 × float fallback" in group.text
    assert "Floats cost." in group.text
    page.one("details.group summary").send_keys("\ue007")
    assert group.get_attribute("open") is None
    page.one("details.group summary").send_keys("\ue007")
    page.all("details.group a[data-goto]")[1].click()
    assert page.one(".details h3").text == "layer5"
    assert page.one(".details .finding .fix").text == "Fix: give it a scale"
    assert [box.get_attribute("data-layer") for box in page.all(".graph .node:has(.badge)")] == ["3", "5"]
    assert browser.get_log("browser") == []


def test_a_layer_tells_what_the_log_says_of_it(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, replace(chain_material(20), log=LOG))
    page.script("document.querySelector('.explorer').scrollIntoView()")
    page.one("[data-layer='2']").click()
    text = page.one(".details").text
    for words in (
        "Q q: fused-input layer2 (lines 7, 9)",
        "line 8: fused by ConvReluFusion",
        "5 kernels tried in 0.25 s",
    ):
        assert words in text
    assert browser.get_log("browser") == []


def test_two_engines_say_why_they_differ(browser: Any, tmp_path: Path) -> None:
    sides = [assemble(chain_material(count)) for count in (20, 10)]
    totals = EngineTotals(
        name="", kernels=1, compute=1, int8=1, conversions=0, ms=None, conversion_ms=None, bytes=None
    )
    causes = (DifferenceCause(text=f"because of {EVIL}", ms=None, bytes=None, layers=()),)
    diff = EngineDiff(left=totals, right=totals, pairs=(), left_only=(), right_only=(), causes=causes)
    (tmp_path / "report.html").write_text(render(*sides, diff), "utf-8")
    page = Page(browser, tmp_path / "report.html")
    assert page.one(".causes li").text == f"because of {EVIL}"
    assert page.script("return document.scripts.length") == 3
    assert browser.get_log("browser") == []


def test_the_graph_can_be_used_with_keys_alone(page: Page) -> None:
    stage = page.one(".stage")
    width = page.one("svg.graph").size["width"]
    stage.send_keys("\ue015\ue015\ue015")
    assert page.one(".details h3").text == "layer2"
    stage.send_keys("++")
    assert page.one("svg.graph").size["width"] > 1.5 * width
    stage.send_keys("0")
    assert page.one("svg.fold").size["height"] <= page.one(".stage").size["height"] + 1
    stage.send_keys("/")
    assert page.script("return document.activeElement.className") == "find"


def test_a_long_engine_is_seen_whole_in_columns_and_a_click_leads_back(page: Page) -> None:
    page.script("document.querySelector('.explorer').scrollIntoView()")
    page.one("[data-zoom=all]").click()
    fold, stage = page.one("svg.fold").size, page.one(".stage").size
    assert fold["height"] <= stage["height"]
    assert 0.3 * stage["width"] <= fold["width"] <= stage["width"]
    assert not page.one("svg.graph").is_displayed()
    assert {box.get_attribute("data-layer") for box in page.all(".fold [data-layer]")} == set(
        map(str, range(20))
    )
    page.type("input.find", "layer13")
    assert len(page.all(".fold .hit")) == 1
    page.one(".fold [data-layer='13']").click()
    assert page.one(".details h3").text == "layer13"
    assert page.all("svg.fold") == []
    assert page.one("svg.graph [data-layer='13']").is_displayed()


def test_a_short_engine_is_seen_whole_as_it_is(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, chain_material(3))
    page.one(".stage").send_keys("0")
    assert page.all("svg.fold") == []
    assert page.one("svg.graph").size["height"] <= page.one(".stage").size["height"] + 1


def test_numbers_and_the_names_of_their_columns_stand_on_the_right(page: Page) -> None:
    found = page.script(
        """return [...document.querySelectorAll("table")].flatMap((table) => [...table.tHead.rows[0].cells].map((head, at) =>
        [head.textContent, getComputedStyle(head).textAlign, ...new Set([...table.tBodies[0].rows].map((row) =>
        getComputedStyle(row.cells[at]).textAlign))]))"""
    )
    assert ["ms", "right", "right"] in found
    assert all(head == cell for _, head, *cells in found for cell in cells)


def test_dragging_pans_and_does_not_choose(page: Page) -> None:
    from selenium.webdriver import ActionChains

    page.script("document.querySelector('.explorer').scrollIntoView()")
    box = page.one("[data-layer='3']")
    ActionChains(page.browser).click_and_hold(box).move_by_offset(0, -120).release().perform()
    assert page.script("return document.querySelector('.stage').scrollTop") >= 100
    assert page.all(".details h3") == []


def column(page: Page, number: int) -> list[str]:
    read = "return [...document.querySelectorAll('#layer-table-a tbody tr')].map(row => row.cells[arguments[0]].textContent)"
    texts: list[str] = page.script(read, number)
    return texts


def test_times_are_sorted_from_the_largest_down_and_then_up(page: Page) -> None:
    head = page.all("#layer-table-a th button")[5]
    page.script("arguments[0].click()", head)
    down = [float(text) for text in column(page, 5)]
    page.script("arguments[0].click()", head)
    up = [float(text) for text in column(page, 5)]
    assert down == sorted(down, reverse=True)
    assert up == sorted(up)


def test_names_and_places_are_sorted_upwards_first(page: Page) -> None:
    for number in (0, 2):
        page.script("arguments[0].click()", page.all("#layer-table-a th button")[number])
        assert column(page, number) == sorted(column(page, number), key=lambda text: (len(text), text))


def full(browser: Any, folder: Path, length: int = 12) -> Page:
    """A page with findings of every severity and a verdict."""
    report = assemble(chain_material(length))
    found = tuple(
        replace(finding(severity, f"layer{number}", 100), code=code)
        for number, (severity, code) in enumerate(zip(Severity, ("QDQ205", "QDQ201", "QDQ207"), strict=True))
    )
    judged = report.summary.verdict
    accurate = replace(judged.accurate, state="no", evidence=f"QDQ201 sample {'x' * 80}")
    summary = replace(
        report.summary, verdict=verdict_of(judged.asked, accurate, judged.worth, Command("run", ("m",)))
    )
    path = folder / "full.html"
    path.write_text(render(replace(report, findings=found, summary=summary)), "utf-8")
    return Page(browser, path)


def test_the_verdict_and_its_three_answers_stand_on_top(browser: Any, tmp_path: Path) -> None:
    page = full(browser, tmp_path)
    assert page.one(".verdict").text == "bad"
    assert page.one(".settle code").text == "qdqtool run m"
    tiles = page.all(".answers li")
    assert [item.text.split()[:3] for item in tiles] == [
        ["As", "asked", "no"],
        ["Accurate", "no", "QDQ201"],
        ["Worth", "it", "unknown"],
    ]
    assert [item.get_attribute("class") for item in tiles] == ["doubtful", "bad", "unknown"]
    broken = "return [...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.getElementById(a.hash.slice(1))).length"
    assert page.script(broken) == 0


def test_the_code_of_a_reason_leads_to_what_it_means(browser: Any, tmp_path: Path) -> None:
    page = full(browser, tmp_path)
    page.script("for (const group of document.querySelectorAll('details')) group.open = false")
    link = page.one(".answers a")
    assert link.text == "QDQ201"
    link.click()
    assert "QDQ201" in page.one(":target").text


def test_findings_can_be_reduced_to_one_severity(browser: Any, tmp_path: Path) -> None:
    page = full(browser, tmp_path)
    shown = "return [...document.querySelectorAll('details.group')].filter(g => g.checkVisibility()).map(g => g.dataset.level)"
    assert page.script(shown) == ["error", "warning", "info"]
    page.one("[data-severity=warning]").click()
    assert page.script(shown) == ["warning"]
    page.one("[data-severity='']").click()
    assert len(page.script(shown)) == 3


def test_a_code_leads_to_what_it_means(browser: Any, tmp_path: Path) -> None:
    page = full(browser, tmp_path)
    texts = page.script("return [...document.querySelectorAll('.manual')].map(m => m.textContent)")
    assert sorted(text.split()[1] for text in texts) == ["QDQ201", "QDQ205", "QDQ207"]
    assert all(len(text) > 200 for text in texts)


def test_a_slash_searches_from_anywhere_and_is_a_letter_in_a_field(browser: Any, tmp_path: Path) -> None:
    page = full(browser, tmp_path)
    page.type("body", "/")
    assert page.script("return document.activeElement.className") == "find"
    page.type("input.find", "a/b")
    assert page.one("input.find").get_property("value") == "a/b"


def test_a_mark_of_a_chart_says_at_once_what_it_is(browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains

    page = full(browser, tmp_path)
    mark = page.one("figure svg .bar")
    page.script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(browser).move_to_element(mark).perform()
    assert page.one(".hint").is_displayed()
    assert len(page.one(".hint").text) > 3


@pytest.mark.parametrize(("count", "shown", "rest"), [(1, 1, 0), (3, 3, 0), (8, 6, 2)])
def test_points_that_lie_on_one_another_are_all_told(
    browser: Any, tmp_path: Path, count: int, shown: int, rest: int
) -> None:
    from selenium.webdriver import ActionChains

    trials = (*(swept(number, 70.0, 2.0) for number in range(count)), swept(20, 60.0, 4.0))
    sweep = Sweep(
        model="net.onnx",
        metric="top1",
        unit="%",
        reference=72.0,
        device="RTX 4090",
        spread=None,
        pareto=trials[:1],
        trials=trials,
        speed="measured",
    )
    (tmp_path / "sweep.html").write_text(sweeps.page(sweep), "utf-8")
    page = Page(browser, tmp_path / "sweep.html")
    dots = page.all("svg circle.dot")
    ActionChains(browser).move_to_element(dots[-1]).perform()
    told = page.one(".hint").text
    assert len(set(re.findall(r"calibrate.method=m(\d+)", told))) == shown
    assert "m20" not in told
    assert (f"and {rest} more here" in told) == bool(rest)


UNREADABLE = """
    return [...document.querySelectorAll('svg.chart')].filter(chart => {
      const box = chart.getBoundingClientRect();
      return box.width && (box.left < 0 || box.right > innerWidth || [...chart.querySelectorAll('text')].some(text => {
        const word = text.getBoundingClientRect();
        return word.left < box.left - 2 || word.right > box.right + 2 || Math.max(word.width, word.height) < 7;
      }));
    }).map(chart => chart.getAttribute('aria-label'))"""
"""Charts that are cut, or that have a text outside of them or too small to read."""
PHONE = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_covers_the_title_and_nothing_sticks_out(browser: Any, tmp_path: Path, width: int) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**PHONE, "width": width})
    try:
        page = full(browser, tmp_path)
        assert page.script("return document.documentElement.scrollWidth") == width
        covered = """
            const [a, b] = ['h1', '[data-theme-button]'].map(s => document.querySelector(s).getBoundingClientRect());
            return !(a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top);"""
        title = page.script("return document.querySelector('h1').textContent")
        assert "compute nodes" in title
        assert not page.script(covered)
        narrow = """
            return [...document.querySelectorAll('td')].filter(c => c.checkVisibility() && c.textContent.length > 12
              && !c.matches('.number, .short') && c.getBoundingClientRect().width < 60).length"""
        assert page.script(narrow) == 0
        assert page.script(UNREADABLE) == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_passes_the_checks_of_axe(browser: Any, tmp_path: Path, theme: str, width: int) -> None:
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**PHONE, "width": width})
    try:
        page = full(browser, tmp_path)
        page.script("document.documentElement.dataset.theme = arguments[0]", theme)
        assert violations(page) == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_link_leads_to_the_place_that_it_names(browser: Any, tmp_path: Path) -> None:
    """Parts above it that are laid out late would move it away again."""
    page = full(browser, tmp_path)
    page.script("document.querySelector('nav a[href=\"#nodes-a\"]').click()")
    top = "return document.querySelector('#nodes-a').getBoundingClientRect().top"
    before = page.script(top)
    page.browser.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    )
    assert page.script(top) == before
    assert page.script("return document.querySelector('.large') === null")


def violations(page: Page) -> list[tuple[str, str]]:
    """What axe finds on the page."""
    axe = pytest.importorskip("axe_core_python", reason="needs axe-core-python")
    page.script((Path(axe.__file__).parent / "axe.min.js").read_text("utf-8"))
    found = page.browser.execute_async_script("axe.run(document).then(arguments[arguments.length - 1])")
    assert found["passes"]
    return [(entry["id"], entry["nodes"][0]["html"]) for entry in found["violations"]]


def test_two_runs_side_by_side_pass_the_checks_of_axe(browser: Any, tmp_path: Path) -> None:
    assert violations(opened(browser, tmp_path, chain_material(20), chain_material(10))) == []


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1000, 5000])
def test_the_pages_of_large_engines_pass_the_checks_of_axe(browser: Any, tmp_path: Path, layers: int) -> None:
    """Rows and boxes beyond the first sixty are made like these; the time of axe grows faster than their number.

    All 42,727 elements of 1,000 layers take two minutes; they were checked once, with the same result.
    """
    page = opened(browser, tmp_path, chain_material(layers))
    page.script(
        """for (const list of document.querySelectorAll("tbody, ul.map, svg.graph > g, svg.overview, svg.chart"))
             [...list.children].slice(60).forEach((child) => child.remove())"""
    )
    assert violations(page) == []


def test_a_wide_drawing_begins_with_its_first_layer(browser: Any, tmp_path: Path) -> None:
    material = chain_material(2)
    assert material.engine is not None
    first = material.engine.layers[0]
    fan = tuple(
        replace(first, name=f"branch{number}", inputs=first.outputs, outputs=(tensor(f"end{number}"),))
        for number in range(30)
    )
    engine = replace(material.engine, layers=(first, *fan))
    page = opened(browser, tmp_path, replace(Material(model_name="m"), engine=engine))
    place = "return document.querySelector(arguments[0]).getBoundingClientRect()"
    box, stage = page.script(place, "[data-layer='0']"), page.script(place, ".stage")
    assert page.script("const s = document.querySelector('.stage'); return s.scrollWidth > s.clientWidth")
    assert stage["left"] <= box["left"] < box["right"] <= stage["right"]


def test_a_table_can_be_filtered(page: Page) -> None:
    page.type("input[data-filter='layer-table-a']", "layer19")
    shown = page.script(
        "return [...document.querySelectorAll('#layer-table-a tbody tr')].filter(row => !row.hidden).length"
    )
    assert shown == 1


def test_the_precision_map_leads_to_the_layer(page: Page) -> None:
    page.all(".map button")[4].click()
    assert page.one(".details h3").text == "layer4"


def test_light_and_dark_differ(page: Page) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    button = page.one("[data-theme-button]")
    button.click()
    light = page.script(colour)
    button.click()
    assert page.script(colour) != light


def test_the_drawings_of_engine_and_model_do_not_disturb_each_other(browser: Any, tmp_path: Path) -> None:
    rows = [
        {
            "name": f"layer{number}",
            "op": "Conv",
            "inputs": [],
            "constants": [],
            "outputs": [[f"t{number}", [1], "fp32", ""]],
        }
        for number in range(3)
    ]
    page = opened(browser, tmp_path, replace(chain_material(3), sections={"model": rows}))
    page.script("document.querySelectorAll('.drawn')[1].scrollIntoView()")
    page.script(
        "document.querySelectorAll('.drawn')[1].querySelector('[data-layer=\"2\"]')"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    assert [panel.text for panel in page.all(".details h3")] == ["layer2"]
    page.all(".map button")[1].click()
    assert [panel.text for panel in page.all(".details h3")] == ["layer1", "layer2"]


@pytest.mark.parametrize("two_runs", [False, True], ids=["one run", "two runs"])
@pytest.mark.parametrize("name", ["layer", "Module/Conv2d;" * 40])
def test_a_page_of_64_nodes_prints_on_fewer_than_12_sheets(
    browser: Any, tmp_path: Path, name: str, two_runs: bool
) -> None:
    """Names as long as those of TensorFlow filled 350 sheets."""
    material = chain_material(64)
    assert material.engine is not None
    assert material.audit is not None
    layers = tuple(
        replace(layer, name=f"{name}{number}") for number, layer in enumerate(material.engine.layers)
    )
    verdicts = tuple(
        replace(verdict, node=f"{name}{number}", layers=(f"{name}{number}",))
        for number, verdict in enumerate(material.audit.verdicts)
    )
    long = replace(
        material,
        engine=replace(material.engine, layers=layers),
        audit=replace(material.audit, verdicts=verdicts),
    )
    shown = opened(browser, tmp_path, long, replace(long, audit=None) if two_runs else None)
    printed = base64.b64decode(shown.browser.print_page())
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) < 12


def test_a_screenshot_shows_more_than_one_colour(page: Page, tmp_path: Path) -> None:
    from PIL import Image

    shot = tmp_path / "page.png"
    assert page.browser.save_screenshot(str(shot))
    with Image.open(shot) as image:
        assert len(image.convert("RGB").getcolors(1 << 24)) > 10


def test_two_runs_stand_side_by_side(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, chain_material(20), chain_material(10))
    assert "Compute nodes" in page.one("#run-sides").text
    assert "Verdict" in page.one("#run-sides .answers-table").text
    page.one("#tab-b").click()
    assert not page.one("#run-sides").is_displayed()
    assert len(page.all("#run-b [data-layer]")) == 10
    page.script("document.querySelector('#run-b .explorer').scrollIntoView()")
    page.one("#run-b [data-layer='1']").click()
    assert page.one("#run-b .details h3").text == "layer1"
    assert browser.get_log("browser") == []


def test_the_verdicts_of_two_runs_stand_side_by_side(browser: Any, tmp_path: Path) -> None:
    first, second = assemble(chain_material(4)), assemble(chain_material(3))
    wrong = verdict_of(*(Reply(state="no", evidence=f"DAT10{number}") for number in range(3)))
    judged = replace(first, summary=replace(first.summary, verdict=wrong))
    path = tmp_path / "sides.html"
    path.write_text(render(judged, second), "utf-8")
    rows = [row.text.split() for row in Page(browser, path).all("#run-sides .answers-table tbody tr")]
    assert rows[0] == ["Verdict", "bad", second.verdict]
    assert rows[2][:4] == ["Accurate", "no", "DAT101", second.summary.verdict.accurate.state]


def test_a_thousand_layers_stay_under_8_mb_and_are_searched(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, chain_material(1000))
    assert (tmp_path / "report.html").stat().st_size < 8_000_000
    page.type("input.find", "layer999")
    assert page.one(".count").text == "1 of 1000 layers"
    assert browser.get_log("browser") == []


def test_too_many_layers_are_a_table_without_a_drawing(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "LARGEST", 10)
    page = opened(browser, tmp_path, Material(model_name="m", engine=chain(20)))
    assert "too many to draw" in page.one("#run-a").text
    assert page.all("svg.graph") == []
    assert browser.get_log("browser") == []


def swept(number: int, accuracy: float, ms: float) -> Trial:
    outcome = Outcome(
        settings=(f"calibrate.method=m{number}",),
        accuracy=accuracy,
        ms=ms,
        nodes_int8=3,
        nodes_total=4,
        kernels=9,
        ms_low=0.9 * ms,
        ms_high=1.2 * ms,
    )
    return Trial(number=number, state="complete", outcome=outcome)


@pytest.mark.parametrize(
    ("is_judged", "kept"), [(True, "report.html"), (False, "recipe.yaml")], ids=["engines", "no engines"]
)
def test_the_page_of_a_sweep_lists_picks_with_links_and_shows_intervals(
    browser: Any, tmp_path: Path, is_judged: bool, kept: str
) -> None:
    from selenium.webdriver import ActionChains

    yes = Reply(state="yes", evidence="1 ms against 2 ms")
    verdict = verdict_of(yes, yes, yes) if is_judged else None
    trials = tuple(
        replace(trial, verdict=verdict)
        for trial in (swept(0, 70.0, 2.0), swept(1, 71.0, 3.0), swept(2, 60.0, 4.0))
    )
    sweep = Sweep(
        model=EVIL,
        metric="top1",
        unit="%",
        reference=72.0,
        device="RTX 4090",
        spread=None,
        pareto=trials[:2],
        trials=trials,
        speed="measured",
        floats=(
            FloatPoint(name="FP32", accuracy=72.0, low=None, high=None, ms=2.5),
            FloatPoint(name="FP16", accuracy=71.9, low=71.0, high=72.5, ms=2.2),
        ),
    )
    (tmp_path / "sweep.html").write_text(sweeps.page(sweep), "utf-8")
    page = Page(browser, tmp_path / "sweep.html")
    links = page.script("return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert links == [f"pareto/0000/{kept}", f"pareto/0001/{kept}"]
    assert len(page.all("svg .span")) == 3
    assert [dot.get_attribute("class") for dot in page.all("svg circle.dot")][-2:] == [
        "dot p-fp32",
        "dot p-fp16",
    ]
    dot = page.all("svg circle.dot")[2]
    ActionChains(browser).move_to_element(dot).perform()
    assert "1.8000 to 2.4000" in page.one(".hint").text
    page.all("table.sortable th button")[2 + is_judged].click()
    assert page.one("table.sortable tbody tr td").text == "1"
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        assert page.script(UNREADABLE) == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert browser.get_log("browser") == []

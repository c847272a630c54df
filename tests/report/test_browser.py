"""The page in a real browser: opened from disk, searched, clicked, sorted, printed, without a console message."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qdqtool.core.difference import Cause, EngineDiff, EngineTotals
from qdqtool.core.findings import Severity
from qdqtool.report import html
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.html import render
from tests.report.material import EVIL, chain, chain_material, finding
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
    assert page.browser.title == f"{EVIL}: INT8 report"


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
    causes = (Cause(text=f"because of {EVIL}", ms=None, bytes=None, layers=()),)
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


def test_a_column_sorts_as_numbers_up_and_down(page: Page) -> None:
    head = page.all("#layer-table-a th button")[5]
    read = "return [...document.querySelectorAll('#layer-table-a tbody tr')].map(row => row.cells[5].textContent)"
    page.script("arguments[0].click()", head)
    up = [float(text) for text in page.script(read)]
    page.script("arguments[0].click()", head)
    down = [float(text) for text in page.script(read)]
    assert up == sorted(up)
    assert down == sorted(up, reverse=True)


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


def test_the_page_prints(page: Page) -> None:
    assert len(page.browser.print_page()) > 10_000


def test_a_screenshot_shows_more_than_one_colour(page: Page, tmp_path: Path) -> None:
    from PIL import Image

    shot = tmp_path / "page.png"
    assert page.browser.save_screenshot(str(shot))
    with Image.open(shot) as image:
        assert len(image.convert("RGB").getcolors(1 << 24)) > 10


def test_two_runs_stand_side_by_side(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, chain_material(20), chain_material(10))
    assert "Compute nodes" in page.one("#run-sides").text
    page.one("#tab-b").click()
    assert not page.one("#run-sides").is_displayed()
    assert len(page.all("#run-b [data-layer]")) == 10
    page.script("document.querySelector('#run-b .explorer').scrollIntoView()")
    page.one("#run-b [data-layer='1']").click()
    assert page.one("#run-b .details h3").text == "layer1"
    assert browser.get_log("browser") == []


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

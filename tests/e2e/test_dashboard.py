"""The dashboard in a real browser: Debian's Chromium, driven by Playwright.

Screenshots of what was tested lie in build/screenshots afterwards, for somebody to look at.
SHOTS_S=45 has the plots of the dark ones filled, as in docs/.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import watched_fleet

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="browser-requirements.txt is not installed"
)
CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip("chromium is not installed", allow_module_level=True)

SHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
SIZE = {"width": 1440, "height": 1000}
WAIT_MS = 20_000
SHOTS_S = int(os.environ.get("SHOTS_S", "8"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with sync_api.sync_playwright() as driver:
        # The sandbox needs user namespaces, which containers often lack; the page is ours.
        made = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield made
        made.close()


class Tab:
    """A page that keeps what must not be: console messages, faults, requests elsewhere."""

    def __init__(self, browser: Any, url: str, scheme: str = "light", **more: Any) -> None:
        self.context = browser.new_context(color_scheme=scheme, viewport=SIZE, **more)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        origin = url.split("/kvgate/")[0]
        self.page.on("console", lambda message: self._heard(message.type, message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: self._asked(asked.url, origin))
        self.page.goto(url)

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(f"{kind}: {text}")

    def _asked(self, url: str, origin: str) -> None:
        if not url.startswith((origin, "data:", "blob:")):
            self.wrong.append(f"asked elsewhere: {url}")

    def seconds(self, count: int) -> None:
        """Until it has so many points to draw."""
        script = f"() => document.getElementById('plots').dataset.points >= {count}"
        self.page.wait_for_function(script, timeout=WAIT_MS + 1500 * count)

    def shot(self, name: str) -> None:
        self.page.screenshot(path=str(SHOTS / f"{name}.png"), full_page=True)
        self.page.screenshot(path=str(SHOTS / f"{name}-top.png"))

    def close(self) -> None:
        self.context.close()
        assert not self.wrong


FLEETS = {1: watched_fleet.one, 8: watched_fleet.eight, 64: watched_fleet.sixty_four}


@pytest.fixture(scope="module", params=FLEETS)
def count(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def fleet(count: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[watched_fleet.Fleet]:
    with FLEETS[count](tmp_path_factory.mktemp(f"fleet{count}")) as made:
        yield made


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_shows_every_engine(fleet: Any, browser: Any, count: int, scheme: str) -> None:
    tab = Tab(browser, fleet.url, scheme)
    page = tab.page
    page.wait_for_selector("#link.good", timeout=WAIT_MS)
    page.wait_for_function(
        f"() => document.querySelectorAll('#engine-table tbody tr').length === {count}"
    )
    page.wait_for_function("() => document.querySelectorAll('.decision').length > 2")
    tab.seconds(SHOTS_S if scheme == "dark" else 8)
    up = count - 1 if count == 8 else count
    assert page.locator("#tiles").inner_text().count(f"{up} of {count}") == 1
    assert page.locator(".plot canvas").count() == 5
    said = page.locator("#planner").inner_text()
    assert "Disaggregation pays here: 5P3D" in said
    assert "as it is now: 3P4D" in said and "2 hours ago" in said
    background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", background)[:3])) > 380
    assert light == (scheme == "light")
    assert _no_sideways_scrolling(page)
    tab.shot(f"{count}-{scheme}")
    tab.close()


def test_it_fits_a_telephone(fleet: Any, browser: Any, count: int) -> None:
    tab = Tab(browser, fleet.url)
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.page.wait_for_selector(".plot canvas", timeout=WAIT_MS)
    tab.seconds(4)
    assert _no_sideways_scrolling(tab.page)
    tab.shot(f"{count}-narrow")
    tab.close()


def test_all_of_it_is_within_reach_of_the_keyboard(fleet: Any, browser: Any) -> None:
    tab = Tab(browser, fleet.url)
    page = tab.page
    page.wait_for_selector(".decision", timeout=WAIT_MS)
    tab.seconds(4)
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        where = (
            "() => { const e = document.activeElement; return e.id || e.className || e.tagName }"
        )
        reached.append(page.evaluate(where))
    wanted = ("skip", "upstream", "theme", "pause", "plot card", "scroll", "changes", "SUMMARY")
    assert [name for name in wanted if name not in reached] == []
    page.locator(".plot").first.focus()
    page.keyboard.press("ArrowLeft")
    assert "completed" in page.locator("#read").inner_text()
    page.locator("#engine-table th button").nth(4).focus()
    page.keyboard.press("Enter")
    assert page.locator("#engine-table th").nth(4).get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert page.locator("#engine-table th").nth(4).get_attribute("aria-sort") == "descending"
    page.locator("#pause").focus()
    page.keyboard.press("Enter")
    page.locator(".decision summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".decision[open] dl").count() == 1
    tab.close()


def test_everything_has_a_name(fleet: Any, browser: Any) -> None:
    """Controls, plots and regions say what they are, to those who do not see them."""
    tab = Tab(browser, fleet.url)
    tab.page.wait_for_selector(".decision", timeout=WAIT_MS)
    nameless = tab.page.evaluate(
        """() => [...document.querySelectorAll("select, button, input, section, [role], th")]
        .filter((e) => e.checkVisibility() && !(e.ariaLabel || e.getAttribute("aria-labelledby")
          || e.labels?.length || e.textContent.trim()))
        .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    assert tab.page.evaluate("() => document.documentElement.lang") == "en"
    tab.close()


def test_the_switch_of_the_theme_is_remembered(fleet: Any, browser: Any) -> None:
    tab = Tab(browser, fleet.url)
    page = tab.page
    page.wait_for_selector(".plot canvas", timeout=WAIT_MS)
    paper = "() => getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(paper)
    page.select_option("#theme", "dark")
    after = page.evaluate(paper)
    assert after != before
    page.reload()
    page.wait_for_selector(".plot canvas", timeout=WAIT_MS)
    assert page.evaluate(paper) == after and page.input_value("#theme") == "dark"
    tab.close()


def test_a_token_is_asked_for_and_kept_for_the_tab(fleet: Any, browser: Any) -> None:
    tab = Tab(browser, fleet.token_url)
    page = tab.page
    page.wait_for_selector("#login", state="visible", timeout=WAIT_MS)
    assert page.evaluate("() => document.activeElement.id") == "token"
    for token in ("wrong", watched_fleet.TOKEN):
        page.keyboard.type(token)
        page.keyboard.press("Enter")
        if token == "wrong":
            page.wait_for_function(
                "() => document.getElementById('why').textContent.includes('not')"
            )
    page.wait_for_selector("#engine-table tbody tr", timeout=WAIT_MS)
    page.reload()
    page.wait_for_selector("#engine-table tbody tr", timeout=WAIT_MS)
    assert not page.locator("#login").is_visible()
    # The browser itself tells of refused streams; nothing else may be wrong.
    tab.wrong = [one for one in tab.wrong if "401" not in one]
    tab.close()


def _no_sideways_scrolling(page: Any) -> bool:
    wide = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    return bool(page.evaluate(wide))

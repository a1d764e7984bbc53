"""The dashboard in a real browser: Debian's Chromium, driven by Playwright for Python."""

import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from service_stage import running, submit

from dispatcher.testing import Die, EngineSettings, FakeServer, FakeServerSettings

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]

SHOTS = Path(__file__).parents[2] / "artefacts" / "dashboard"
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
FOCUSED = """() => {
  const element = document.activeElement;
  return [element.outerHTML.slice(0, 90), getComputedStyle(element).outlineStyle];
}"""
SLOW = FakeServerSettings(answer_tokens=24, engine=EngineSettings(max_sequences=16, decode_step_s=0.03))


def missing(what):
    required = os.environ.get("DISPATCHER_REQUIRE_SERVICES") == "1"
    (pytest.fail if required else pytest.skip)(f"no {what}")


@pytest.fixture
async def chromium():
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        missing("Playwright for Python")
    path = shutil.which("chromium") or missing("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        await browser.close()


@pytest.fixture
async def opened(chromium):
    """Opens pages; at the end nothing may have gone wrong in any of them but what was `expected`."""
    errors, expected = [], []

    async def open_page(url, width=1440, height=1000, scheme="light"):
        page = await chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.on(
            "console", lambda message: message.type in ("error", "warning") and errors.append(message.text)
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_default_timeout(20_000)
        await page.goto(url)
        return page

    open_page.expected = expected
    yield open_page
    assert [error for error in errors if not any(text in error for text in expected)] == []


@asynccontextmanager
async def fleet(count, settings=SLOW):
    async with FakeServer(settings) as first:
        if count == 1:
            yield [first]
        else:
            async with fleet(count - 1, settings) as others:
                yield [first, *others]


def row(page, text):
    return page.get_by_role("row").filter(has_text=text)


async def sees(page, text, state):
    await row(page, text).locator(f'.state[data-state="{state}"]').wait_for()


async def shot(page, name):
    SHOTS.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


async def share_done(page, text):
    return int(await row(page, text).get_by_role("progressbar").get_attribute("aria-valuenow"))


async def test_a_job_is_seen_to_progress_and_a_server_to_die_and_come_back(opened, tmp_path):
    async with fleet(3) as servers, running(tmp_path, servers) as url:
        await submit(url, 900, metadata={"name": "reviews"})
        page = await opened(url)
        await sees(page, "reviews", "in_progress")
        await page.wait_for_function("document.querySelector('.progress').getAttribute('aria-valuenow') > 5")
        before = await share_done(page, "reviews")
        await servers[1].die(Die(seconds=None))
        await sees(page, servers[1].url, "evicted")
        assert "refused" in await row(page, servers[1].url).locator('[data-cell="why"]').inner_text()
        assert await page.locator("#servers-rows tr").first.inner_text() == (
            await row(page, servers[1].url).inner_text()
        )
        await shot(page, "evicted")
        await servers[1].restart()
        await sees(page, servers[1].url, "active")
        await page.get_by_text("evicted once").wait_for()
        await sees(page, "reviews", "completed")
        assert before < await share_done(page, "reviews") == 100
        assert await page.get_by_role("row").filter(has_text="reviews").get_by_role("button").count() == 0


async def test_a_job_is_paused_resumed_ranked_and_cancelled_by_clicking(opened, tmp_path):
    async with fleet(1) as servers, running(tmp_path, servers) as url:
        await submit(url, 5000, metadata={"name": "long"})
        page = await opened(url)

        async def click(button, confirm):
            await page.get_by_role("button", name=button).click()
            await page.get_by_role("dialog").get_by_role("button", name=confirm, exact=True).click()

        await sees(page, "long", "in_progress")
        await click("Pause long", "Pause")
        await page.get_by_role("status").filter(has_text="is paused").wait_for()
        await sees(page, "long", "paused")
        await click("Resume long", "Resume")
        await sees(page, "long", "in_progress")
        await page.get_by_role("button", name="Change the priority of long").click()
        await page.get_by_role("spinbutton").fill("7")
        await page.keyboard.press("Enter")
        await row(page, "long").locator('[data-cell="priority"]').filter(has_text="7").wait_for()
        await click("Cancel long", "Back")
        await sees(page, "long", "in_progress")
        await click("Cancel long", "Cancel the job")
        await sees(page, "long", "cancelled")


async def test_a_server_is_drained_and_taken_back_with_the_keyboard_alone(opened, tmp_path):
    async with fleet(2) as servers, running(tmp_path, servers) as url:
        page = await opened(url)
        await sees(page, servers[0].url, "active")
        await page.get_by_role("button", name=f"Drain {servers[0].url}").focus()
        await page.keyboard.press("Enter")
        await page.get_by_role("dialog").wait_for()
        await page.keyboard.press("Escape")
        await page.get_by_role("dialog").wait_for(state="hidden")
        focused = "document.activeElement.getAttribute('aria-label')"
        assert await page.evaluate(focused) == f"Drain {servers[0].url}"
        await sees(page, servers[0].url, "active")
        await page.keyboard.press("Enter")
        await page.keyboard.press("Enter")
        await sees(page, servers[0].url, "drained")
        assert await page.evaluate(focused) == f"Undrain {servers[0].url}"
        await page.keyboard.press("Enter")
        await page.keyboard.press("Enter")
        await sees(page, servers[0].url, "active")


async def test_every_control_is_reached_with_the_tab_key_and_its_focus_seen(opened, tmp_path):
    async with fleet(1) as servers, running(tmp_path, servers) as url:
        await submit(url, 5000, metadata={"name": "long"})
        page = await opened(url)
        await sees(page, "long", "in_progress")
        await sees(page, servers[0].url, "active")
        wanted = await page.locator("button:visible, input:visible").count()
        reached, outlines = set(), set()
        for _ in range(wanted + 10):
            await page.keyboard.press("Tab")
            what, outline = await page.evaluate(FOCUSED)
            if what.startswith(("<button", "<input")):
                reached.add(what)
                outlines.add(outline)
        assert len(reached) == wanted
        assert "none" not in outlines


async def test_what_jobs_and_servers_call_themselves_is_shown_as_text_and_never_run(opened, tmp_path):
    hostile = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
    settings = FakeServerSettings(models=(hostile,))
    async with fleet(1, settings) as servers, running(tmp_path, servers) as url:
        await submit(url, 2, metadata={"name": hostile}, model=hostile)
        page = await opened(url)
        await row(page, servers[0].url).filter(has_text="<img src=x").wait_for()
        await page.locator("#jobs-rows .name").filter(has_text="<script>").wait_for()
        assert await page.locator("main img, main script").count() == 0
        assert "run" not in await page.title()


async def test_the_page_comes_back_by_itself_when_the_service_does(opened, tmp_path):
    opened.expected += ["net::ERR_", "Failed to load resource"]
    async with fleet(1) as servers:
        async with running(tmp_path, servers) as url:
            page = await opened(url)
            await page.locator('#link[data-link="live"]').wait_for()
        await page.locator('#link[data-link="lost"]').wait_for()
        async with running(tmp_path, servers, port=int(url.rsplit(":", 1)[1])):
            await page.locator('#link[data-link="live"]').wait_for()


@pytest.mark.parametrize(
    ("name", "width", "height", "scheme"),
    [
        ("desktop-light", 1440, 1000, "light"),
        ("desktop-dark", 1440, 1000, "dark"),
        ("phone", 375, 812, "light"),
        ("phone-dark", 375, 812, "dark"),
    ],
)
async def test_it_fits_its_screen(opened, tmp_path, name, width, height, scheme):
    async with fleet(3) as servers, running(tmp_path, servers) as url:
        await submit(url, 5000, metadata={"name": "entity linking with a name that is long"}, priority=2)
        await submit(url, 3, metadata={"name": "short"})
        page = await opened(url, width, height, scheme)
        await sees(page, "short", "completed")
        await page.wait_for_timeout(3000)
        await shot(page, name)
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(wide) == 0
        await page.get_by_role("button", name="Cancel entity").click()
        await shot(page, f"{name}-dialog")
        box = await page.get_by_role("dialog").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width

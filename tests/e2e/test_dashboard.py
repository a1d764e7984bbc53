"""The dashboard in a real browser: Debian's Chromium, driven by Playwright for Python."""

import asyncio
import hashlib
import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from service_stage import running, submit

from dispatcher.api import feed
from dispatcher.testing import Die, EngineSettings, FakeServer, FakeServerSettings, Match, Respond

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]

SHOTS = Path(__file__).parents[2] / "artefacts" / "dashboard"
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
KEYS = [
    {"name": name, "role": role, "hash": f"sha256:{hashlib.sha256(f'{name}-key'.encode()).hexdigest()}"}
    for name, role in (("anna", "user"), ("root", "admin"))
]
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


async def some_done(page, text):
    """Wait until more than 5 % are done. Not by wait_for_function: the page's policy forbids its eval."""
    async with asyncio.timeout(20):
        while (share := await share_done(page, text)) <= 5:  # noqa: ASYNC110  # a browser is polled
            await asyncio.sleep(0.1)
    return share


async def test_a_job_is_seen_to_progress_and_a_server_to_die_and_come_back(opened, tmp_path):
    async with fleet(3) as servers, running(tmp_path, servers) as url:
        await submit(url, 900, metadata={"name": "reviews"})
        page = await opened(url)
        await sees(page, "reviews", "in_progress")
        before = await some_done(page, "reviews")
        await servers[1].die(Die(seconds=None))
        await sees(page, servers[1].url, "evicted")
        assert "EngineCore" in await row(page, servers[1].url).locator('[data-cell="why"]').inner_text()
        assert await page.locator("#servers-rows tr").first.inner_text() == (
            await row(page, servers[1].url).inner_text()
        )
        await shot(page, "evicted")
        await servers[1].restart()
        await sees(page, servers[1].url, "active")
        await page.get_by_text("evicted once").wait_for()
        await sees(page, "reviews", "completed")
        assert before < await share_done(page, "reviews") == 100
        await shot(page, "completed")
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


async def test_rows_that_failed_are_sent_again_by_clicking(opened, tmp_path):
    async with fleet(1) as servers, running(tmp_path, servers) as url:
        refusal = Respond(
            400, '{"error": {"message": "no", "type": "BadRequestError", "param": "prompt", "code": 400}}'
        )
        fault = servers[0].inject(refusal, Match(text="row-7"))
        await submit(url, 20, metadata={"name": "reviews"})
        page = await opened(url)
        await sees(page, "reviews", "completed")
        await row(page, "reviews").locator(".code").filter(has_text="1 invalid request").wait_for()
        servers[0].withdraw(fault)
        await page.get_by_role("button", name="Send failed again: reviews").click()
        await page.get_by_role("dialog").get_by_role("button", name="Send again").click()
        await row(page, "reviews").filter(has_text="20 of 20 rows").wait_for()
        await row(page, "reviews").locator(".code").wait_for(state="detached")
        await sees(page, "reviews", "completed")


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


async def unlock(page, key):
    await page.get_by_label("API key").fill(key)
    await page.keyboard.press("Enter")


async def test_with_keys_it_asks_for_one_and_shows_what_its_holder_may_see_and_do(opened, tmp_path):
    opened.expected += ["401"]
    async with fleet(1) as servers, running(tmp_path, servers, keys=KEYS) as url:
        await submit(url, 5000, key="anna-key", metadata={"name": "annas"})
        await submit(url, 5000, key="root-key", metadata={"name": "roots"})
        page = await opened(url)
        await page.get_by_role("dialog").wait_for()
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Change key").click()
        await unlock(page, "no such key")
        await page.get_by_text("This key was not accepted.").wait_for()
        await unlock(page, "anna-key")
        await page.get_by_text("anna (user)").wait_for()
        await page.get_by_role("button", name="Pause annas").wait_for()
        assert await row(page, "roots").count() == 0
        assert await page.get_by_role("button", name="Drain").count() == 0
        await page.get_by_role("button", name="Change key").click()
        await unlock(page, "root-key")
        await page.get_by_text("root (admin)").wait_for()
        await page.get_by_role("button", name="Pause annas").wait_for()
        await page.get_by_role("button", name="Pause roots").wait_for()
        await page.get_by_role("button", name="Drain").wait_for()
        await page.reload()
        await page.get_by_text("root (admin)").wait_for()
        assert await page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


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


async def test_figures_are_written_as_people_read_them(opened, tmp_path):
    async with fleet(1) as servers, running(tmp_path, servers) as url:
        page = await opened(url)

        async def written(name, *values):
            call = f"(values) => import('/static/figures.js').then((figures) => values.map(figures.{name}))"
            return await page.evaluate(call, list(values))

        rates = await written("rate", 0, 0.042, 0.996, 9.96, 999.4, 999.6, 12_345, 999_900, 4_120_000)
        assert rates == ["0", "0.04", "1.0", "10", "999", "1.0k", "12.3k", "1.0M", "4.1M"]
        times = await written("duration", 0, 59.4, 59.6, 3599, 5400, 86_400, 187_300)
        assert times == ["0 s", "59 s", "1 min", "1 h", "1 h 30 min", "1 d", "2 d 4 h"]
        shares = "({percent}) => [percent(1999, 2000), percent(2, 2), percent(0, 0)]"
        assert await page.evaluate(f"import('/static/figures.js').then({shares})") == [
            "99.9 %",
            "100.0 %",
            "0 %",
        ]


async def test_it_says_why_it_is_refused_and_tries_again(opened, tmp_path, monkeypatch):
    opened.expected += ["503"]
    monkeypatch.setattr(feed, "WATCHERS_MAX", 0)
    async with fleet(1) as servers, running(tmp_path, servers) as url:
        page = await opened(url)
        await page.get_by_text("0 dashboards are open").wait_for()
        monkeypatch.setattr(feed, "WATCHERS_MAX", 1)
        await sees(page, servers[0].url, "active")
        assert await page.locator(".notice:visible").count() == 0


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
        await submit(url, 3, metadata={"name": "short"}, priority=2)
        await submit(url, 5000, metadata={"name": "entity linking with a name that is long"})
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

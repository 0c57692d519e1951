"""The pages in chromium, out of a real control database: 0, 3 and 200 streams, both themes, wide and narrow.

With MILLRACE_SCREENSHOTS naming a folder, every page that was looked at is kept there as a picture.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from playwright.sync_api import Page, expect

from millrace.adapters.control.store import ControlStore
from millrace.domain.plans.plan import Change, Plan, PlanKind
from millrace.domain.streams.control import BatchSecond, StreamLook, StreamProgress
from millrace.domain.streams.supervision import DesiredState, StreamState
from millrace.settings import Settings
from millrace.usecases.streams.listing import StreamRow
from millrace.web.app import create_app
from millrace.wiring.platform import Adapters
from support.checks.budget import Kind, spend
from support.fakes.pages import NAME, PATIENCE, FakeHost
from support.ui.browser import Complaints, keep_picture, open_browser
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from millrace.settings import PostgresSettings
    from support.stack.control_databases import Databases

pytestmark = pytest.mark.full

CHECKOUT = Path(__file__).resolve().parents[4]
MARKUP = "<img src=x onerror=\"document.title='caught'\">"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
OF_THE_TESTS_SERVER = {"Failed to load resource: the server responded with a status of 0 (Not Found) at /favicon.ico"}
RUNNING, STOPPED = DesiredState.RUNNING, DesiredState.STOPPED


@dataclass
class PagesHost(FakeHost):
    """A host whose control database is a real one."""

    database: PostgresSettings | None = None

    def platform(self) -> Any:
        assert self.database
        return Adapters(Settings(root=CHECKOUT, lookup=lambda name: None), control=ControlStore(self.database))


class Served:
    """A server of the pages with a control database of its own."""

    def __init__(self, databases: Databases) -> None:
        made = databases.create_upgraded()
        self.store = ControlStore(made.working)
        self.host = PagesHost(database=made.working)
        self._server = uvicorn.Server(
            uvicorn.Config(
                create_app(self.host, PATIENCE), host="127.0.0.1", port=0, log_level="warning", lifespan="off"
            )
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started, within=Deadline.PROCESS, what="the pages' server")
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    def close(self) -> None:
        """End it."""
        self._server.should_exit = True
        self._thread.join(Deadline.PROCESS.seconds)
        self.store.close()

    def put(
        self,
        stream: str,
        *,
        wanted: DesiredState = RUNNING,
        actor: str = "airflow:ann",
        reason: str = "a new season",
        state: StreamState = StreamState.RUNNING,
        why: str = "",
        lag: int = 0,
        bad: int = 0,
        error: str | None = None,
    ) -> None:
        """A stream as its drivers and supervisors would have written it down."""
        now = datetime.now(UTC)
        streams = self.store.streams
        streams.set_desired(stream, actor=actor, reason=reason, state=wanted)
        streams.record_submitted(stream, 4, runner="process", instance="i4", handle="h4")
        streams.save_look(StreamLook(stream, now, state, 4, now - timedelta(hours=2), why, None))
        progress = StreamProgress(
            stream, 4, 1, now - timedelta(seconds=3), 71, 1_234, 1_200, bad, 0.5, error, {f"{stream}/0": 5}, lag=lag
        )
        past = [
            BatchSecond(
                stream,
                4,
                (now - timedelta(seconds=ago)).replace(microsecond=0),
                2,
                1_000 + ago % 500,
                900,
                bad if ago == 3 else 0,
                1.0,
                {"plan": 0.05, "copy": 0.6, "check": 0.02, "merge": 0.3, "group": 0.03},
                lag * (3_000 - ago) // 3_000,
            )
            for ago in range(3, 3_000, 60)
        ]
        streams.save_progress(progress, past)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def served(control_databases: Databases, postgres: object) -> Iterator[Served]:
    made = Served(control_databases)
    yield made
    made.close()


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


Look = Callable[[Page, str], None]


@pytest.fixture
def look(complaints: Complaints) -> Look:
    """Keeps a picture in both themes and both widths, and fails where the page is wider than its window."""

    def keep(page: Page, name: str) -> None:
        for scheme in ("light", "dark"):
            for width, size in (("wide", WIDE), ("narrow", NARROW)):
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                page.set_viewport_size(size)  # type: ignore[arg-type]
                expect(page.locator("html")).to_have_attribute("data-theme", scheme)
                assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (name, width)
                keep_picture(page, f"pages-{name}-{scheme}-{width}")
        page.set_viewport_size(WIDE)  # type: ignore[arg-type]

    return keep


@pytest.fixture
def page(browser: Browser, served: Served, complaints: Complaints) -> Iterator[Page]:
    spend(Kind.BROWSER_JOURNEYS)
    context = browser.new_context(base_url=served.url, viewport=WIDE, extra_http_headers={NAME: "ann"})  # type: ignore[arg-type]
    opened = context.new_page()
    complaints.watch(opened)
    yield opened
    context.close()


def shown(page: Page) -> dict[str, dict[str, str]]:
    """The overview's cells by stream and column."""
    script = """rows => Object.fromEntries(rows.map(row => [row.dataset.stream, Object.fromEntries(
        [...row.querySelectorAll('td')].map(cell => [cell.dataset.label, cell.innerText.trim()]))]))"""
    found: dict[str, dict[str, str]] = page.locator("tr[data-stream]").evaluate_all(script)
    return found


def test_pages_of_0_3_and_200_streams_say_what_is_written_down_and_the_cause_of_each_trouble(
    page: Page, served: Served, look: Look, complaints: Complaints
) -> None:
    page.goto("/")
    expect(page.locator(".headline")).to_have_text("No stream is known yet: a new one appears after its DAG has run.")
    look(page, "none")

    for number in range(3):
        served.put(f"calm.s{number}")
    page.goto("/")
    expect(page.locator(".headline")).to_have_text("All is well: 3 running, 0 stopped as desired.")
    look(page, "three")

    for number in range(192):
        served.put(f"many.s{number:03}", lag=number)
    served.put("staged.doomed", state=StreamState.GIVEN_UP, why="its declaration or app is wrong; repair it")
    lock = "batch 71: merge since 12:00:00 UTC, waits for a lock of bob (psql, pid 4711)"
    served.put("staged.locked", state=StreamState.STUCK, why=lock)
    served.put("staged.off", wanted=STOPPED, state=StreamState.STOPPED, actor="cli:bob", reason="the sink is moved")
    served.put("staged.dirty", bad=77)
    served.put("staged.late", lag=9_000_000)
    page.goto("/")
    cells = shown(page)
    assert len(cells) == 200
    assert list(cells)[:2] == ["staged.doomed", "staged.locked"]
    assert sorted(list(cells)[2:4]) == ["staged.dirty", "staged.late"]
    assert list(cells)[-1] == "staged.off"
    causes = {
        "staged.doomed": "its declaration or app is wrong; repair it",
        "staged.locked": lock,
        "staged.off": "stopped by cli:bob: the sink is moved",
        "staged.dirty": "77 bad records in the last hour",
        "staged.late": "behind by 9,000,000 records",
    }
    for stream, cause in causes.items():
        assert cause in cells[stream]["why"]  # no click at all
    expect(page.locator(".headline")).to_contain_text("4 of 200 streams need attention; the first: staged.doomed")
    look(page, "many")
    for stream, cause in causes.items():
        page.goto("/")
        page.get_by_role("link", name=stream, exact=True).click()
        expect(page.locator("#state")).to_contain_text(cause)
        expect(page.locator("#charts figure")).to_have_count(3)
    look(page, "stream")
    assert complaints.found <= OF_THE_TESTS_SERVER


def test_every_figure_of_the_overview_is_that_of_the_stream_list(page: Page, served: Served) -> None:
    for number in range(3):
        served.put(f"shop.s{number}", lag=number * 1_000, bad=number, error="boom" if number == 2 else None)
    page.goto("/")
    cells = shown(page)
    rows = {name: listed(served, name) for name in cells}
    assert len(rows) == 3
    for name, row in rows.items():
        assert row.progress
        told = cells[name]
        assert told["wanted"] == row.wanted
        assert told["lag"] == f"{row.progress.lag:,}"
        assert told["rows of last batch"] == f"{row.progress.rows_in:,}"
        assert told["quarantined"].splitlines()[0] == f"{row.progress.quarantined:,}"
        assert told["last error"] == row.last_error
        assert told["epoch"] == "4"


def listed(served: Served, name: str) -> StreamRow:
    """The row of `streams list`, of a stream whose app nobody can see here."""
    from types import SimpleNamespace

    from millrace.domain.streams.hosts import Host
    from millrace.usecases.streams.listing import _row
    from support.fakes.streams import FakeRunner

    runner = SimpleNamespace(find=lambda stream, fresh: [], status=lambda stream, epoch: None, kind=FakeRunner)
    apps = SimpleNamespace(runner=lambda: runner, host=lambda: Host("here", "alpha", "boot 1"))
    platform: Any = SimpleNamespace(control=served.store, apps=apps, settings=SimpleNamespace(root=CHECKOUT))
    return _row(platform, name, None, {})


def test_markup_that_others_wrote_is_text_in_a_browser_too(page: Page, served: Served) -> None:
    served.put("shop.s1", actor=MARKUP, reason=MARKUP, state=StreamState.STUCK, why=MARKUP, error=MARKUP)
    served.store.streams.record_ended("shop.s1", 4, outcome=MARKUP, exit_code=1, detail=MARKUP)
    served.host = replace(served.host, words=MARKUP)
    page.goto("/")
    expect(page.locator("tr[data-stream]")).to_contain_text(MARKUP)
    page.get_by_role("link", name="shop.s1", exact=True).click()
    for part in ("#state", "#attempts", "#actions"):
        expect(page.locator(part)).to_contain_text(MARKUP)
    expect(page.locator("img")).to_have_count(0)
    assert page.title() == "shop.s1 · Millrace"


def test_topics_and_plans_are_found_by_clicking(page: Page, served: Served, look: Look, complaints: Complaints) -> None:
    now = datetime.now(UTC)
    change = Change("topic.add_partitions", "shop.purchases", (("partitions", "2"),), (("partitions", "4"),), MARKUP)
    made = Plan(PlanKind.TOPICS, "shop", "c1", "millrace_kafka", (change,), (), now, now + timedelta(days=1), "cli:ann")
    served.store.plans.add(made)
    page.goto("/")
    page.get_by_role("link", name="Topics", exact=True).click()
    expect(page.locator("#pipelines")).to_contain_text("open")
    look(page, "pipelines")
    page.get_by_role("link", name="shop", exact=True).click()
    topic = page.get_by_role("region", name="shop.purchases")
    expect(topic).to_contain_text("partitions 2")
    expect(topic).to_contain_text(MARKUP)
    look(page, "topics")
    topic.get_by_role("link", name=made.id, exact=True).click()
    expect(page.locator("#plan")).to_contain_text("made")
    look(page, "plan")
    page.get_by_role("link", name="Plans", exact=True).click()
    expect(page.locator("#plans")).to_contain_text("cli:ann")
    look(page, "plans")
    assert complaints.found <= OF_THE_TESTS_SERVER


def test_a_page_refreshes_itself_and_says_so_when_it_cannot(page: Page, served: Served) -> None:
    served.put("shop.s1")
    page.goto("/")
    served.put("shop.s1", state=StreamState.GIVEN_UP, why="its app is wrong")
    page.evaluate("refresh()")
    expect(page.locator(".headline").first).to_contain_text("its app is wrong")
    page.route("**/*", lambda route: route.abort())
    page.evaluate("refresh()")
    expect(page.locator("#unrefreshed")).to_contain_text("Not refreshed since")
    page.unroute("**/*")
    page.evaluate("refresh()")
    expect(page.locator("#unrefreshed")).to_be_hidden()


def test_everything_can_be_reached_by_keyboard(page: Page, served: Served) -> None:
    served.put("shop.s1")
    page.goto("/")
    reached = []
    for _ in range(5):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent"))
    assert reached == ["Streams", "Topics", "Plans", "Airflow", "shop.s1"]
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("shop.s1")
    expect(page.get_by_label("Reason, for the action log").first).to_be_visible()
    page.get_by_label("Reason, for the action log").first.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Start"

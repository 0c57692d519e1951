"""The pages as an app of their own: who gets what, what is shown as text, and what a server that hangs holds up."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from millrace.domain.alarms.alarm import Alarm
from millrace.domain.formats.undeclared import UndeclaredFields, UndeclaredName
from millrace.domain.streams.control import Action, Attempt, StreamHistory
from millrace.domain.streams.standing import StreamFacts
from millrace.domain.streams.supervision import StreamState
from millrace.usecases.streams import pages as stream_pages
from millrace.usecases.streams.pages import LINES
from millrace.web.app import create_app
from support.declarations import example_project
from support.fakes.pages import NAME, PATIENCE, FakeControl, FakeHost, client, facts, plan_of
from support.waiting import Deadline

CHECKOUT = Path(__file__).resolve().parents[4]
MARKUP = "<script>alert('x')</script><img src=x onerror=alert(1)>\"&amp;"
VALUES = {"stream": "shop.purchases", "epoch": "1", "name": "pages.css", "pipeline": "shop", "plan": "topics-1"}
ELSEWHERE = ("/docs", "/redoc", "/openapi.json", "/static/nothing.js", "/nothing", "/static/", "/static/../app.py")


@pytest.fixture
def host() -> FakeHost:
    names = ("shop.purchases", "shop.returns", "garden.seeds")
    made = FakeHost(FakeControl({name: facts(name) for name in names}, plans=[plan_of("shop")]), root=CHECKOUT)
    VALUES["plan"] = made.control.plans[0].plan.id
    return made


def paths(host: FakeHost) -> list[str]:
    """Every path that the app answers, by the app itself, and some that it does not."""
    routes = [route for route in create_app(host).routes if isinstance(route, APIRoute)]
    assert len(routes) == len(create_app(host).routes), "a route of another kind: say here how it is asked"
    return [re.sub(r"{(\w+)}", lambda found: VALUES[found[1]], route.path) for route in routes] + list(ELSEWHERE)


def get(host: FakeHost, path: str, user: str = "ann", method: str = "GET") -> httpx.Response:
    """One answer."""

    async def ask() -> httpx.Response:
        async with client(create_app(host, PATIENCE), {NAME: user} if user else {}) as asking:
            return await asking.request(method, path)

    return asyncio.run(ask())


def test_a_stranger_gets_nothing_whatever_he_asks_for_and_no_server_is_asked(host: FakeHost) -> None:
    for path in paths(host):
        for method in ("GET", "HEAD", "POST", "OPTIONS"):
            assert get(host, path, user="", method=method).status_code == 401, f"{method} {path}"
    assert host.control.asked == 0


def test_a_user_gets_every_page_and_nothing_can_be_changed_by_asking(host: FakeHost) -> None:
    for path in paths(host):
        if not path.endswith("/sink"):  # a real sink is asked for that one
            assert get(host, path).status_code == (404 if path in ELSEWHERE else 200), path
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert get(host, path, method=method).status_code in (404, 405), f"{method} {path}"


def test_every_answer_forbids_scripts_that_are_not_ours(host: FakeHost) -> None:
    host.control.streams = {}
    for path, user in (("/", "ann"), ("/", ""), ("/streams/no.one", "ann"), ("/static/pages.js", "ann")):
        found = get(host, path, user=user).headers
        assert "script-src 'self'" in found["Content-Security-Policy"], path
        assert found["X-Content-Type-Options"] == "nosniff"


def test_a_user_sees_the_streams_he_may_read_and_is_not_told_of_others(host: FakeHost) -> None:
    host.rights = {"bob": {"garden.seeds"}}
    overview = get(host, "/", user="bob").text
    assert "garden.seeds" in overview
    assert "shop." not in overview
    assert get(host, f"/plans/{VALUES['plan']}", user="bob").status_code == 404
    assert "topics-" not in get(host, "/plans", user="bob").text
    assert "shop" not in get(host, "/topics", user="bob").text
    assert get(host, "/topics/shop", user="bob").status_code == 404
    for path in ("/streams/{}", "/streams/{}/sink", "/streams/{}/log/1"):
        hidden = get(host, path.format("shop.purchases"), user="bob")
        missing = get(host, path.format("shop.nothing"), user="bob")
        assert (hidden.status_code, missing.status_code) == (404, 404)
        assert hidden.text.replace("purchases", "") == missing.text.replace("nothing", "")


def test_markup_in_what_others_wrote_is_shown_as_text(host: FakeHost) -> None:
    now = datetime.now(UTC)
    plain = facts("shop.purchases")
    assert plain.desired
    assert plain.look
    assert plain.progress
    end = Attempt("shop.purchases", 2, MARKUP, now, ended_at=now, exit_code=1, outcome=MARKUP, detail=MARKUP)
    host.control.streams = {
        "shop.purchases": replace(
            plain,
            desired=replace(plain.desired, changed_by=MARKUP, reason=MARKUP),
            look=replace(plain.look, state=StreamState.STUCK, why=MARKUP),
            progress=replace(plain.progress, last_error=MARKUP),
            last_end=end,
            alarms=[Alarm(1, MARKUP, "shop.purchases", MARKUP, now, None, None, now, MARKUP, MARKUP)],
        )
    }
    done = Action(1, now, MARKUP, MARKUP, "shop.purchases", MARKUP, {}, {}, MARKUP)
    host.control.history = StreamHistory([end], [done], [])
    host.words = MARKUP
    marked = plan_of("shop", by=MARKUP, reason=MARKUP)
    host.control.plans = [marked, plan_of(MARKUP)]
    plans = ("/plans", f"/plans/{marked.plan.id}", "/topics", "/topics/shop")
    for path in ("/", "/streams/shop.purchases", "/streams/shop.purchases/log/1", *plans):
        text = get(host, path).text
        assert "<script>" not in text, path
        assert "<img" not in text, path
        assert "&lt;script&gt;" in text, path


def test_a_control_database_that_is_away_is_a_sentence_and_looked_up_anew(host: FakeHost) -> None:
    host.control.away = True
    for path in ("/", "/streams/shop.purchases"):
        answer = get(host, path)
        assert answer.status_code == 503
        assert "the control database does not answer" in answer.text
    assert host.forgotten == 2


def test_a_control_database_that_hangs_holds_up_its_own_pages_only_and_one_thread_of_theirs(
    host: FakeHost,
) -> None:
    host.control.let_go.clear()
    asked = 5

    async def ask() -> tuple[list[httpx.Response], int, httpx.Response]:
        beats = 0
        async with client(create_app(host), {NAME: "ann"}) as asking:
            pending = [asyncio.ensure_future(asking.get("/")) for _ in range(asked)]
            while not all(answer.done() for answer in pending):  # what else the server carries goes on
                await asyncio.sleep(0.01)
                beats += 1
            hung = host.control.asked
            refused = [answer.result() for answer in pending]
            assert hung == 1
            host.control.let_go.set()
            while (after := await asking.get("/")).status_code != 200:
                await asyncio.sleep(0.05)
            return refused, beats, after

    refused, beats, after = asyncio.run(asyncio.wait_for(ask(), Deadline.THREAD.seconds))
    assert [answer.status_code for answer in refused] == [503] * asked
    assert "a server did not answer within 2 s" in refused[0].text
    assert beats > 10
    assert "shop.purchases" in after.text


def test_a_declaration_that_is_wrong_or_gone_leaves_the_rest_of_the_page(host: FakeHost) -> None:
    host.control.streams = {"garden.seeds": facts("garden.seeds")}
    page = get(host, "/streams/garden.seeds")
    assert page.status_code == 200
    assert "pipeline `garden` does not exist [unknown-name]" in page.text
    assert "1,234 rows in" in page.text


def test_the_page_of_a_stream_shows_truncated_times_and_undeclared_fields(host: FakeHost) -> None:
    names = (UndeclaredName("a.t", "customerId", 12, "customer_id"), UndeclaredName("a.t", "<script>", 2))
    progress = facts("a.s").progress
    assert progress is not None
    odd = replace(progress, truncated=1_017, undeclared=UndeclaredFields(13, names))
    host.control.streams = {"a.s": facts("a.s", progress=odd), "a.plain": facts("a.plain")}
    page, plain = get(host, "/streams/a.s").text, get(host, "/streams/a.plain").text
    assert "<dt>truncated</dt><dd>1,017 with a timestamp finer than a microsecond</dd>" in page
    assert '<code>"customerId"</code> 12 (is the column <code>customer_id</code> meant?),' in page
    assert "13 with fields that the schema does not name" in page
    assert '<code>"&lt;script&gt;"</code> 2</dd>' in page
    assert "in a.t" not in page
    assert "truncated" not in plain
    assert "undeclared" not in plain


def test_the_page_of_a_stream_says_where_too_many_names_are_undeclared(host: FakeHost) -> None:
    progress = replace(facts("a.s").progress, undeclared=UndeclaredFields(13))  # type: ignore[type-var]
    host.control.streams = {"a.s": facts("a.s", progress=progress)}
    text = "13 with fields that the schema does not name: too many different names to show any</dd>"
    assert text in get(host, "/streams/a.s").text


def test_names_on_the_page_of_a_stream_of_several_topics_stand_with_their_topic(host: FakeHost) -> None:
    names = (UndeclaredName("a.t", "x", 12), UndeclaredName("a.u", "x", 2))
    positions = {"a.t/0": 1, "a.u/0": 1}
    found = UndeclaredFields(13, names)
    progress = replace(facts("a.s").progress, positions=positions, undeclared=found)  # type: ignore[type-var]
    host.control.streams = {"a.s": facts("a.s", progress=progress)}
    assert '<code>"x"</code> 12 in a.t, <code>"x"</code> 2 in a.u</dd>' in get(host, "/streams/a.s").text


def test_the_page_of_a_backup_shows_what_it_archives_and_offers_nothing_that_is_of_streams(
    host: FakeHost, tmp_path: Path
) -> None:
    host.root = example_project(tmp_path)
    host.control.streams = {"shop.backup": facts("shop.backup"), "shop.purchases": facts("shop.purchases")}
    page, of_stream = (get(host, f"/streams/shop.{name}").text for name in ("backup", "purchases"))
    shown = " ".join(re.sub("<[^>]+>", " ", page).split())
    assert "7 of epoch 3, ended" in shown
    assert "1,230 records archived, in 0.500 s" in shown
    assert "Its sink is the archive" in shown
    assert "topics.shop.purchases.backup.keep 10y" in shown
    assert "topics.shop.purchases.partitions 4" in shown
    assert "streams.purchases" not in shown
    for only_of_streams in ("accept-recreated", "Plan a rewind", "shop.rewind", "/sink", "quarantined,"):
        assert only_of_streams not in page, only_of_streams
        assert only_of_streams in of_stream, only_of_streams
    assert 'data-stream="backup"' in page
    assert 'href="/dags/shop.backup"' in page
    assert "shop.backup is a backup: it writes an archive, not a table" in get(host, "/streams/shop.backup/sink").text


def test_the_page_of_a_backup_that_nothing_declares_says_so(host: FakeHost, tmp_path: Path) -> None:
    host.root = example_project(tmp_path, backup=False)
    host.control.streams = {"shop.backup": facts("shop.backup", progress=None)}
    page = get(host, "/streams/shop.backup").text
    assert "pipeline shop has no backup" in page
    assert "last round</dt><dd>none yet" in page


def test_topics_stand_as_declared_beside_what_the_newest_plan_saw(host: FakeHost) -> None:
    shown = " ".join(re.sub("<[^>]+>", " ", get(host, "/topics/shop").text).split())
    assert "Topics of shop" in shown
    assert f"Newest plan: {VALUES['plan']} , done, made" in shown
    assert "topic.add_partitions partitions 4 partitions 8 keys move" in shown
    assert "partitions 4 include/pipelines/shop.yaml:9" in shown
    host.control.plans = []
    shown = get(host, "/topics/shop").text
    assert "No plan names this topic" in shown
    assert "No plan exists" in shown
    assert get(host, "/topics/garden").status_code == 404


def test_a_sink_that_hangs_takes_no_page_with_it(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(stream_pages, "sink_part", lambda *arguments: let_go.wait(Deadline.THREAD.seconds))

    async def ask() -> list[int]:
        async with client(create_app(host), {NAME: "ann"}) as asking:
            path = "/streams/shop.purchases"
            parts = [asyncio.ensure_future(asking.get(f"{path}/sink")) for _ in range(4)]
            for _ in range(4):
                while (await asking.get(path)).status_code != 200:
                    await asyncio.sleep(0.05)
            return [(await part).status_code for part in parts]

    parts = asyncio.run(asyncio.wait_for(ask(), Deadline.THREAD.seconds))
    let_go.set()
    assert parts == [503] * 4


def test_names_that_nothing_can_have_are_not_looked_for(host: FakeHost) -> None:
    for path in ("/streams/a%00b", "/streams/a%0Ab/sink", "/topics/%2e%2e%5c", "/plans/%00", f"/streams/{'x' * 300}"):
        assert get(host, path).status_code == 404, path
    assert host.control.asked == 0


def test_a_stream_of_which_hardly_anything_is_known_has_a_page(host: FakeHost) -> None:
    host.control.streams = {"shop.new": StreamFacts("shop.new"), **host.control.streams}
    assert "never started" in get(host, "/").text
    page = get(host, "/streams/shop.new").text
    assert "None: it was never started." in page
    assert "none yet" in page


def test_no_more_streams_are_shown_than_a_browser_bears_and_the_worst_are(host: FakeHost) -> None:
    many = {f"many.s{number}": facts(f"many.s{number}") for number in range(LINES + 20)}
    worst = facts("zoo.last", quarantined=5)
    host.control.streams = {**many, "zoo.last": worst}
    page = get(host, "/").text
    assert page.count("<tr class=") == LINES
    assert "zoo.last" in page
    assert "And 21 more" in page


def test_no_stream_yet_is_a_sentence(host: FakeHost) -> None:
    host.control.streams = {}
    page = get(host, "/")
    assert "No stream is known yet" in page.text
    assert "<table" not in page.text

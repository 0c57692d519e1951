"""The tasks of a rewind's form: each reads the plan's row, and nothing that somebody may set in Airflow."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace.domain.plans.plan import Change, ChangeResult, Outcome, PlanKind, PlanStatus, facts
from support.ui.plan_forms import Form, PlanForm, answer

MOVE = Change("rewind.move", "shop.purchases/0", facts({"offset": 9}), facts({"offset": 4}))
REWIND = Form("shop.rewind", PlanKind.REWIND, MOVE)
ASKED = {"stream": "purchases", "to": "earliest", "policy": "fail", "reason": "wrong numbers"}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlanForm:
    from millrace.usecases.rewind import plan as rewind_plan

    made = PlanForm(tmp_path, REWIND, ASKED)
    made.stand_in(monkeypatch)
    monkeypatch.setattr(rewind_plan, "make_plan", made.make)
    return made


@pytest.mark.parametrize("task", ["plan", "confirm", "run"])
@pytest.mark.parametrize(
    ("user", "why"), [(None, "no user triggered this run"), ("carl", "carl may not change streams")]
)
def test_only_an_operator_who_pressed_trigger_gets_anywhere(
    given: PlanForm, task: str, user: str | None, why: str
) -> None:
    given.user = user
    if task != "plan":
        given.confirmed()
    assert why in given.failed(task)
    assert not given.run_in
    assert len(given.plans.stored) == (0 if task == "plan" else 1)


def test_a_run_is_bound_to_the_first_plan_it_made(given: PlanForm) -> None:
    given.task("plan").execute(given.context)
    [(plan_id, stored)] = given.plans.stored.items()
    assert stored.plan.by == "airflow:anna"
    given.task("plan").execute(given.context)
    assert list(given.plans.stored) == [plan_id]
    given.plans.refuse(stored.plan)
    assert "is refused, and this run has no other plan" in given.failed("plan")


def test_the_run_of_another_form_is_another_run_though_it_got_the_id_of_one_that_was_deleted(given: PlanForm) -> None:
    given.task("plan").execute(given.context)
    [first] = given.plans.stored.values()
    given.plans.finish(first.plan.id, PlanStatus.DONE)
    given.triggered += timedelta(seconds=1)
    given.task("plan").execute(given.context)
    assert [stored.status for stored in given.plans.stored.values()] == [PlanStatus.DONE, PlanStatus.OPEN]


@pytest.mark.parametrize("task", ["confirm", "run", "verify"])
def test_a_run_without_a_plan_goes_no_further(given: PlanForm, task: str) -> None:
    if task == "verify":
        from airflow.sdk.exceptions import AirflowFailException

        with pytest.raises(AirflowFailException, match="this run has no plan"):
            given.task(task).poke(given.context)
    else:
        assert "this run has no plan" in given.failed(task)


def test_the_plan_is_shown_to_who_asked_until_it_expires(given: PlanForm, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = given.bind(timedelta(hours=3))
    running = given.shown(monkeypatch)
    assert running.assigned_users == [{"id": "anna", "name": "anna"}]
    assert running.subject == f"Rewind shop.purchases: plan {plan.id}"
    assert "wrong numbers" in running.body
    assert timedelta() < timedelta(hours=3) - running.response_timeout < timedelta(hours=1)
    found = given.plans.stored[plan.id].asked
    assert found
    assert (found.shown, found.by) == (plan.hash, "")


@pytest.mark.parametrize("status", [PlanStatus.RUNNING, PlanStatus.DONE])
def test_what_is_no_longer_open_is_not_asked_about(given: PlanForm, status: PlanStatus) -> None:
    plan = given.confirmed()
    given.plans.finish(plan.id, status)
    given.task("confirm").execute(given.context)


def test_what_was_confirmed_is_not_asked_about_again(given: PlanForm) -> None:
    given.confirmed()
    given.task("confirm").execute(given.context)


def test_a_plan_that_expired_before_it_was_shown_is_refused(given: PlanForm) -> None:
    plan = given.bind(-timedelta(seconds=1))
    assert "not confirmed in time" in given.failed("confirm")
    assert given.plans.get(plan.id).status is PlanStatus.REFUSED
    assert given.logged == [("dag:shop.rewind", "plan.refuse")]


def test_an_approval_is_written_to_the_row_and_repeated_changes_nothing(given: PlanForm) -> None:
    plan = given.bind()
    given.plans.note_shown(plan)
    event = answer("Approve")
    for _ in range(2):
        given.task("confirm").execute_complete(given.context, event)
        found = given.plans.get(plan.id)
        assert found.confirmed
        assert found.asked
        assert (found.asked.by, found.asked.at) == ("anna", event["responded_at"])


def test_an_approval_of_what_was_not_shown_is_none(given: PlanForm) -> None:
    plan = given.bind()
    assert "this plan is not the plan that was shown" in given.failed("confirm", event=answer("Approve"))
    assert not given.plans.get(plan.id).confirmed


def test_the_answer_of_somebody_else_is_none(given: PlanForm) -> None:
    plan = given.bind()
    given.plans.note_shown(plan)
    for option in ("Approve", "Reject"):
        assert "bert answered, but anna triggered this run" in given.failed("confirm", event=answer(option, "bert"))
        found = given.plans.get(plan.id)
        assert (found.status, found.confirmed) == (PlanStatus.OPEN, False)


def test_a_plan_that_nobody_answers_for_is_refused(given: PlanForm) -> None:
    plan = given.bind()
    given.plans.note_shown(plan)
    event = {"error": "no answer in time", "error_type": "timeout"}
    assert "not confirmed in time" in given.failed("confirm", event=event)
    assert given.plans.get(plan.id).status is PlanStatus.REFUSED


def test_a_rejection_that_came_too_late_is_told(given: PlanForm) -> None:
    plan = given.bind()
    given.plans.note_shown(plan)
    given.plans.finish(plan.id, PlanStatus.RUNNING)
    assert "was rejected, but its status is running" in given.failed("confirm", event=answer("Reject"))
    given.plans.finish(plan.id, PlanStatus.DONE)
    assert "in time, but its status is done" in given.failed(
        "confirm", event={"error": "late", "error_type": "timeout"}
    )


@pytest.mark.parametrize("option", ["Approve", "Reject"])
def test_an_answer_waits_for_a_control_database_that_is_away(
    given: PlanForm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    import tenacity

    monkeypatch.setattr(tenacity.nap.time, "sleep", lambda seconds: None)
    plan = given.bind()
    given.plans.note_shown(plan)
    given.plans.away = 3
    running = given.task("confirm")
    monkeypatch.setattr(running, "skip", lambda **more: None, raising=False)
    context = {**given.context, "task": SimpleNamespace(get_direct_relatives=lambda upstream: []), "ti": None}
    with caplog.at_level(logging.WARNING):
        running.execute_complete(context, answer(option))
    stored = given.plans.get(plan.id)
    assert (stored.confirmed, stored.status) == (
        (True, PlanStatus.OPEN) if option == "Approve" else (False, PlanStatus.REFUSED)
    )
    assert given.plans.away == 0


def test_what_was_not_confirmed_is_not_run(given: PlanForm) -> None:
    plan = given.bind()
    assert "was not confirmed" in given.failed("run")
    given.plans.note_shown(plan)
    assert "was not confirmed" in given.failed("run")
    found = given.plans.stored[plan.id]
    assert found.asked
    given.plans.stored[plan.id] = replace(found, asked=replace(found.asked, by="anna", shown="another hash"))
    assert "was not confirmed" in given.failed("run")
    assert not given.run_in


def test_what_was_confirmed_is_run_in_the_name_of_who_asked_and_once(given: PlanForm) -> None:
    plan = given.confirmed()
    given.outcome = PlanStatus.RUNNING
    given.task("run").execute(given.context)
    assert given.task("verify").poke(given.context) is False
    given.outcome = PlanStatus.DONE
    assert given.task("verify").poke(given.context) is True
    assert given.run_in == [(plan.id, "airflow:anna")] * 3
    given.task("run").execute(given.context)
    assert given.task("verify").poke(given.context) is True
    assert len(given.run_in) == 3


@pytest.mark.parametrize("status", [PlanStatus.REFUSED, PlanStatus.STALE, PlanStatus.ABORTED])
@pytest.mark.parametrize("task", ["plan", "confirm", "run"])
def test_a_run_whose_plan_came_to_nothing_stays_failed(given: PlanForm, task: str, status: PlanStatus) -> None:
    plan = given.confirmed()
    given.plans.finish(plan.id, status)
    assert f"is {status.value}, and this run has no other plan" in given.failed(task)
    assert not given.run_in


def test_the_look_at_a_plan_that_somebody_runs_comes_again(given: PlanForm) -> None:
    from millrace.errors import BusyPlanError

    plan = given.confirmed()
    given.plans.finish(plan.id, PlanStatus.RUNNING)
    given.outcome = BusyPlanError("somebody is running it", where=plan.id, next_step="wait")
    assert given.task("verify").poke(given.context) is False


@pytest.mark.parametrize("task", ["run", "verify"])
def test_a_server_that_is_away_is_tried_again_and_a_stale_plan_is_not(given: PlanForm, task: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from millrace.errors import StalePlanError, UnreachableError

    plan = given.confirmed()
    given.plans.finish(plan.id, PlanStatus.RUNNING)
    running = given.task(task)
    act = running.execute if task == "run" else running.poke
    given.outcome = UnreachableError("the broker does not answer", where="kafka", next_step="wait")
    with pytest.raises(UnreachableError):
        act(given.context)
    given.outcome = StalePlanError("it expired", where=plan.id, next_step="plan again")
    with pytest.raises(AirflowFailException, match="it expired"):
        act(given.context)


@pytest.mark.parametrize("task", ["run", "verify"])
def test_a_plan_that_fails_while_it_is_run_fails_the_task_with_what_failed(given: PlanForm, task: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    plan = given.confirmed()
    given.plans.finish(plan.id, PlanStatus.RUNNING)
    given.outcome = PlanStatus.FAILED
    given.results = [ChangeResult(MOVE.action, MOVE.subject, Outcome.FAILED, "it begins at 7")]
    running = given.task(task)
    act = running.execute if task == "run" else running.poke
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=r"is failed, .*\nshop\.purchases/0: it begins at 7"):
            act(given.context)
    assert len(given.run_in) == 1

"""The form that redrives a stream's quarantine: what it asks for, and what its tasks make of the plan."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millrace.domain.plans.plan import Change, ChangeResult, Outcome, PlanKind, PlanStatus, facts
from millrace.domain.quarantine.rules import Rule
from millrace.errors import UnreachableError, UsageError
from millrace.usecases.quarantine import redrive
from support.ui.plan_forms import Form, PlanForm, answer

CHANGE = Change("quarantine.redrive", "shop.purchases/0", facts({"records": 2}), facts({"rows": 2}))
FORM = Form("shop.redrive", PlanKind.REDRIVE, CHANGE)
WHOLE = {"stream": "purchases", "rule": None, "since": None, "offsets": None, "reason": "the schema was mended"}


class RedriveForm(PlanForm):
    """The form, with what reached the use case.

    Attributes:
        selected: what was to be selected; `wrong` is raised instead.
        planned: what a plan was asked for with.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root, FORM, WHOLE)
        self.selected: list[dict[str, Any]] = []
        self.planned: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.wrong: Exception | None = None

    def selection_of(self, **asked: Any) -> str:
        if self.wrong:
            raise self.wrong
        self.selected.append(asked)
        return f"selection {len(self.selected)}"

    def make(self, *args: Any, by: str, asked_in: str, **asked: Any) -> Any:
        self.planned.append((args, asked))
        asked["tell"]("2 of 2 records tried")
        return super().make(*args, by=by, asked_in=asked_in)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RedriveForm:
    made = RedriveForm(tmp_path)
    made.stand_in(monkeypatch)
    monkeypatch.setattr(redrive, "selection_of", made.selection_of)
    monkeypatch.setattr(redrive, "make_plan", made.make)
    return made


def filled(**conf: Any) -> dict[str, Any]:
    """What a run's task would get from the form."""
    from millrace.airflow.pipeline import pipeline_dags

    params = copy.deepcopy(pipeline_dags("shop")["shop.redrive"].params)
    params.update(conf)
    return dict(params.validate())


def test_the_form_asks_for_a_reason_and_else_is_about_all_that_is_in_quarantine(given: RedriveForm) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError, match="No value passed"):
        filled()
    assert filled(reason=WHOLE["reason"]) == WHOLE


@pytest.mark.parametrize("rule", [None, *(rule.value for rule in Rule)])
def test_the_form_knows_every_rule(given: RedriveForm, rule: str | None) -> None:
    assert filled(reason="to try again", rule=rule)["rule"] == rule


def test_the_form_knows_no_other_rule(given: RedriveForm) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError):
        filled(reason="to try again", rule="not a rule")


def test_the_tasks_go_one_after_another_and_say_what_they_do(given: RedriveForm) -> None:
    from millrace.airflow.pipeline import pipeline_dags

    dag = pipeline_dags("shop")["shop.redrive"]
    assert [sorted(task.downstream_task_ids) for task in dag.tasks] == [["confirm"], ["run"], ["books"], []]
    assert all(f"`{task.task_id}`" in dag.doc_md for task in dag.tasks)


@pytest.mark.parametrize(
    ("fields", "rule", "since", "offsets"),
    [
        ({}, "", "", []),
        ({"rule": "", "since": "", "offsets": ""}, "", "", []),
        ({"rule": "not_json"}, "not_json", "", []),
        ({"since": "2026-05-01T08:00Z"}, "", "2026-05-01T08:00Z", []),
        ({"offsets": "a/0@4"}, "", "", ["a/0@4"]),
        ({"offsets": " a/0@4, a/1@5-9,b.c/0@1\tb.c/1@2-2 "}, "", "", ["a/0@4", "a/1@5-9", "b.c/0@1", "b.c/1@2-2"]),
    ],
)
def test_what_the_form_says_is_what_is_planned(
    given: RedriveForm, fields: dict[str, Any], rule: str, since: str, offsets: list[str]
) -> None:
    given.params |= fields
    given.task("plan").execute(given.context)
    [selected] = given.selected
    assert (selected["rule"], selected["since"], selected["offsets"]) == (rule, since, offsets)
    assert timedelta() <= datetime.now(UTC) - selected["now"] < timedelta(hours=1)
    [(arguments, asked)] = given.planned
    assert arguments == (given.platform, "shop.purchases", "selection 1")
    assert asked["reason"] == "the schema was mended"
    [stored] = given.plans.stored.values()
    assert stored.asked
    assert (stored.plan.by, stored.asked.run) == ("airflow:anna", given.run_of_dag)


def test_a_run_that_has_a_plan_makes_no_other(given: RedriveForm) -> None:
    given.task("plan").execute(given.context)
    given.params["rule"] = "not_json"
    given.task("plan").execute(given.context)
    assert len(given.planned) == len(given.plans.stored) == 1


def test_a_wrong_selection_fails_at_once(given: RedriveForm) -> None:
    given.wrong = UsageError("this time has no zone", where="since", next_step="give one")
    assert "this time has no zone" in given.failed("plan")
    assert not given.plans.stored


def test_a_server_that_is_away_while_it_is_planned_is_tried_again(given: RedriveForm) -> None:
    given.wrong = UnreachableError("the sink database does not answer", where="sink", next_step="wait")
    with pytest.raises(UnreachableError):
        given.task("plan").execute(given.context)


@pytest.mark.parametrize("task", ["plan", "confirm", "run"])
@pytest.mark.parametrize(
    ("user", "why"), [(None, "no user triggered this run"), ("carl", "carl may not change streams")]
)
def test_only_an_operator_who_pressed_trigger_gets_anywhere(
    given: RedriveForm, task: str, user: str | None, why: str
) -> None:
    given.user = user
    if task != "plan":
        given.confirmed()
    assert why in given.failed(task)
    assert (given.planned, given.run_in) == ([], [])


def test_the_plan_is_shown_as_a_redrive(given: RedriveForm, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = given.bind()
    running = given.shown(monkeypatch)
    assert running.subject == f"Redrive shop.purchases: plan {plan.id}"
    assert "shop.purchases/0" in running.body


def test_what_was_confirmed_is_run_once_and_what_was_not_is_not(given: RedriveForm) -> None:
    plan = given.bind()
    assert "was not confirmed" in given.failed("run")
    given.plans.note_shown(plan)
    given.task("confirm").execute_complete(given.context, answer("Approve"))
    given.task("run").execute(given.context)
    given.task("run").execute(given.context)
    assert given.run_in == [(plan.id, "airflow:anna")]


def test_a_plan_that_ends_failed_fails_the_task_for_good_with_what_failed(given: RedriveForm) -> None:
    plan = given.confirmed()
    given.outcome = PlanStatus.FAILED
    given.results = [
        ChangeResult(CHANGE.action, "shop.purchases/0", Outcome.DONE),
        ChangeResult(CHANGE.action, "shop.purchases/1", Outcome.FAILED, "the table is gone"),
        ChangeResult(CHANGE.action, "shop.purchases/2", Outcome.FAILED, "another wrote these rows"),
    ]
    said = [
        f"plan {plan.id} is failed, and this run has no other plan: trigger a new run",
        "shop.purchases/1: the table is gone",
        "shop.purchases/2: another wrote these rows",
    ]
    assert given.failed("run").splitlines() == said
    assert given.failed("run").splitlines() == said
    assert given.failed("confirm").splitlines() == said
    assert len(given.run_in) == 1


def test_of_many_failures_the_first_are_named(given: RedriveForm) -> None:
    plan = given.confirmed()
    given.outcome = PlanStatus.FAILED
    given.results = [ChangeResult(CHANGE.action, f"shop.purchases/{n}", Outcome.FAILED, "away") for n in range(50)]
    lines = given.failed("run").splitlines()
    assert len(lines) == 22
    assert lines[-1] == f"and 30 more: `millrace plans show {plan.id}`"

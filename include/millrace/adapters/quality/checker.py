"""Rules held against the rows of a sink's table: counted by Great Expectations, within a deadline, without a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from great_expectations.core import (  # noqa: TID253  loaded by checks alone
    ExpectationSuite,
    ExpectationValidationResult,
)

from millrace.adapters.quality.pages import page_of
from millrace.adapters.quality.session import (
    LONGEST_STATEMENT,
    OutOfTimeError,
    Session,
    is_gone,
    open_session,
    said,
    unreachable,
)
from millrace.adapters.quality.sources import sources_of
from millrace.adapters.quality.suite import (
    RISKY,
    Surroundings,
    condition_for,
    condition_of,
    expectation_of,
    quoted,
    rows_of,
)
from millrace.domain.quality.columns import problems
from millrace.domain.quality.holding import Asked, Found
from millrace.domain.quality.results import Outcome, RuleResult
from millrace.domain.quality.rules import OF_THE_WHOLE, Fresh, HasType, Query, RowCount, Rule, Volume
from millrace.domain.topics.offsets import OffsetRange
from millrace.settings import PostgresSettings

RESULT_FORMAT = {"result_format": "BASIC", "partial_unexpected_count": 0}
"""Counts, and of the values that break a rule none."""
LONGEST_RULE = timedelta(minutes=3)
LONGEST_CHECK = timedelta(minutes=20)


class QualityChecker:
    """Holds rules against tables of one database.

    Args:
        settings: the database, as a role that may read.
        statement: how long one statement may take.
        rule: how long one rule may take, or all those that are counted together.
        check: how long all of them may take.
    """

    def __init__(
        self,
        settings: PostgresSettings,
        *,
        statement: timedelta = LONGEST_STATEMENT,
        rule: timedelta = LONGEST_RULE,
        check: timedelta = LONGEST_CHECK,
    ) -> None:
        self._settings = settings
        self._statement = statement
        self._rule = rule
        self._check = check

    def hold(self, asked: Asked) -> Found:
        """Hold rules against the rows of some ranges, all as they are at one moment.

        Guarantees: no value of a row comes back, and none is in the page. The memory that it takes does not depend on
        how many rows there are.

        Raises:
            UnreachableError: the database does not answer, or went away meanwhile.
        """
        with open_session(self._settings, statement=self._statement) as session, session.within(self._check):
            return _Run(session, asked, self._rule).run()


class _Run:
    """One check."""

    def __init__(self, session: Session, asked: Asked, longest: timedelta) -> None:
        self._session = session
        self._asked = asked
        self._longest = longest
        self._columns = _columns(session, asked.table)
        usual = {name: band for name, band in asked.usual.items() if not isinstance(band, str)}
        self._around = Surroundings(
            asked.table, self._columns, asked.ranges, asked.gained, asked.now, asked.known_age, usual
        )
        self._raw: list[ExpectationValidationResult] = []
        self._results: dict[str, RuleResult] = {}
        self._ages: dict[str, float] = {}

    def run(self) -> Found:
        """Rules that are counted over the same rows go together; those that may fail or hang go alone."""
        if not self._columns:
            return Found({}, 0, 0, {}, {}, "")
        rows = self._count(self._asked.ranges)
        gained = rows if self._asked.gained == self._asked.ranges else self._count(self._asked.gained)
        together: dict[str, list[Rule]] = {}
        judged = [rule for rule in self._asked.rules if not isinstance(rule.check, HasType)]
        unfit = {**problems(judged, self._columns), **self._unable()}
        for rule in self._asked.rules:
            if rule.name in unfit:
                self._results[rule.name] = _untried(rule, unfit[rule.name])
            elif (why := self._not_now(rule, rows)) is not None:
                self._results[rule.name] = replace(_untried(rule, why), outcome=Outcome.SKIPPED)
            elif isinstance(rule.check, RISKY) or rule.where is not None:
                self._try([rule])
            else:
                together.setdefault(condition_for(rule, self._around), []).append(rule)
        for rules in together.values():
            self._try(rules)
        names = [rule.name for rule in self._asked.rules]
        self._raw.sort(key=lambda result: names.index(_name(result)))
        page = page_of(self._raw, self._asked.table, self._asked.now)
        return Found(self._columns, rows, gained, self._results, self._ages, page)

    def _not_now(self, rule: Rule, rows: int) -> str | None:
        """Why a rule has nothing to be held against; None where it has."""
        if isinstance(rule.check, Volume):
            usual = self._asked.usual.get(rule.name, "nobody knows what is usual")
            return usual if isinstance(usual, str) else None
        return None if rows or isinstance(rule.check, OF_THE_WHOLE) else "there are no rows"

    def _unable(self) -> dict[str, str]:
        """Rules that cannot be tried, and why: SQL of people as a role that may write, records of unknown age."""
        found = {}
        queries = [rule for rule in self._asked.rules if isinstance(rule.check, Query)]
        if queries and (role := self._writing_role()):
            why = f"role {role} may write the table: name the Connection of one that may not, under quality.connection"
            found = {rule.name: why for rule in queries}
        for rule in self._asked.rules:
            timeless = isinstance(rule.check, Fresh) and rule.check.column is None
            if timeless and rule.name not in self._asked.known_age:
                found[rule.name] = "nobody knows the time of the newest record that is done"
        return found

    def _writing_role(self) -> str:
        """Who is looking, where he may write the table; empty where he may not."""
        [(role, may)] = self._session.rows(
            "SELECT current_user, has_table_privilege(%s::regclass, 'INSERT, UPDATE, DELETE, TRUNCATE')",
            quoted(self._asked.table),
        )
        return str(role) if may else ""

    def _count(self, ranges: Sequence[OffsetRange]) -> int:
        [(count,)] = self._session.rows(
            f"SELECT count(*) FROM ({rows_of(self._asked.table, condition_of(ranges))}) AS _rows"
        )
        return int(count)

    def _try(self, rules: Sequence[Rule]) -> None:
        """Hold rules over the same rows against them; where one fails, each by itself."""
        self._session.taken_errors()
        with self._session.within(self._longest):
            try:
                results = self._validated(rules)
            except OutOfTimeError as late:  # before anything was asked
                self._results |= {rule.name: _untried(rule, late.what) for rule in rules}
                return
        errors = self._session.taken_errors()
        for error in errors:
            if is_gone(error):
                raise unreachable(self._session.settings, error)
        if len(rules) > 1 and any(_failed(result) for result in results.values()):
            for rule in rules:
                self._try([rule])
            return
        for rule in rules:
            self._keep(rule, results[rule.name], errors)

    def _validated(self, rules: Sequence[Rule]) -> dict[str, ExpectationValidationResult]:
        validator = self._session.validator(self._asked.table, condition_for(rules[0], self._around))
        suite = ExpectationSuite(self._asked.table, [expectation_of(rule, self._around) for rule in rules])
        results = validator.graph_validate(
            configurations=suite.expectation_configurations,
            runtime_configuration={"result_format": dict(RESULT_FORMAT)},
        )
        return {_name(result): result for result in results}

    def _keep(self, rule: Rule, result: ExpectationValidationResult, errors: Sequence[BaseException]) -> None:
        self._raw.append(result)
        made = RuleResult(rule.name, rule.kind, rule.severity, Outcome.ERROR)
        if _failed(result):
            detail = said(errors[-1]) if errors else "Great Expectations could not try it"
            result.exception_info = {"raised_exception": True, "exception_message": detail, "exception_traceback": ""}
            self._results[rule.name] = replace(made, detail=detail)
            return
        outcome = Outcome.PASSED if result.success else Outcome.FAILED
        counts = result.result
        if isinstance(rule.check, OF_THE_WHOLE):
            detail = self._detail(rule, counts.get("observed_value"))
            self._results[rule.name] = replace(made, outcome=outcome, detail=detail)
            return
        broken = int(counts.get("unexpected_count") or 0)
        sources = sources_of(self._session, rule, self._around, self._longest) if broken else ()
        rows = int(counts.get("element_count") or 0)
        if not rows and not broken:
            why = "no row meets its `where`"
            self._results[rule.name] = replace(made, outcome=Outcome.SKIPPED, rows=0, broken=0, detail=why)
            return
        detail = "the query found more rows than there are" if isinstance(rule.check, Query) and broken > rows else ""
        self._results[rule.name] = replace(
            made, outcome=outcome, rows=rows, broken=broken, detail=detail, sources=sources
        )

    def _detail(self, rule: Rule, observed: Any) -> str:
        match rule.check:
            case HasType(column, type_):
                return f"{column} is {observed or 'not there'}, declared {type_}"
            case RowCount():
                return f"{observed:,} rows"
            case Volume():
                least, most = self._around.usual[rule.name]
                return f"{observed:,} rows came, usual are {least:,} to {most:,}"
            case Fresh(at_most):
                if observed is None:
                    return "no time of a newest one is known"
                self._ages[rule.name] = float(observed)
                return f"the newest is {timedelta(seconds=round(observed))} old, at most {at_most} is allowed"
        return ""


def _untried(rule: Rule, why: str) -> RuleResult:
    return RuleResult(rule.name, rule.kind, rule.severity, Outcome.ERROR, detail=why)


def _columns(session: Session, table: str) -> Mapping[str, str]:
    schema, _, name = table.partition(".")
    found = session.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "JOIN pg_class ON pg_class.oid = attrelid JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname = %s AND relname = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        schema,
        name,
    )
    return {str(column): str(type_) for column, type_ in found}


def _name(result: ExpectationValidationResult) -> str:
    return str(result.expectation_config.meta["rule"])


def _failed(result: ExpectationValidationResult) -> bool:
    """Whether a rule could not be tried: the library tells that by rule, or by each metric of it."""
    info: Mapping[str, Any] = result.exception_info or {}
    if "raised_exception" in info:
        return bool(info["raised_exception"])
    return bool(info)

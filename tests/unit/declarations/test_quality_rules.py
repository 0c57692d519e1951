"""Rule files: every kind read, every mistake named with its line, and what fits the columns of a table."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import declarations
from millrace.declarations.quality import read_rules
from millrace.domain.quality.rules import (
    KINDS,
    Compare,
    Comparison,
    Exists,
    Fresh,
    HasType,
    InSet,
    Matches,
    NotNull,
    Query,
    Range,
    RowCondition,
    RowCount,
    Severity,
    Unique,
    Volume,
)
from support.declarations import SHOP, replace_once, valid_project

WHOLE = """\
rules:
  customer_given: {not_null: customer_id}
  amount_type: {type: {column: amount, is: "numeric(12,2)"}}
  amount_set: {in_set: {column: amount, values: [1, 2.5]}, severity: warn}
  amount_sane: {range: {column: amount, min: 0, max: 10000}, where: "customer_id <> ''"}
  customer_shape: {regex: {column: customer_id, matches: "^[0-9]+$"}}
  once: {unique: [customer_id, amount]}
  row_ok: {condition: "amount >= 0 or customer_id = ';--('"}
  enough: {row_count: {min: 1}}
  fresh: {freshness: {at_most: 1h}}
  steady: {volume: {within: 50%}}
  order: {compare: {column: amount, is: "<=", to: amount}}
  known: {exists: {column: customer_id, table: shop.customers, in: id}}
  custom: {sql: "select 1 from {rows} where amount < 0"}
"""
CHECKS = (
    NotNull("customer_id"),
    HasType("amount", "numeric(12,2)"),
    InSet("amount", (1, 2.5)),
    Range("amount", 0, 10000),
    Matches("customer_id", "^[0-9]+$"),
    Unique(("customer_id", "amount")),
    RowCondition("amount >= 0 or customer_id = ';--('"),
    RowCount(1, None),
    Fresh(timedelta(hours=1)),
    Volume(0.5),
    Compare("amount", Comparison.AT_MOST, "amount"),
    Exists("customer_id", "shop.customers", "id"),
    Query("select 1 from {rows} where amount < 0"),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The valid project, with a rule file of every kind that its stream names."""
    project = valid_project(tmp_path)
    (project / "include/quality").mkdir()
    (project / "include/quality/purchases.yaml").write_text(WHOLE, encoding="utf-8")
    quality = "    group: shop-team.purchases\n    quality: {rules: purchases, every: 30m, connection: millrace_sink}\n"
    replace_once(project / SHOP, "    group: shop-team.purchases\n", quality)
    return project


def test_every_kind_is_read_with_its_file_and_line(root: Path) -> None:
    quality = declarations.load_pipeline(root, "shop").stream("purchases").quality

    assert quality is not None
    assert tuple(rule.check for rule in quality.rules) == CHECKS
    assert {rule.kind for rule in quality.rules} == set(KINDS)
    assert [rule.line for rule in quality.rules] == list(range(2, 15))
    assert [rule.name for rule in quality.rules if rule.severity is Severity.WARN] == ["amount_set"]
    assert [rule.where for rule in quality.rules if rule.where] == ["customer_id <> ''"]
    assert (quality.every, quality.keep, quality.connection) == (
        timedelta(minutes=30),
        timedelta(days=90),
        "millrace_sink",
    )


def test_a_connection_for_reading_is_renamed_like_any_other(root: Path) -> None:
    quality = declarations.load_pipeline(root, "shop", "production").stream("purchases").quality
    assert quality is not None
    assert quality.connection == "warehouse"


def test_what_the_schema_for_editors_allows_is_what_is_read() -> None:
    from ruamel.yaml import YAML

    document = YAML(typ="safe", pure=True).load(WHOLE)
    jsonschema.validate(document, declarations.json_schema(rules=True))
    document["rules"]["once"]["uniq"] = "amount"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, declarations.json_schema(rules=True))


WRONG = {
    "{not_null: customer_id, unique: amount}": "the rule is not_null and unique at once",
    "{severity: warn}": "the rule says nothing",
    "{range: {column: amount}}": "`range` has neither `min` nor `max`",
    "{range: {column: amount, min: 2, max: 1}}": "`min` 2 is above `max` 1",
    '{range: {column: amount, min: 2, max: "3"}}': "`min` and `max` are of different kinds",
    "{range: {column: free, min: false}}": "true and false have no order",
    "{row_count: {}}": "`row_count` has neither `min` nor `max`",
    "{in_set: {column: amount, values: []}}": "the list is empty",
    "{in_set: {column: amount, values: [1, 1]}}": "`1` is in the list twice",
    '{in_set: {column: amount, values: [1, "a"]}}': "the list mixes values of several kinds",
    "{in_set: {column: amount, values: [true, 1]}}": "the list mixes values of several kinds",
    '{regex: {column: customer_id, matches: ""}}': "`` is not a regular expression",
    '{condition: ""}': "`` is not SQL",
    '{condition: "amount > 0; drop table x"}': "the SQL holds a `;`",
    '{condition: "amount > 0 -- all"}': "the SQL holds a comment",
    '{condition: "amount > /* 0 */ 1"}': "the SQL holds a comment",
    '{condition: "amount > 0)"}': "the SQL lacks a bracket",
    '{condition: "amount > 0) or (true"}': "the SQL lacks a bracket",
    '{condition: "(amount > 0"}': "the SQL lacks a bracket",
    '{condition: "customer_id = \'a"}': "the SQL holds a quote that is not closed",
    "{condition: \"customer_id = E'\\\\'; drop table x --'\"}": "the SQL holds a text with escapes (`E'...'`)",
    '{condition: "customer_id = $a$;$a$"}': "the SQL holds a `;`",
    '{condition: "customer_id = $$x$$"}': "the SQL holds a quote of dollars",
    '{sql: "delete from shop.purchases"}': "the SQL is no query",
    '{sql: "select 1"}': "the SQL does not say `{rows}`",
    '{sql: "select {row} from {rows}"}': "`{row}` stands for nothing",
    '{sql: "select 1 from {rows}", where: "amount > 0"}': "`sql` is not about single rows",
    '{volume: {within: 50%}, where: "amount > 0"}': "`volume` is not about single rows",
    '{freshness: {at_most: 1h}, where: "amount > 0"}': "`freshness` is not about single rows",
    "{volume: {within: 0%}}": "`0%` is not a share",
    "{volume: {within: 0.5}}": "the number 0.5 is not a share",
    "{unique: []}": "the list is empty",
    "{unique: [amount, amount]}": "a column is named twice",
    "{compare: {column: amount, is: like, to: amount}}": "`like` is not `=` or `<` or `<=` or `>` or `>=`",
    "{exists: {column: customer_id, table: customers, in: id}}": "`customers` is not `schema.table`",
    "{not_null: customer_id, severity: loud}": "`loud` is not `warn` or `fail`",
    "{not_null: customer_id, wher: x}": "`wher` is not a field here",
    "{notnull: customer_id}": "`notnull` is not a field here",
}


@pytest.mark.parametrize("rule", WRONG, ids=list(WRONG))
def test_what_is_wrong_with_a_rule_is_named_at_its_line(root: Path, rule: str) -> None:
    path = root / "include/quality/purchases.yaml"
    path.write_text(f"rules:\n  good: {{not_null: amount}}\n  bad: {rule}\n", encoding="utf-8")

    found = [each for each in declarations.check(root) if each.file == "include/quality/purchases.yaml"]

    assert WRONG[rule] in found[0].what
    assert {each.line for each in found} == {3}
    with pytest.raises(declarations.InvalidDeclarationError, match="have findings of their own"):
        declarations.load_pipeline(root, "shop")
    assert [each.name for each in declarations.load(root).pipelines] == ["returns"]  # no other pipeline is taken down


def test_what_is_wrong_with_a_file_is_named(root: Path) -> None:
    path = root / "include/quality/purchases.yaml"
    for text, what in (
        ("", "the file is empty"),
        ("rules: {}\n", "the file has no rules"),
        ("rule: {}\n", "`rule` is not a field here"),
        ("rules: [a]\n", "a list is not a group of named rules"),
        ("rules:\n  A: {not_null: b}\n", "`A` is not a lower-case letter"),
        (
            "rules:\n" + "".join(f"  r{n}: {{not_null: a}}\n" for n in range(201)),
            "the file has 201 rules, more than 200",
        ),
    ):
        path.write_text(text, encoding="utf-8")
        found = [each.what for each in declarations.check(root) if each.file == "include/quality/purchases.yaml"]
        assert any(what in each for each in found), (text, found)


def test_a_file_that_nobody_names_and_an_expression_that_may_be_broken_are_warnings(root: Path) -> None:
    (root / "include/quality/others.yaml").write_text(WHOLE, encoding="utf-8")
    (root / "include/quality/more.yml").write_text(WHOLE, encoding="utf-8")
    path = root / "include/quality/purchases.yaml"
    path.write_text(WHOLE.replace("^[0-9]+$", "[0-9"), encoding="utf-8")

    found = [(each.severity.value, each.file, each.what) for each in declarations.check(root)]

    assert ("warning", "include/quality/others.yaml", "no stream names these rules") in found
    assert any(severity == "error" and file.endswith("more.yml") for severity, file, _ in found)
    assert any(severity == "warning" and "may be broken" in what for severity, _, what in found)


def test_a_column_that_neither_a_topic_nor_the_transform_names_is_a_warning(root: Path) -> None:
    path = root / "include/quality/purchases.yaml"
    path.write_text(WHOLE.replace("not_null: customer_id", "not_null: custmer_id"), encoding="utf-8")

    [found] = declarations.check(root)
    assert (found.severity, found.line, found.next_step) == ("warning", 2, "did you mean `customer_id`?")

    transform = root / "spark_apps/shop_purchases/transform.py"
    transform.write_text('def transform(inputs, tables):\n    return x.alias("custmer_id")\n', encoding="utf-8")
    assert declarations.check(root) == ()


@given(st.text(alphabet="ab ();'\"-/*$Ee\\{}rows:%", max_size=40))
def test_sql_that_is_let_in_stays_where_it_is_put(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Read as PostgreSQL reads standard strings, what is let in closes all that it opens, and ends nothing."""
    from millrace.declarations.fields import Wrong
    from millrace.declarations.quality_documents import _sql

    try:
        found = _sql(text)
    except Wrong:
        return
    depth, at = 0, 0
    while at < len(found):
        if found[at] in "'\"":
            quote = found[at]
            assert not (quote == "'" and at and found[at - 1] in "eE" and not re.match(r"\w", found[at - 2 : at - 1]))
            at = found.index(quote, at + 1)
        else:
            assert found[at] != ";"
            assert found[at : at + 2] not in ("--", "/*", "$$")
            depth += {"(": 1, ")": -1}.get(found[at], 0)
            assert depth >= 0
        at += 1
    assert depth == 0


def test_read_rules_names_the_file(root: Path) -> None:
    found = read_rules(root, "purchases")
    assert found.sound
    assert found.rules[0].place == "include/quality/purchases.yaml:2"

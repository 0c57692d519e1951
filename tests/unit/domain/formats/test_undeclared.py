"""Undeclared fields: how counts add up, and which names people see."""

from __future__ import annotations

from collections import Counter

from millrace.domain.formats.undeclared import (
    MOST_KEPT,
    MOST_NAMES,
    Undeclared,
    UndeclaredFields,
    UndeclaredName,
    kept,
    names_to_show,
    total,
)


def test_counts_of_blocks_add_up() -> None:
    one = Undeclared(2, {"a": 2, "Id": 1}, {"Id": "id"})
    two = Undeclared(1, {"b": 1, "a": 1}, {"b": "B"})
    assert total([one, two, two]) == Undeclared(4, {"a": 4, "Id": 1, "b": 2}, {"Id": "id", "b": "B"})
    assert total([]) == Undeclared()


def test_a_name_that_is_rare_in_each_block_and_frequent_in_all_is_kept() -> None:
    blocks = [
        Undeclared(20_000, {f"n{block}x{number}": 20_000 for number in range(90)} | {"renamed": 1_000})
        for block in range(50)
    ]
    blocks.insert(0, Undeclared(1, {"Id": 1}, {"Id": "id"}))
    found = total(blocks)
    assert found.records == 1_000_001
    assert len(found.names) == MOST_KEPT
    assert max(found.names, key=lambda name: found.names[name]) == "renamed"
    assert (found.names["renamed"], found.names["Id"], found.similar) == (50_000, 1, {"Id": "id"})


def test_names_are_cut_by_similarity_then_frequency_then_name() -> None:
    names = {f"n{number:04}": 2 for number in range(MOST_KEPT)} | {"rare": 1, "Id": 1, "often": 3}
    left, similar = kept(names, {"Id": "id", "gone": "g"})
    assert similar == {"Id": "id"}
    assert list(left) == ["Id", "often", *(f"n{number:04}" for number in range(MOST_KEPT - 2))]


def test_names_similar_to_a_column_come_first_then_the_most_frequent_of_all_topics() -> None:
    found = {
        "left": Undeclared(40, {f"l{number:02}": number for number in range(1, 21)} | {"Id": 1, "ID": 2},
                           {"Id": "id", "ID": "id"}),
        "right": Undeclared(30, {"r": 20}),
    }  # fmt: skip
    shown = names_to_show(found)
    assert shown.records == 70
    assert [each.name for each in shown.names] == ["ID", "Id", "l20", "r", *(f"l{n}" for n in range(19, 13, -1))]
    assert len(shown.names) == MOST_NAMES
    assert shown.names[:1] == (UndeclaredName("left", "ID", 2, "id"),)
    assert shown.names[3] == UndeclaredName("right", "r", 20)


def test_a_renamed_field_is_seen_among_many_that_nobody_declares() -> None:
    names = Counter({f"attr{number:02}": 20_000 for number in range(90)} | {"customerId": 20_000})
    shown = names_to_show({"t": Undeclared(20_000, names, {"customerId": "customer_id"})})
    assert shown.names[0] == UndeclaredName("t", "customerId", 20_000, "customer_id")


def test_a_batch_without_such_fields_shows_none() -> None:
    assert names_to_show({}) == UndeclaredFields()

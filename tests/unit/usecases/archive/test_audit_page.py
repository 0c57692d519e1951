"""The page and the bars of an audit: the worst shows, all text is escaped, nothing outside is needed."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from millrace.cli.archive.coverage_text import print_coverage
from millrace.domain.archive.audits.bars import Shade, bar
from millrace.domain.archive.audits.findings import Audit, Breach, BreachKind, PartitionAudit
from millrace.domain.archive.proof.partition import Cause, Label, Tile
from millrace.usecases.archive.audit_page import page_of
from support.archive.audits.in_memory import Audits
from support.archive.audits.made import lost, of, of_every_label, part

SHADES = {Label.EXPIRED: Shade.EXPIRED, Label.PENDING: Shade.PENDING, Label.LOST: Shade.KNOWN}


def partition(
    begin: int, end: int, tiles: list[Tile], lost: list[Tile] | None = None, number: int = 0
) -> PartitionAudit:
    return PartitionAudit(number, begin, end, end, 7, 1, tuple(tiles), 0, tuple(lost or ()), (), None, ())


@given(
    st.integers(0, 50),
    st.integers(0, 60),
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 110), st.integers(1, 9), st.sampled_from(list(SHADES))), max_size=5),
)
def test_a_cell_shows_the_worst_of_its_offsets(
    begin: int, length: int, cells: int, given_tiles: list[tuple[int, int, Label]]
) -> None:
    tiles = [Tile(0, first, first + width, label) for first, width, label in given_tiles]
    found = bar(partition(begin, begin + length, tiles), cells)
    count = min(cells, length)
    expected = [Shade.ARCHIVED] * count
    for offset in range(length):
        cell = max(c for c in range(count) if c * length // count <= offset)
        here = [SHADES[t.label] for t in tiles if t.first <= begin + offset < t.next]
        expected[cell] = max([expected[cell], *here])
    assert list(found) == expected


def test_one_lost_offset_of_a_trillion_shows() -> None:
    lost = Tile(0, 7 * 10**11, 7 * 10**11 + 1, Label.LOST, Cause.UNREAD)
    assert bar(partition(0, 10**12, [lost], [lost]), 100).count(Shade.LOST) == 1


class Page(HTMLParser):
    """What a page has: tags with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def made(**changes: object) -> Audit:
    return replace(Audits().audit(), **changes)  # type: ignore[arg-type]


def test_the_page_needs_nothing_beside_it_and_says_the_verdict_first() -> None:
    text = page_of(made())
    page = Page(text)
    assert "http" not in text
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert "Proven: 72 records are archived, lost 0." in text
    bars = [attributes for tag, attributes in page.tags if attributes.get("role") == "img"]
    assert [attributes["aria-label"] for attributes in bars] == [
        f"Partition {number}: 36 records and 4 absent offsets" for number in range(2)
    ]


def test_what_is_wrong_stands_on_the_page_escaped_with_where_to_look() -> None:
    hostile = "<script>alert(1)</script>"
    lost = Tile(0, 3, 5, Label.LOST, Cause.UNREAD)
    audit = made(
        app=hostile,
        notes=(hostile,),
        breaches=(Breach(BreachKind.LOST, hostile), Breach(BreachKind.BROKEN, "manifest 3: it is missing")),
        counts=((BreachKind.LOST, 1), (BreachKind.BROKEN, 7)),
        partitions=(partition(0, 40, [lost], [lost]),),
    )
    text = page_of(audit)
    assert hostile not in text
    assert "Red: 1 range of lost offsets and 7 faults of the archive." in text
    assert "deleted before it was read" in text
    assert "and 6 more" in text
    assert "docs/operations/backup-audit.md" in text


def test_a_thousand_partitions_stay_small() -> None:
    parts = tuple(partition(0, 10**9, [Tile(n, n, n + 5, Label.PENDING)], number=n) for n in range(1000))
    assert len(page_of(made(partitions=parts))) < 2_000_000


def printed(audit: Audit, encoding: str = "utf-8") -> str:
    class File(StringIO):
        @property
        def encoding(self) -> str:  # type: ignore[override]
            return encoding

    file = File()
    print_coverage(Console(file=file, width=120), [audit])
    return file.getvalue()


def test_the_terminal_shows_a_bar_a_partition_with_what_is_not_archived() -> None:
    lost = Tile(0, 3, 5, Label.LOST, Cause.UNREAD)
    waits = Tile(0, 30, 40, Label.PENDING)
    breach = Breach.of_tile(lost)
    parts = (partition(0, 40, [lost, waits], [lost]),)
    text = printed(made(partitions=parts, breaches=(breach,), counts=((BreachKind.LOST, 1),)))
    assert "███!!" in text
    assert "▒▒▒" in text
    assert "2 lost, 10 waiting" in text
    assert "partition 0 [3, 5) is lost: deleted before it was read" in text
    plain = printed(made(partitions=parts), "ascii")
    assert plain.isascii()
    assert "===!!" in plain


def test_of_many_partitions_those_with_news_are_shown() -> None:
    parts = tuple(partition(0, 9, [Tile(n, 8, 9, Label.PENDING)] if n == 700 else [], number=n) for n in range(1000))
    text = printed(made(partitions=parts))
    assert "   700 " in text
    assert "and 950 more partitions" in text


def test_what_an_audit_does_not_name_is_not_counted_as_nothing() -> None:
    text = page_of(of(part(0, Tile(0, 0, 5, Label.EXPIRED), more_tiles=500)))
    assert "lost at least 0" in text
    assert "500 more ranges" in text


def test_a_loss_that_is_known_in_part_has_a_row_for_each_part_and_rows_left_out_are_counted() -> None:
    page = Page(page_of(of(part(0, lost(100, 200), unacknowledged=[lost(150, 200)]))))
    words = [text.strip() for text in page.text if text.strip()]
    at = words.index("known of")
    assert words[at + 1 : at + 11] == [
        *("0", "150", "200", "lost: deleted before it was read", "no"),
        *("0", "100", "150", "lost: deleted before it was read", "yes"),
    ]
    many = [lost(2 * number, 2 * number + 1) for number in range(300)]
    assert "and 100 more ranges" in page_of(of(part(0, *many, unacknowledged=many)))


def test_tombstones_that_may_be_missing_and_partitions_that_nobody_saw_are_told() -> None:
    text = page_of(of_every_label())
    assert "500 offsets read so late that a tombstone may be missing" in text
    assert "Nobody could look at partition 9" in text


def test_each_label_has_a_height_of_its_own() -> None:
    shapes = {
        attributes["class"]: attributes["height"]
        for tag, attributes in Page(page_of(of_every_label())).tags
        if tag == "rect"
    }
    assert len(shapes) == len(set(shapes.values())) == len(Shade)


def test_a_thousand_bars_in_which_every_cell_differs_from_the_next_stay_small() -> None:
    width, ranges = 10**6, range(0, 240, 2)
    parts = [
        part(number, *(Tile(number, at * width, (at + 1) * width, Label.EXPIRED) for at in ranges), end=240 * width)
        for number in range(1000)
    ]
    assert len(page_of(of(*parts))) < 5_000_000
    alternating = [tag for tag, _ in Page(page_of(of(*parts[:4]))).tags if tag == "rect"]
    assert len(alternating) >= 4 * 240

"""The picture of the example's flow, as SVG: what lies where, with the numbers of a real run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 960, 340
STYLE = """\
text { font-family: -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 14px; fill: #1c2530; }
.kind { font-size: 12px; fill: #556070; } .name { font-weight: bold; }
rect { fill: #ffffff; stroke: #8a94a3; } .all { fill: #ffffff; stroke: #d0d5dd; }
.airflow { fill: #eef4fb; stroke: #3b5b8c; stroke-dasharray: 6 4; }
path { fill: none; stroke: #3b5b8c; stroke-width: 1.5; marker-end: url(#tip); }"""


@dataclass(frozen=True)
class Box:
    """A box of the picture.

    Args:
        left, top: its corner, in pixels; each box is 190 wide and 78 high.
        kind: the server or program that it stands for.
        name: its name in the pipeline.
        count: a number of the run, with its unit; may be empty.
    """

    left: int
    top: int
    kind: str
    name: str
    count: str

    def svg(self) -> Iterator[str]:
        """Yield its elements."""
        yield f'<rect x="{self.left}" y="{self.top}" width="190" height="78" rx="6"/>'
        for words, line, look in ((self.kind, 22, "kind"), (self.name, 43, "name"), (self.count, 64, "count")):
            yield f'<text class="{look}" x="{self.left + 12}" y="{self.top + line}">{escape(words)}</text>'


def flow(example: Mapping[str, object]) -> str:
    """Return the picture.

    Args:
        example: the member `example` of the document of `up --json`.
    """
    backup, bad = example["backup"], example["quarantined"]
    assert isinstance(backup, dict)
    assert isinstance(bad, list)
    topic, table = str(example["topic"]), str(example["table"])
    boxes = (
        Box(40, 116, "any producer", "your records", ""),
        Box(270, 116, f"Kafka topic, {example['partitions']} partitions", topic, f"{example['records_in']:,} records"),
        Box(500, 66, "Spark stream", topic, "your transform()"),
        Box(500, 196, "Spark backup", "shop.backup", "every record, bit for bit"),
        Box(730, 24, "PostgreSQL table", table, f"{example['rows_out']:,} rows"),
        Box(730, 110, "PostgreSQL quarantine", "millrace.quarantine", f"{len(bad)} bad records"),
        Box(730, 196, "S3 archive", topic, f"{backup['records']:,} records proven"),
    )
    arrows = (
        "M230 155 H266",
        "M460 145 C480 145 480 105 496 105",
        "M460 165 C480 165 480 235 496 235",
        "M690 95 C710 95 710 63 726 63",
        "M690 115 C710 115 710 149 726 149",
        "M690 235 H726",
    )
    operates = (
        "Airflow creates the topics, supervises both apps, audits the backup,",
        "checks the quality of the rows, and rewinds the stream on request.",
    )
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>The flow of the example pipeline</title>",
        f"<desc>{escape('; '.join(', '.join(filter(None, (box.kind, box.name, box.count))) for box in boxes))}</desc>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" style="fill: #3b5b8c; stroke: none"/></marker></defs>',
        f'<rect class="all" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}"/>',
        '<rect class="airflow" x="252" y="12" width="690" height="316" rx="8"/>',
        *(f'<text x="270" y="{296 + 19 * number}">{words}</text>' for number, words in enumerate(operates)),
        *(element for box in boxes for element in box.svg()),
        *(f'<path d="{arrow}"/>' for arrow in arrows),
        "</svg>",
    )
    return "\n".join(lines) + "\n"

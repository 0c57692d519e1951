"""Pages are executed as a reader does: in a copy of the checkout, command after command, from `up` to `down`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.prose.reading import Reader, clone

pytestmark = pytest.mark.full  # a stack with Airflow of its own, installed as on a fresh machine: several minutes

TUTORIAL = "docs/guide/tutorial.md"
ITS_END = "./millrace down"


@pytest.fixture(scope="module")
def reader(turn: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A reader whose stack runs, with what the tutorial made in it."""
    made = Reader(clone(tmp_path_factory.mktemp("copy")))
    yield made
    made.type(ITS_END)


def test_the_tutorial_does_what_it_says(reader: Reader) -> None:
    reader.do(TUTORIAL, but=ITS_END)


def test_the_guide_to_a_first_pipeline_does_what_it_says(reader: Reader) -> None:
    reader.type("./millrace up --no-example")
    reader.do("docs/guide/first-pipeline.md")


def test_the_guide_to_redrives_repairs_a_record_of_the_example(reader: Reader) -> None:
    reader.type("./millrace up")
    reader.do("docs/guide/redrive.md")

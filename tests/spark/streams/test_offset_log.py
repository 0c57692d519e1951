"""Pins the form of Spark's offset log, which the runtime reads a batch's exact ranges from."""

from __future__ import annotations

import pytest

from millrace.errors import MillraceError
from millrace.runtime.stream.batch.offset_log import read_offset_log

ENTRY = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}
{"shop.purchases":{"1":20,"0":10},"shop.refunds":{"0":3}}"""


def test_an_entry_gives_the_end_of_each_partition(tmp_path):
    (tmp_path / "0").write_text(ENTRY)
    assert read_offset_log(tmp_path / "0") == {
        ("shop.purchases", 0): 10,
        ("shop.purchases", 1): 20,
        ("shop.refunds", 0): 3,
    }


@pytest.mark.parametrize("text", [ENTRY.replace("v1", "v9", 1), ENTRY + '\n{"second":{"0":1}}', "v1\n"])
def test_another_form_is_refused_not_guessed(tmp_path, text):
    (tmp_path / "0").write_text(text)
    with pytest.raises(MillraceError, match="offset log"):
        read_offset_log(tmp_path / "0")

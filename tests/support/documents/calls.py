"""The calls whose documents are kept, and the commands that have none, each with the reason."""

from __future__ import annotations

WITH_THE_EXAMPLE = (
    "spec check",
    "spec show shop",
    "topics plan",
    "topics drift",
    "topics sizing",
    "topics headroom",
    "topics skew shop.purchases",
    "topics hold shop.purchases --for 24h --reason looking",
    "topics hold",
    "topics hold shop.purchases --end --reason looking",
    "groups list --now",
    "groups show millrace.shop.purchases --now",
    "groups lag --now",
    "groups active",
    "streams list",
    "streams show shop.purchases",
    "streams files shop.purchases",
    "streams rewind shop.purchases --to earliest --reason looking",
    "plans list",
    "plans show {plan}",
    "plans abort {plan} --reason looking",
    "plans run {plan} --reason looking",
    "streams start shop.backup --reason looking",
    "streams accept shop.backup --reason looking",
    "streams adopt shop.backup --reason looking",
    "log --subject shop",
    "sources load shop cdnow",
    "quarantine list",
    "quarantine show shop.purchases shop.purchases/0@748",
    "backup audit shop.purchases",
    "backup coverage shop.purchases",
    "backup collect shop.purchases --dry-run --reason looking",
    "backup restore shop.purchases --into {target} --partition 1 --from 5 --to 25 --partitions key --reason looking",
    "quality reconcile shop.purchases --deep",
    "quality check shop.purchases --from 1997-01-01T00:00Z --to 1998-07-01T00:00Z",
    "quality list",
    "quality show shop.purchases --check {check}",
    "quality accept shop.purchases --books --reason looking",
    "alarms list --all",
    "control upgrade",
    "status",
    "doctor",
)
"""Where the example has run, in this order: some look at what a former one made."""
WITH_SPARK = (
    "quarantine redrive shop.purchases --reason looking",
    "quality recompute shop.purchases --sample 100 --seed 1",
)
"""Each starts Spark, for a quarter of a minute."""
AT_THE_END = (
    "streams stop shop.backup --reason looking",
    "streams show shop.backup",
)
"""They end what the other calls look at."""
BESIDE = (
    "topics plan beside",
    "plans run {plan of a topic} --reason looking",
)
"""In a project of its own on the same servers: they make a topic."""
IN_A_NEW_PROJECT = (
    "spec new mine",
    "compose",
    "compose --check",
    "down",
)
"""In a project in which nothing runs: they write files of it, or would end the stack."""
UP = "up"
"""Runs the example; the text of its report is kept too."""
CALLS = (UP, *WITH_THE_EXAMPLE, *BESIDE, *WITH_SPARK, *AT_THE_END, *IN_A_NEW_PROJECT)

LEARNED = {
    "streams rewind shop.purchases --to earliest --reason looking": ("plan", "id"),
    "quality check shop.purchases --from 1997-01-01T00:00Z --to 1998-07-01T00:00Z": ("check", "checks.check"),
    "topics plan beside": ("plan of a topic", "plans.id"),
}
"""What later calls name in braces, and where a document says it: of a list in its first entry."""

WITHOUT_DOCUMENT = {
    "alarms acknowledge": "a sound stack has no alarm; see tests/unit/cli/alarms/test_commands.py",
    "alarms show": "a sound stack has no alarm; see tests/unit/cli/alarms/test_commands.py",
    "groups active": "its stream is not started; see tests/unit/usecases/activity/test_groups_active.py",
    "quality accept": "a sound stack has nothing to accept; see tests/unit/cli/quality/test_commands.py",
    "quarantine redrive": "no bad record would leave it; see tests/unit/cli/quarantine/test_redrive.py",
    "streams files": "no stream here writes a dataset; see tests/unit/cli/streams/test_files.py",
}
"""Commands with `--json` that print no document here, why, and the test that has it."""

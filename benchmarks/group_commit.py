"""The physical limit: write + fdatasync in a loop, for groups of the sizes the other benchmarks form.

Messages per second here are what a log of nothing but payload bytes could ack with that many in one group.
"""

from benchmarks.measurement import raw_fsync
from benchmarks.report import Bar, Report, Settings, fsync_row, new_report

GROUPS = {128: (1, 10, 100, 1000), 2048: (1, 16, 64, 128)}
"""Messages in one group, by message size in bytes."""


def run(settings: Settings) -> Report:
    """Measure syncs per second by group size."""
    sizes = [message * group for message, groups in GROUPS.items() for group in groups]
    results = raw_fsync(settings.directory, sizes, settings.seconds, settings.runs)
    rows = []
    for message, groups in GROUPS.items():
        for group in groups:
            runs = results[message * group]
            messages = sorted(run.rate for run in runs)[len(runs) // 2] * group
            rows.append(fsync_row(f"{group} x {message} B", runs, **{"messages/s": messages}))
    report = new_report("group_commit", settings, rows, rate_unit="syncs/s")
    bars = [
        Bar(
            requirement=f"{message} B: messages/s in groups of {groups[-1]} / one by one",
            value=report.row("write + fdatasync", f"{groups[-1]} x {message} B").details["messages/s"]
            / report.row("write + fdatasync", f"1 x {message} B").details["messages/s"],
        )
        for message, groups in GROUPS.items()
    ]
    return report.model_copy(update={"bars": bars})

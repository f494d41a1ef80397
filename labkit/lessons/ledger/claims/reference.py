"""Figures of the past, which no run here can repeat: do they stand in data/reference as the ledger's row has them?"""

from __future__ import annotations

import re
from typing import Any

from labkit.lessons.shared import reference
from labkit.study.checks import CITED, Bench, Result, Seen, judging, probe, verdict


@probe
def tables(bench: Bench) -> Seen:
    """The tables under data/reference, as dictionaries: table, row, column."""
    keys = {"scope_runs": "run", "activation_offload": "config", "issue_138773": "collective"}
    found: Seen = {}
    for name, key in keys.items():
        table = reference.load(name).set_index(key)
        found[name] = {
            str(row): {str(c): None if v is None or v != v else v for c, v in values.items()}
            for row, values in table.astype(object).where(table.notna(), None).to_dict(orient="index").items()
        }
    return found


def number(text: str) -> float | None:
    """The first number in a figure: '~160 breaks' is 160, '9,664 MB' is 9664; None where there is none.

    >>> number("~9.6 frames/s"), number("9,664 MB"), number("many")
    (9.6, 9664.0, None)
    """
    match = re.search(r"\d[\d,]*(?:\.\d+)?", text)
    return float(match[0].replace(",", "")) if match else None


def _stands(name: str, table: str, row: str, column: str, says: str) -> None:
    def judge(seen: Seen) -> Result:
        cells: list[Any] = [seen[table].get(one, {}).get(column) for one in row.split(" to ")]
        claimed = [number(part) for part in str(seen["claimed"]).split(" to ")][: len(cells)]
        found = " and ".join("nothing" if cell is None else f"{cell:g}" for cell in cells)
        return verdict(
            None not in cells and claimed == cells,
            f"{found} in data/reference/{table}.csv, {row}; not run here",
        )

    judge.__doc__ = says
    judging(tables, f"reference.{name}", CITED)(judge)


for _name, _row, _column in (
    ("run_7_to_8_fps", "Run 7 to Runs 8-9b", "frames_per_s"),
    ("run_8_fps", "Runs 8-9b", "frames_per_s"),
    ("run_8_to_12b_fps", "Runs 8-9b to Run 12b", "frames_per_s"),
    ("run_8_breaks", "Runs 8-9b", "breaks_per_forward"),
    ("run_12a_fps", "Run 12a", "frames_per_s"),
    ("run_12a_baseline_fps", "baseline of 12a", "frames_per_s"),
    ("run_12b_fps", "Run 12b", "frames_per_s"),
    ("run_13_breaks", "Runs 13-14", "graph_breaks"),
    ("run_14_breaks", "Run 14", "graph_breaks"),
    ("run_14_graphs", "Run 14", "unique_graphs_low"),
):
    _stands(_name, "scope_runs", _row, _column, f"The recorded {_column} of {_row} is the claimed one.")
for _config in ("Small", "Med", "XL"):
    for _name, _column in (
        ("step", "step_ms"),
        ("peak", "peak_alloc_mb"),
        ("saved", "memory_savings_mb"),
        ("overhead", "runtime_overhead_percent"),
    ):
        _full = f"offload_{_config.lower()}_{_name}"
        _stands(
            _full,
            "activation_offload",
            _config,
            _column,
            f"The recorded {_column} of {_config} is the claimed one.",
        )


def _percent(config: str) -> None:
    def judge(seen: Seen) -> Result:
        row = seen["activation_offload"][config]
        saved, without = row["memory_savings_mb"], row["peak_alloc_mb"] + row["memory_savings_mb"]
        share = 100 * saved / without
        said = f"{saved:g} of {without:g} MB is {share:.1f} %"
        return verdict(round(share, 1) == number(str(seen["claimed"])), f"{said}; not run here")

    judge.__doc__ = f"The claimed percentage of {config} is its savings over its peak without offloading."
    judging(tables, f"reference.offload_{config.lower()}_percent", CITED)(judge)


for _config in ("Small", "Med", "XL"):
    _percent(_config)


@judging(tables, word=CITED)
def run_13_graphs(seen: Seen) -> Result:
    """The lowest and the highest number of unique graphs of Runs 13-14 are the claimed ones."""
    row = seen["scope_runs"]["Runs 13-14"]
    low, high = (float(row[f"unique_graphs_{end}"]) for end in ("low", "high"))
    said = f"{low:g} to {high:g} in data/reference/scope_runs.csv, Runs 13-14; not run here"
    return verdict([float(n) for n in re.findall(r"\d+", str(seen["claimed"]))] == [low, high], said)


@judging(tables, word=CITED)
def issue_all_reduce_percent(seen: Seen) -> Result:
    """The issue's percentage is its functional all-reduce over its eager one."""
    row = seen["issue_138773"]["AllReduce"]
    slower = 100 * (row["functional_us"] / row["eager_us"] - 1)
    return verdict(
        round(slower) == number(str(seen["claimed"])),
        f"{row['functional_us']:g} against {row['eager_us']:g} us is {slower:.0f} % more; not run here",
    )

"""The table of docs/architectures.md: every architecture with random weights against its original library.

    python docs/architectures.py [NAME …]      run these, or those that have no row yet; minutes to an hour
    python docs/architectures.py --all         run all of them again
    python docs/architectures.py --no-onnx     the same without ONNX, which takes longest

Rows are kept in docs/results/architectures.csv.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from oracles.models.architectures import ARCHITECTURES, Row, check  # noqa: E402

ROWS = HERE / "results" / "architectures.csv"
PAGE = HERE / "architectures.md"
LARGE = ("-H-", "SO400M", "gopt", "-L-", "-384", "-S3")
"""Parts of the names of large architectures, which are run last."""
USES = ("zero_shot", "o_tpt", "default", "several_labels", "onnx")
START, END = "<!-- table -->", "<!-- end of the table -->"


def read_rows() -> dict[str, dict[str, str]]:
    """Return the stored rows by name."""
    if not ROWS.is_file():
        return {}
    with ROWS.open(encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def write_rows(rows: dict[str, dict[str, str]]) -> None:
    """Store rows in the order of the architectures."""
    with ROWS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[one.name] for one in ARCHITECTURES if one.name in rows)


def table(rows: dict[str, dict[str, str]]) -> str:
    """Return the table in Markdown, with the sentences of refusals below it."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("open-clip-torch", "transformers", "timm", "torch"))
    lines = [
        f"{len(rows)} architectures; {versions}.",
        "",
        "| architecture | library | stands for | tokens | texts | largest difference | zero-shot | O-TPT | default | "
        "several labels | ONNX |",
        "|---|---|---|--:|---|--:|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for row in rows.values():
        cells = []
        for use in USES:
            answer = row[use]
            if answer not in ("yes", ""):
                if answer not in notes:
                    notes.append(answer)
                answer = f"[{notes.index(answer) + 1}]"
            cells.append(answer or "–")
        difference = "–" if row["difference"] == "nan" else f"{float(row['difference']):.0e}"
        context = "–" if row["context"] == "0" else row["context"]
        cells = [
            f"`{row['name']}`",
            row["library"],
            row["stands_for"],
            context,
            row["texts"] or "–",
            difference,
            *cells,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, start=1))]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str]) -> None:
    """Run architectures and write the page."""
    rows = {} if "--all" in arguments else read_rows()
    names = [name for name in arguments if not name.startswith("--")]
    with_onnx = "--no-onnx" not in arguments
    for one in sorted(ARCHITECTURES, key=lambda one: any(size in one.name for size in LARGE)):
        finished = one.name in rows and (
            rows[one.name]["onnx"] or not with_onnx or rows[one.name]["zero_shot"] != "yes"
        )
        if one.name not in names if names else finished:
            continue
        start = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row = check(one, Path(folder) if with_onnx else None)
        except Exception:  # the other rows are still of interest
            traceback.print_exc()
            print(f"{one.name}: failed", flush=True)
            continue
        rows[one.name] = {name: str(value) for name, value in asdict(row).items()}
        print(f"{one.name}: {row.difference:.1e}, {time.monotonic() - start:.0f} s", flush=True)
        write_rows(rows)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n\n{table(read_rows())}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

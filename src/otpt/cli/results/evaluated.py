"""What an evaluation found, on the terminal or as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from otpt.cli.notes import say
from otpt.cli.terminal import terminal_width

if TYPE_CHECKING:
    from otpt.evaluation import Result


def print_result(result: Result, *, as_json: bool) -> None:
    """The metrics, and what was out of the ordinary."""
    from otpt.evaluation import duration
    from otpt.report import evaluation_table
    from otpt.report.formats import text_table
    from otpt.report.results import Results
    from otpt.report.tables import set_table

    scoring = result.run.config["scoring"]
    results = Results([result.run], n_bins=scoring["bins"], side=scoring["side"])
    if as_json:
        shown = {
            "run": str(result.run.folder),
            "seconds": result.seconds,
            "unreadable": result.unreadable,
            "scores": [score.as_dict() for score in result.scores],
            "averages": [average.as_dict() for average in result.averages],
        }
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        print(evaluation_table(results).to_text(terminal_width() or 80))
        if not (sets := set_table(results)).empty:
            print(text_table(sets, 2, terminal_width()), end="\n\n")
        print(f"Rows and metrics are in {str(result.run.folder)!r}; this took {duration(result.seconds)}.")
    tell_incomplete(result)


def tell_incomplete(result: Result) -> None:
    """Images that could not be read, and what other commands left undone in the same run."""
    if result.unreadable:
        (dataset, name), reason = next(iter(result.unreadable_images.items()))
        say(
            f"could not read {result.unreadable} of the images, the first of them {name!r} of {dataset}: "
            f"{reason.rstrip('.')}. All reasons are in the column 'error' of the rows. To predict them once they can "
            "be read, give the same command with --retry-unreadable."
        )
    done, total = result.run.progress()
    if done < total:
        say(
            f"all that this command asked for is there, but {total - done} of {total} images are missing that "
            "other commands asked of the same run; repeat those to continue."
        )

"""Calibration from the rows of a run, without new predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from otpt.arguments import checked
from otpt.calibration import Calibration, fit_calibration, fit_label_calibration
from otpt.calibration.conformal import FREE_RANKS, PENALTY
from otpt.errors import OtptError, unknown
from otpt.files import Json
from otpt.methods import Protocol, column_facts, numbers_on
from otpt.runs import ColumnConfig, DatasetConfig, Run
from otpt.runs.shards import LabelRows


@checked
def calibrate_run(
    run: Run,
    *,
    dataset: str | None = None,
    method: str | None = None,
    prompt: str | None = None,
    seed: int | None = None,
    maps: Sequence[str] | None = None,
    penalty: float = PENALTY,
    free_ranks: int = FREE_RANKS,
) -> Calibration:
    """Fit a calibration of one method on one data set of a run with all probabilities (``save_probabilities``).

    Args:
        dataset, method, prompt: optional if the run has only one.
        seed: seed of the views; the first by default.
        maps, penalty, free_ranks: see :func:`otpt.calibration.fit_calibration`.
    """
    dataset = _only("data set", dataset, [config.name for config in run.datasets])
    columns = run.columns(dataset)
    method = _only("method", method, list(dict.fromkeys(name for _, name in columns)))
    prompt = _only("prompt", prompt, [words for words, name in columns if name == method])
    column = run.column(dataset, (prompt, method))
    if "calibration" in column.facts:
        raise OtptError(f"The rows of {method!r} are already calibrated; choose the uncalibrated method.")
    if seed is None:
        seed = next(iter(column.images))
    if seed not in column.images:
        seeds = ", ".join(map(str, column.images))
        raise OtptError(f"The run has no seed {seed} of {method!r}; available: {seeds}.")
    rows = (run.label_rows if run.multi_label else run.rows)(dataset, seed, (prompt, method))
    done = 0 if rows is None else len(rows) + rows.unreadable
    if rows is None or done < column.images[seed]:
        raise OtptError(
            f"The run {str(run.folder)!r} is not complete: {done} of {column.images[seed]} images are done; repeat "
            "its command to continue."
        )
    facts = _facts(run, run.dataset(dataset), column)
    origin = {"dataset": dataset, "fingerprint": run.dataset(dataset).fingerprint, "seed": seed}
    n_bins = run.config.scoring.n_bins
    if isinstance(rows, LabelRows):
        return fit_label_calibration(rows.probabilities, rows.present, facts, origin=origin, n_bins=n_bins)
    if rows.all_probabilities is None:
        raise OtptError(
            f"The run {str(run.folder)!r} has not stored all probabilities, which a calibration needs; evaluate again "
            "with --save-probabilities into another folder."
        )
    return fit_calibration(
        rows.all_probabilities,
        rows.labels,
        facts,
        origin=origin,
        maps=maps,
        penalty=penalty,
        free_ranks=free_ranks,
        n_bins=n_bins,
    )


def _facts(run: Run, dataset: DatasetConfig, column: ColumnConfig) -> Mapping[str, Json]:
    numbers = numbers_on(run.config.methods[column.method], dataset.family, dataset.name)
    return column_facts(
        {"name": run.config.backbone.name, "fingerprint": run.config.backbone.fingerprint},
        {"name": column.method, "numbers": numbers},
        dataset.classes,
        column.prompt,
        column.views,
        {name: run.config.numbers[name] for name in Protocol.recorded_fields()},
    )


def _only(kind: str, wanted: str | None, names: Sequence[str]) -> str:
    """Return the wanted name, or the only one there is."""
    if wanted is not None and wanted not in names:
        raise unknown(f"{kind} of the run", wanted, names)
    if wanted is None and len(names) > 1:
        raise OtptError(f"The run has several {kind}s ({', '.join(names)}); name one of them.")
    return wanted if wanted is not None else names[0]

"""The tutorial notebook runs from top to bottom in a kernel, and shows tables and figures."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tutorial.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [set(output.get("data", {})) for cell in code for output in cell.outputs]
    assert sum("text/html" in each for each in shown) >= 5
    assert sum("image/png" in each for each in shown) >= 3
    (result,) = (cell.outputs[-1].data["text/html"] for cell in code if cell.source.rstrip().endswith("result"))
    assert all(name in result for name in ("zero-shot", "o-tpt", "confident-half", "debiased ECE %"))

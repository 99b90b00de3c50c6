"""The folder that ``otpt reproduce --go`` leaves: tables, figures and one index page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from otpt.files import write_atomically
from otpt_papers.jobs import Exhibit
from otpt_papers.reproduce import Plan

INDEX = "index.html"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "pre{overflow-x:auto;background:#f6f6f4;padding:.7rem;font-size:12px;line-height:1.35}"
    "img{max-width:100%}h2{margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}"
    ".missing{border-left:4px solid #b33;padding-left:.8rem}summary{cursor:pointer}"
)


def write_index(plan: Plan, folder: Path, problems: Mapping[str, Sequence[str]]) -> Path:
    """Write the index page of a plan's files and return its path.

    Args:
        plan: the plan.
        folder: folder of the tables and figures.
        problems: what is missing, by exhibit.
    """
    done = len({exhibit.name for exhibit in plan.exhibits if _files(exhibit)})
    names = list(dict.fromkeys(exhibit.name for exhibit in plan.exhibits))
    parts = [
        f"<!doctype html><meta charset=utf-8><title>Reproduction: {escape(plan.study)}</title><style>{_STYLE}</style>",
        f"<h1>Reproduction: {escape(plan.study)}</h1>",
        f"<p>{done} of {len(names)} tables and figures have files; {len(problems)} are incomplete.</p>",
    ]
    if problems:
        parts.append("<h2>Missing</h2><ul class=missing>")
        for name, reasons in problems.items():
            parts += [f"<li><b>{escape(name)}</b>: {escape(reason)}</li>" for reason in reasons]
        parts.append("</ul>")
    for exhibit in plan.exhibits:
        parts += _section(exhibit, folder, problems.get(exhibit.name, ()))
    path = folder / INDEX
    write_atomically(path, "\n".join(parts).encode())
    return path


def _files(exhibit: Exhibit) -> list[Path]:
    paths = [Path(f"{exhibit.stem}{suffix}") for suffix in exhibit.suffixes]
    return [path for path in paths if path.is_file()]


def _section(exhibit: Exhibit, folder: Path, reasons: Sequence[str]) -> list[str]:
    """Return the HTML of one table or figure."""
    backbone = f" ({exhibit.backbone})" if exhibit.kind == "table" else ""
    parts = [f"<h2>{escape(exhibit.name)}{escape(backbone)}: {escape(exhibit.title)}</h2>"]
    files = _files(exhibit)
    links = [f'<a href="{escape(path.relative_to(folder).as_posix())}">{path.name}</a>' for path in files]
    parts.append(f"<p>{' · '.join(links) or 'No file yet.'}</p>")
    if exhibit.kind == "table":
        texts = [path.read_text(encoding="utf-8") for path in files if path.suffix == ".md"]
        parts += [f"<pre>{escape(text)}</pre>" for text in texts]
    else:
        images = [path for path in files if path.suffix == ".png"]
        parts += [f'<img src="{escape(path.relative_to(folder).as_posix())}" alt="{exhibit.name}">' for path in images]
        parts += [f"<p>{escape(remark)}</p>" for remark in exhibit.remarks]
    parts += [f"<p class=missing>{escape(reason)}</p>" for reason in reasons]
    lines = [job.line for job in exhibit.jobs]
    lines += [shlex.join(("otpt", *words)) for words in exhibit.commands()]
    parts.append(f"<details><summary>Commands</summary><pre>{escape(chr(10).join(lines))}</pre></details>")
    return parts

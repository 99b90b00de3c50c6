"""Look things up: ``otpt datasets``, ``methods``, ``models``, ``cache``, ``doctor`` and ``completion``."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import torch
from cyclopts import App

from otpt._version import __version__
from otpt.backbones import ModelEntry, available_devices, find_model, list_models
from otpt.backbones.known_models import ALL_TOKENS, SHARED_PREFIX, WITHOUT_PADDING
from otpt.cli import options as o
from otpt.cli.app import commands, make_app
from otpt.cli.environment import EXTRAS, PACKAGES, missing_packages, processor_name, version_of
from otpt.cli.terminal import note, print_json, print_table
from otpt.data import (
    DatasetEntry,
    DatasetNotFound,
    Found,
    check_dataset,
    download_dataset,
    find_entry,
    find_records,
    list_datasets,
    load_dataset,
)
from otpt.data.registered import SPLIT_FILES
from otpt.errors import OtptError, unknown
from otpt.features import FeatureCache
from otpt.files import Json
from otpt.methods import Method, field_methods, known_parts, load_methods, load_plugin, plain, published_methods
from otpt.registry import Part, Weight
from otpt.threads import available_threads

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
    backbone: Annotated[
        str | None, o.option("recommend methods for the text tower of this model", metavar="NAME")
    ] = None,
    json: o.Json = False,
    plugin: o.Plugins = (),
) -> int:
    """List the parts of method names. A name is parts joined by '+', at most one per axis; those that tune the context
    may be joined with each other: coop+o-tpt, tpt+sals, o-tpt+c-tpt.

    otpt methods
    otpt methods --backbone ViT-B-16-SigLIP2
    otpt methods my-methods.toml --json
    """
    for path in plugin:
        load_plugin(path)
    if backbone is not None:
        if file is not None:
            raise OtptError(f"--backbone was given with the file {file!r}; leave one of them out.")
        return _recommend(find_model(backbone), json)
    if file is not None:
        in_file = load_methods(file)
        if json:
            print_json({name: _method_fields(method) for name, method in in_file.items()})
        else:
            _print_parts(in_file, "method")
        return 0
    papers = published_methods()
    field = field_methods()
    if json:
        print_json({name: _method_fields(method) for name, method in {**papers, **field}.items()})
        return 0
    parts = known_parts().values()
    for axis, title in _AXES.items():
        print(title)
        _print_parts({part.name: part for part in parts if part.axis == axis}, "part")
        print()
    print(f"The paper's methods: {', '.join(papers)}")
    print(f"Other published methods: {', '.join(field)}")
    return 0


def _recommend(entry: ModelEntry, json: bool) -> int:
    """Print the published methods in two groups: those that compute the texts once, and those that tune them."""
    known = {**published_methods(), **field_methods()}
    per_image = ("cocoop", "maple")  # their texts depend on the image, or are tuned by a network of their own
    tuning = [name for name, method in known.items() if method.needs_context or method.init in per_image]
    once = [name for name in known if name not in tuning]
    cheap = entry.texts == SHARED_PREFIX
    recommended = [*tuning, *once] if cheap else once
    if json:
        print_json({"backbone": entry.name, "texts": entry.texts, "recommended": recommended, "tune_texts": tuning})
        return 0
    print(f"{entry.name}, {entry.texts}: {_TEXTS[entry.texts]}")
    print(f"\nCompute the texts once{'' if cheap else ' (recommended)'}: {', '.join(once)}")
    print(f"\nTune the texts of each image{' (affordable)' if cheap else ''}: {', '.join(tuning)}")
    return 0


def _method_fields(method: Method) -> dict[str, Json]:
    return {field.name: plain(getattr(method, field.name)) for field in fields(method) if field.name != "name"}


def _print_parts(parts: Mapping[str, Method] | Mapping[str, Part], title: str) -> None:
    rows = []
    for name, part in parts.items():
        caution = f" Caution: {part.caution}" if part.caution else ""
        rows.append((name, _weights(part.objectives), f"{part.summary}{caution}"))
    if any(weights for _, weights, _ in rows):
        print_table((title, "λ (fine-grained / shift)", "what it does"), rows, names=3, width=120)
    else:
        print_table((title, "what it does"), [(name, text) for name, _, text in rows], names=2, width=120)


def _weights(objectives: Mapping[str, Weight]) -> str:
    parts = []
    for name, weight in objectives.items():
        if isinstance(weight, Mapping):
            parts.append(f"{name} {weight['fine-grained']:g} / {weight['shift']:g}")
        elif weight != 1:
            parts.append(f"{name} {weight:g}")
    return ", ".join(parts)


def models(
    name: Annotated[str | None, o.option("explain one: ViT-B-16-SigLIP2, metaclip_2, pocket …", metavar="NAME")] = None,
    /,
    *,
    json: o.Json = False,
) -> int:
    """List the values of --backbone: forms of names, types of models of transformers, architectures of open_clip.

    otpt models
    otpt models ViT-B-16-SigLIP2
    """
    if name is not None:
        return _explain(find_model(name), json)
    entries = list_models()
    if json:
        print_json([entry._asdict() for entry in entries])
        return 0
    rows = [(entry.name, str(entry.context_length or ""), entry.texts, entry.description) for entry in entries]
    print_table(("--backbone", "tokens", "texts", "what it is"), rows, names=-1, width=140)
    return 0


_TEXTS = {
    SHARED_PREFIX: "the beginning of a prompt is computed once for all classes: methods that tune it are fast",
    WITHOUT_PADDING: "tokens up to the longest text, for every class: tuning prompts costs a few times as much",
    ALL_TOKENS: (
        "the tower reads its padding, so all tokens of every class are computed: methods that tune prompts cost about "
        "15 times as much as with a causal tower; prefer those that do not (otpt methods --backbone)"
    ),
}


def _explain(entry: ModelEntry, json: bool) -> int:
    if json:
        print_json(entry._asdict())
        return 0
    print(f"{entry.name}: {entry.description}")
    facts = {
        "context length": f"{entry.context_length} tokens",
        "tokenizer": entry.tokenizer,
        "texts": f"{entry.texts}: {_TEXTS[entry.texts]}",
        "image tower": entry.images,
        "default precision": entry.precision,
    }
    for title, value in facts.items():
        print(f"  {title}: {value}")
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
    store = FeatureCache(cache)
    info = store.info() if action == "info" else store.clear()
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
    app = App(name="otpt")
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
    entries = [_DatasetState.of(entry, data) for entry in list_datasets()]
    if json:
        print_json([entry.to_json() for entry in entries])
        return 0
    rows = []
    for state in entries:
        counts = ["?" if count is None else str(count) for count in (state.entry.classes, state.entry.test_images)]
        text = state.entry.title if data is None else state.text(data)
        rows.append((state.entry.name, *counts, state.entry.family, text))
    print_table(("data set", "classes", "images", "family", "what it is" if data is None else "here"), rows, names=-2)
    for state in entries:
        if state.missing is not None:
            print(f"\n{state.missing}", end="")
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
        loaded = load_dataset(dataset, root=data, classes=o.read_classes(classes))
    report = check_dataset(loaded, find_entry(dataset), sample=sample)
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
    entry = find_entry(dataset)
    if entry is None:
        raise unknown("data set", dataset, [known_entry.name for known_entry in list_datasets()])
    folder = download_dataset(entry, data)
    print(f"{entry.name}: the images are in {folder}")
    try:
        find_records(entry, data)
    except OtptError as error:
        note(str(error))
        if entry.split_file:
            note(f"{entry.split_file} is not torchvision's: {SPLIT_FILES}.")
    return 0


@dataclass(frozen=True)
class _DatasetState:
    """A registered data set, and what of it is in a folder.

    Attributes:
        entry: the data set.
        state: "found", or what is wrong; None if no folder was given.
        missing: message about missing files, or None.
        found: the images, or None.
    """

    entry: DatasetEntry
    state: str | None = None
    missing: str | None = None
    found: Found | None = None

    @classmethod
    def of(cls, entry: DatasetEntry, root: Path | None) -> _DatasetState:
        """Look for a data set under a folder, if there is one."""
        if root is None:
            return cls(entry)
        if not entry.layouts:
            return cls(entry, "drawn on the spot" if entry.classes is not None else "not installed")
        try:
            return cls(entry, "found", found=find_records(entry, root))
        except OtptError as error:
            return cls(entry, "not found" if isinstance(error, DatasetNotFound) else "incomplete", str(error))

    def to_json(self) -> dict[str, Json]:
        """Return plain data."""
        names = ("name", "title", "classes", "test_images", "family", "augmix", "prompt")
        values: dict[str, Json] = {name: getattr(self.entry, name) for name in names}
        if self.state is not None:
            values["state"] = self.state
        if self.missing is not None:
            values["missing"] = self.missing
        if self.found is not None:
            values["folder"] = str(self.found.folder)
            values["layout"] = self.found.layout.style
            values["images"] = len(self.found.records)
            values["missing_share"] = self.found.missing_share()
        return values

    def text(self, root: Path) -> str:
        """Return where it is under the folder, and what is unusual."""
        if self.found is None:
            return str(self.state)
        folder = Path(self.found.folder)
        root = root.expanduser()
        folder = folder.relative_to(root) if folder.is_relative_to(root) else folder
        text = f"{folder.as_posix()} ({self.found.layout.style})"
        if len(self.found.records) != self.entry.test_images:
            text += f", but {len(self.found.records)} images"
        share = self.found.missing_share()
        if share:
            text += f", about {max(1, round(100 * share))} % of the images missing"
        return text


Facts = Mapping[str, Json]


def doctor(*, cache: o.Cache = None, json: o.Json = False) -> int:
    """Show versions, processor, devices, threads, the feature cache and optional packages, and which features need
    missing ones. Nothing is downloaded or changed.

    otpt doctor
    """
    versions = {name: version_of(name) for name in PACKAGES}
    topics: dict[str, Facts] = {
        "versions": {"otpt": __version__, "python": platform.python_version(), **versions},
        "processor": _try(_processor),
        "devices": _try(_devices),
        "cache": _try(lambda: _cache(cache)),
        "extras": {extra: {name: version_of(name) for name in packages} for extra, (packages, _) in EXTRAS.items()},
    }
    advice = [f"{name} is missing; reinstall with 'pip install otpt'." for name in PACKAGES if versions[name] is None]
    for name, (_, use) in EXTRAS.items():
        missing = missing_packages(name)
        if missing:
            advice.append(f"For {use}, {', '.join(missing)} is missing: pip install 'otpt[{name}]'.")
    advice += [f"{topic}: {facts['problem']}." for topic, facts in topics.items() if "problem" in facts]
    if json:
        print_json({**topics, "advice": advice})
        return 0
    rows = []
    for topic, facts in topics.items():
        rows += [(f"{topic}: {name}", _text(value)) for name, value in facts.items()]
    print_table(("", ""), rows, names=2)
    print("", *(advice or ["Nothing is missing."]), sep="\n")
    return 0


def _try(look: Callable[[], Facts]) -> Facts:
    try:
        return look()
    except Exception as error:
        return {"problem": " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")}


def _processor() -> Facts:
    limits = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ}
    return {"name": processor_name(), "cores": os.cpu_count(), "threads": available_threads(), **limits}


def _devices() -> Facts:
    names = {f"cuda:{i}": f" ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())}
    return {
        "available": [f"{device}{names.get(device, '')}" for device in available_devices()],
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "cuda of torch": torch.version.cuda,
    }


def _cache(folder: Path | None) -> Facts:
    info = FeatureCache(folder).info()
    return {"folder": str(info.folder), "images": info.entries, "bytes": info.bytes}


def _text(value: Json) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item or 'missing'}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "missing" if value is None else str(value)

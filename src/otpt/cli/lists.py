"""Look things up: ``otpt methods``, ``models``, ``cache``, ``doctor`` and ``completion``."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
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
from otpt.cli.terminal import print_json, print_table
from otpt.errors import OtptError
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

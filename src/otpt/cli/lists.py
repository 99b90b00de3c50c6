"""``otpt methods``, ``models``, ``cache`` and ``completion``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

import otpt
from otpt.cli import options as o
from otpt.cli.terminal import print_json, print_table

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


def _print_parts(found: Mapping[str, otpt.Method | otpt.methods.Part], title: str) -> None:
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
    action: Annotated[Literal["info", "clear"], o.option("show what it holds, or empty it")],
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

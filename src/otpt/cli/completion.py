"""``otpt completion bash``: completion of commands and options in a shell."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Literal

from otpt.cli import options as o


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], o.option("the shell that completes")],
    /,
) -> int:
    """Print a completion script: eval "$(otpt completion bash)" in ~/.bashrc, otpt completion zsh in a file _otpt of
    $fpath, otpt completion fish > ~/.config/fish/completions/otpt.fish."""
    from cyclopts import App

    from otpt.cli.app import DEFAULT_PARAMETER, all_commands

    commands = {name: own for group in all_commands().values() for name, own in group.items()}
    app = App(name="otpt", default_parameter=DEFAULT_PARAMETER)
    for first in dict.fromkeys(name.split()[0] for name in commands):
        below = {name.split()[1]: own for name, own in commands.items() if name.startswith(f"{first} ")}
        if not below:
            app.command(commands[first][0], name=first, help=commands[first][1])
            continue
        parent = App(name=first, default_parameter=DEFAULT_PARAMETER)
        if first in commands:
            module, _, function = commands[first][0].partition(":")
            parent.default(getattr(import_module(module), function))
        for name, (target, summary) in below.items():
            parent.command(target, name=name, help=summary)
        app.command(parent)
    print(app.generate_completion(shell=shell))
    return 0

"""``otpt plan``: predicted time and memory of methods on data sets; nothing is run."""

from __future__ import annotations

from typing import Annotated

from otpt.cli import options as o
from otpt.cli.terminal import print_table


def plan(
    *datasets: Annotated[str, o.option("registered data sets", metavar="DATASET")],
    methods: Annotated[tuple[str, ...], o.option("methods of one run", "--methods", "--method", metavar="NAME")] = (
        "o-tpt",
    ),
    backbone: Annotated[str, o.option("an open_clip name or pocket")] = o.DEFAULT_BACKBONE,
    views: Annotated[int, o.option("views per image")] = 64,
    device: Annotated[str, o.option("a6000, a100, h100, l4, t4, rtx-4090, cpu …", metavar="NAME")] = "cpu",
    cores: Annotated[int, o.option("processor cores")] = 8,
) -> int:
    """Predict operations, hours and memory of methods on data sets, from the shapes of the model and the class names
    alone."""
    from otpt.costs import find_device, plan_dataset, read_architecture, texts_of
    from otpt.data import load_dataset
    from otpt.evaluation import duration
    from otpt.methods import get_methods

    model, machine = read_architecture(backbone), find_device(device, cores=cores)
    rows = []
    for name in datasets:
        data = load_dataset(name)
        found = plan_dataset(
            model,
            texts_of(tuple(data.class_names)),
            get_methods(methods),
            machine,
            dataset=name,
            images=len(data),
            views=views,
            augmix=data.augmix,
            family=data.family,
        )
        rows.append((name, str(len(data)), f"{found.seconds:.3g}", duration(3600 * found.hours)))
    print_table(("data set", "images", "s/image", "time"), rows)
    return 0

"""The images of a data set, to be predicted with the trigger."""

from __future__ import annotations

from otpt.data.dataset import Dataset


class BackdoorDataset(Dataset):
    """All images of a data set, to be predicted with the trigger: ``covid:backdoor`` of ``covid``."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(
            f"{dataset.name}:backdoor",
            dataset.class_names,
            dataset.ids,
            dataset.labels,
            dataset.source,
            family=dataset.family,
            augmix=dataset.augmix,
            prompt=dataset.prompt,
            allow_duplicates=dataset.allow_duplicates,
            origin=dataset.origin,
        )

    @property
    def backdoor(self) -> bool:
        """See :class:`Dataset`."""
        return True

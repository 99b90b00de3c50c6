"""The images of a data set, to be predicted with the trigger."""

from __future__ import annotations

from otpt.data.dataset import Dataset


class BackdoorDataset(Dataset):
    """All images of a data set, to be predicted with the trigger: ``covid:backdoor`` of ``covid``."""

    backdoor = True

    def __init__(self, dataset: Dataset) -> None:
        # in_order for its copy without the fingerprint, which is kept once computed and holds the name
        vars(self).update(vars(dataset.in_order(range(len(dataset)))))
        self.name = f"{dataset.name}:backdoor"

"""The paper's data sets: where their files are, which images belong to a split, whether all are there."""

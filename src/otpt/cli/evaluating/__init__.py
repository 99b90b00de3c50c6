"""Commands that run or plan evaluations and trainings."""

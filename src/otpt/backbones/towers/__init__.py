"""The towers of a model in the form that the rest of the package computes with."""

"""The paper's offline figures, rebuilt for drafters of one target from stored evaluations."""

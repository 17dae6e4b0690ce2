"""Stubs of version 1, generated from `proto/` by `make proto` and never edited."""

"""Drafters (DFlash backbone, heads), their checkpoint format, and where targets come from."""

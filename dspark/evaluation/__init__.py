"""Measures speed, losslessness, acceptance and calibration. Never prints, never serves."""

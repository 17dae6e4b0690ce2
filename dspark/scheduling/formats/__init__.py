"""Measured costs and calibrations as other engines of DSpark read them. Values in, JSON documents out."""

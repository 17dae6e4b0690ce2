"""Engines that run models: pages, ragged batches, attention kernels, target engine and draft engine."""

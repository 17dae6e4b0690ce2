"""Engines that run models: pages, ragged batches, attention kernels, the target engine and the draft engine."""

"""dspark: lossless speculative decoding after the DSpark paper (arXiv 2607.05147)."""

__version__ = "0.1.0"

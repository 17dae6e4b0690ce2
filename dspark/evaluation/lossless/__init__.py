"""Shows that decoding is lossless: exactly and by sampling on tiny models, by re-scoring on real ones."""

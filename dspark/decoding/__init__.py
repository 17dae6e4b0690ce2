"""What a round decides about tokens: randomness, distributions, acceptance. No network, no models."""

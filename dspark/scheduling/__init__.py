"""How many drafts are worth verifying: survival, capacity, allocation, calibration. Never torch."""

"""How many drafts are worth verifying: survival, capacity, allocation, calibration. Numpy only, never torch."""

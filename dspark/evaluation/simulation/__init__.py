"""The round loop over simulated engines in virtual time: policies studied without a model. Never torch."""

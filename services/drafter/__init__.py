"""The drafter as a service: proposes blocks, takes target features from the verifier."""

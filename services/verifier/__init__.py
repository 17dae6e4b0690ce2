"""The verifier as a service: runs the target, sends features of committed tokens to the drafter."""

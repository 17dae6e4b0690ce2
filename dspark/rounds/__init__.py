"""The round: draft a block, schedule its prefix, verify it, commit what was accepted. Torch-free."""

"""The endpoints, by what they serve."""

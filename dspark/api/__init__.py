"""The wire of dspark as Python."""

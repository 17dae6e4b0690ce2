"""The JSON that answers requests: chunks and whole responses of chat and text completions."""

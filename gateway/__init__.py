"""The HTTP edge: an OpenAI-compatible API over the scheduler. Knows text and HTTP, never tensors."""

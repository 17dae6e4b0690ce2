"""Load tests over HTTP and the verdict on an SLA. Knows only the OpenAI surface, nothing of dspark."""

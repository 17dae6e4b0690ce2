"""From a request to its choices: planning, running, assembling tokens into text, statistics."""

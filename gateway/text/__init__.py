"""Text in and out of tokens: tokenizer, chat template, incremental decoding, stop strings."""

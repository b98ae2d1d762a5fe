"""GPT pre-training on memory-mapped token files, as a plugin of recipe."""

"""A network learns to count: the example of the how-to guide on plugins."""

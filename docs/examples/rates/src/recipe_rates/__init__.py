"""``recipe rates``: the learning rates of a recipe, before it runs."""

"""``recipe convert``: one checkpoint as another, checked before it appears."""

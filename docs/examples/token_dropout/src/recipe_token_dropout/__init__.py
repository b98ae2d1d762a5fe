"""Two data wrappers: token dropout, and a filter of samples that repeat one token."""

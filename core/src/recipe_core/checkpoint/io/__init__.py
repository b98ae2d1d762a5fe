"""Files that checkpoint formats consist of, read without trust and written tensor by tensor."""

"""What PyTorch/XLA needs of its own: how ranks meet, and how tensors are laid out over devices."""

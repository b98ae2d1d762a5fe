"""Operations that several models share, where PyTorch's own are slow on a CPU or hold too much."""

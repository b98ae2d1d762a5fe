"""Does a checkpoint fit a run? Names and shapes, settings that change no shape, and where its tensors come from."""

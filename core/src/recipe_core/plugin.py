"""What the core itself contributes, through the same hooks as any plugin."""

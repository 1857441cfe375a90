"""Topics that come and go: made, loaded, unloaded, deleted, partitioned, and watched by name."""

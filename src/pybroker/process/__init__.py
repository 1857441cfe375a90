"""Protection of the broker process: garbage collection policy, event loop watchdog, and file descriptors."""

"""Protection of the process: garbage collection policy, event loop watchdog, and file descriptors."""

"""Who owns a hash of a Key_Shared subscription: three ways to share the hash space. Start with `hash_selector.py`."""

"""Parts of the Key_Shared dispatchers. Start with `../key_shared_dispatcher.py`."""

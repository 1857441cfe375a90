"""Subscriptions: from the cursor through the dispatcher to consumers, and acknowledgements on their way back."""

"""`pybroker metadata export|import|check`: move documents between metadata stores. Start with `portable_documents`."""

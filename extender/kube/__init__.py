"""The only folder that talks to the Kubernetes API server and the only one that imports its client.

What belongs here turns requests into records and intents into requests; it decides nothing. Everything runs on the
caller's event loop: no thread decodes JSON beside it.
"""

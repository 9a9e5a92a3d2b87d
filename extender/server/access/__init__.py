"""Who may ask: several listeners in one process, TLS with client certificates, tokens that the API server reviews."""

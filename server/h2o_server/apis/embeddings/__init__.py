"""/v1/embeddings."""

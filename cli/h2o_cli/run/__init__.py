"""h2o-run: a prompt or a conversation, on the terminal."""

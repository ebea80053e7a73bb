"""h2o-run: a prompt or a conversation in the terminal."""

"""/v1/messages, Anthropic's API."""

"""What can be set: a prefill's configuration, qualities, how a bundle is loaded, and which parts go together."""

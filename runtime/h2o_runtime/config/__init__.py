"""Configuration: how a bundle is loaded, and which parts are compatible."""

"""Score rules of chunked sparse prefill, one per file."""

"""Score rules of chunked sparse prefill, one a file."""

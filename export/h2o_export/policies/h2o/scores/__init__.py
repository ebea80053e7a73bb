"""Score rules of chunked sparse prefill for exporter and comparison, one per file."""

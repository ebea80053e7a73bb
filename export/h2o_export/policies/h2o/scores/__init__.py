"""Score rules of chunked sparse prefill as exporter and comparison know them, one a file."""

"""What is measured: one small module for each contestant, run inside a worker process."""

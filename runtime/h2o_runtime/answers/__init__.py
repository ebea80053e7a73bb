"""What an answer is: its request, sampling, grammar and events."""

"""Who runs when: the queue, slots, the thread that runs the model, and its jobs."""

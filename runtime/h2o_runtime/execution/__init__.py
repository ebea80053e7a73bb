"""One pass of tokens through the layers, direct or recorded, and its memory."""

"""One pass of tokens through the layers, as it is or recorded, and the memory that it takes."""

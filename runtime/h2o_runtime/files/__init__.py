"""Files that users name: inputs are read, outputs replaced as a whole, and names stay in their folder."""

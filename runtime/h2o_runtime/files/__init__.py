"""Files named by users: inputs are read, outputs are replaced as a whole, and names stay inside their
folder.
"""

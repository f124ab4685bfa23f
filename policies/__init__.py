"""Pure scheduling rules: plain data in, plain data out, standard library only."""

"""One file: plain, stub, and the steps between."""

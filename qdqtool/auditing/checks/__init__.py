"""One file per check, its docstring is what a user reads, its plug `PLUGIN` a `Check`."""

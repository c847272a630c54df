"""The registry of commands: one file each, `PLUGIN` is the function that typer runs."""

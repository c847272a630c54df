"""The registry of commands: one file per command. `PLUGIN` is the function or group that typer runs."""

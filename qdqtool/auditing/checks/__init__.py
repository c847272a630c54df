"""One file per check. Its docstring is the page that users read; its `PLUGIN` is a `Check`."""

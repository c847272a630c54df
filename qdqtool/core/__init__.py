"""The values that all packages share, frozen, and the Protocols that backends fulfil."""

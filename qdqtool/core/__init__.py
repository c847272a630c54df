"""The nouns of the house, frozen, and the Protocols that backends fulfil."""

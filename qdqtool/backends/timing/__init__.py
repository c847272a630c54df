"""How long inference takes: rounds of several candidates in turn, so that drift hits all of them alike."""

"""One file per layer-information form: each turns the text of that form into layers."""

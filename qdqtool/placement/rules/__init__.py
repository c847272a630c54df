"""The shelf of placement rules: one file, one rule, `PLUGIN(view, options) -> Iterator[Opinion | Tie | Bond]`.

A rule looks at the whole graph and states what it wishes, as data:

- `Opinion`: this slot should (REQUEST) or must not (VETO) be quantized, and why;
- `Bond`: these slots are quantized together or not at all;
- `Tie`: these tensors share one scale, as long as the first of them ends up quantized (a scale that nothing
  quantized needs is not forced on anyone).

Rules never see each other's statements, so their order cannot matter. The docstring is the rule's manual: what it
wants, drawn before and after, and the evidence.
"""

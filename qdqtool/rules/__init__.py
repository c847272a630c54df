"""One file per fact about TensorRT, with one rule or several.

The file's docstring documents `PLUGIN = Rule(...)`. For `PLUGIN = {"name": Rule(...), ...}`, each rule is documented
by the part of the docstring under the heading `# name`. Rules of one file share their matching functions.

What `place` may state, as data:

- `Opinion`: this slot should (REQUEST) or must not (VETO) be quantized, and why;
- `Bond`: these slots are quantized together or not at all;
- `Tie`: these tensors share one scale, as long as the first of them ends up quantized (a scale that nothing
  quantized needs is not forced on anyone).

Other distributions add rules through the entry-point group `qdqtool.rules`.
"""

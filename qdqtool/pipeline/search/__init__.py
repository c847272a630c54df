"""Searches: propose an edit of a quantized network, measure it, keep it if the gain is significant, stop at the budget.

- Subject: `switched.SwitchedNetwork`, a Q/DQ network beside its float form, whose nodes can be switched to float.
- Executor: `subsets.TrialRunner` runs each set of quantized nodes once for each sample, and remembers it, also in a file.
  `staged.StagedRunner` runs the common beginning of several sets once.
- Proposers: `sensitivity` (single nodes), `float_nodes` (sets that keep a limit).
  `formats` proposes FP8 and FP16 for these nodes, `causes` other ranges, rounding and equalization for noisy nodes.
- Evidence: `core.evidence`, also for limits that other samples must keep.
- Journal: `core.journal`; every search writes rows of one kind.

`sensitivity` is a command, `limited_run` a run with `--max-drop` or `--min-sqnr`. Ranges are searched in `pipeline.ranges`,
fixes of an engine in `pipeline.autofix`, recipes in `pipeline.sweep`.
"""

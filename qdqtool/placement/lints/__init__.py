"""The shelf of lint rules: one file, one thing that can be wrong with a Q/DQ graph, `PLUGIN = LintRule(...)`.

A rule's docstring is its manual: what is wrong, what TensorRT does because of it, what to do, and the evidence.
Every claim about TensorRT for RTX is a test that builds the small graph. Codes are QDQ1xx and never change:
101-119 the build fails or the numbers change, 120-139 INT8 is lost or kernels are added, 140-159 advice.
"""

"""What the run comes to: one word with its reasons, and a word per area."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
{% set summary = report.summary %}
{% if summary.verdict %}
<p class="verdict {{ summary.verdict }}"><strong>{{ summary.verdict }}</strong></p>
{% endif %}
<h1>{{ words.verdict(summary) }}</h1>
<p title="{{ summary.model }}">{{ summary.model | brief }}{% if summary.builder %}, built by {{ summary.builder }}{% endif %}</p>
{% if summary.verdict and summary.reasons %}
{% set codes = run.groups | map(attribute="code") | list %}
<ul class="reasons">{% for reason in summary.reasons %}{% set code, rest = reason.partition(" ")[::2] %}<li>{% if code in codes and run.manual(code) %}<a href="#page-{{ code }}-{{ run.key }}">{{ code }}</a> {{ rest | prose }}{% else %}{{ reason | prose }}{% endif %}</li>{% endfor %}</ul>
{% endif %}
<ul class="areas" aria-label="Areas">
{% for area in run.areas %}
<li class="{{ area.level }}"><a href="#{{ area.anchor if area.anchor in run.anchors else "summary" }}-{{ run.key }}">{{ area.name }}</a> <b>{{ area.level }}</b> <span>{{ area.text }}</span></li>
{% endfor %}
</ul>
"""

PLUGIN = Section(order=10, page=_PAGE)

"""The result of the run: one word with its reasons, and a word per area."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
{% set summary = report.summary %}
{% set judged = summary.verdict %}
{% if report.comparison %}<p class="verdict {{ judged.answer }}"><strong>{{ judged.answer }}</strong></p>{% endif %}

<h1>{{ words.verdict(summary) }}</h1>
<p title="{{ summary.model }}">{{ summary.model | brief }}{% if summary.builder %}, built by {{ summary.builder }}{% endif %}</p>
{% set codes = run.groups | map(attribute="code") | list %}
<ul class="answers" aria-label="Evidence for the verdict">
{% for question, answer in judged.answers %}
{% set code, rest = answer.evidence.partition(" ")[::2] %}
<li class="{{ answer.level(question) }}">{{ titles[question] }} <b>{{ answer.state }}</b> <span>{% if code in codes and run.manual(code) %}<a href="#page-{{ code }}-{{ run.key }}">{{ code }}</a> {{ rest | prose }}{% else %}{{ answer.evidence | prose }}{% endif %}</span></li>
{% endfor %}
</ul>
{% if report.comparison and judged.settle %}<p class="settle">To settle it: <code>{{ words.settling(judged.settle) }}</code></p>{% endif %}
{% if summary.assumptions %}
<details class="assumptions"><summary>{{ summary.assumptions | length }} assumption{% if summary.assumptions | length != 1 %}s{% endif %} about the inputs{% if summary.assumptions | selectattr("is_guessed") | list %}, some of them guessed{% endif %}</summary>
<div class="wide-table" tabindex="0"><table><thead><tr><th scope="col">What</th><th scope="col">Value</th><th scope="col">Source</th></tr></thead>
<tbody>{% for entry in summary.assumptions %}<tr><th scope="row">{{ entry.what }}</th><td>{{ entry.value }}</td><td>{{ entry.source }}</td></tr>{% endfor %}</tbody></table></div></details>
{% endif %}
"""

PLUGIN = Section(order=10, page=_PAGE)

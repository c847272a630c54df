"""Times of layers from any tool: one file per form.

from qdqtool.engine.profiles import read_profile
"""

from qdqtool.engine.profiles.forms import read_profile, read_profile_text

__all__ = ["read_profile", "read_profile_text"]

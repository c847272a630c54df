"""What a user's own program prints between the builder's messages: arrays, plugin calls, shell prompts."""

from qdqtool.buildlog.sentence import Family, row

PLUGIN = Family(
    sentences=(
        row(
            "array-row",
            r"(?P<values>[\[(\s]*[-+]?(?:\d|\.\d|nan|inf)[\d\s.,+\-einfa\[\])(]*|[\[\]\s]+|[\[\s]*\.\.\.[,\s]*)",
            "[[20. 21. 22. 23. 24.]",
            "-4.23278809e-02  9.20891762e-05 -7.19604492e-02",
            "...",
        ),
        row(
            "plugin-call",
            r"(?P<object>0x[0-9a-f]{4,16})\[(?P<call>\w+)\](?P<rest>.*)",
            "0x52bd43c0[getCapabilityInterface]",
        ),
    )
)

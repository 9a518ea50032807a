"""Only the name of the group."""

GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"

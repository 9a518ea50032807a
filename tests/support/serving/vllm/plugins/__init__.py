"""Only the name of the group."""

DEFAULT_PLUGINS_GROUP = "vllm.general_plugins"

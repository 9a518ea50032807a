"""The command group, and what the commands share: options, tables and progress."""

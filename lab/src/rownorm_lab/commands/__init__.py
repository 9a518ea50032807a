"""The commands, a folder each. No command imports another: what two need is in a room below."""

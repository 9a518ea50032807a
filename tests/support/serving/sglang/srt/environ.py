"""Variables, read when they are asked for."""

import os


class EnvStr:
    def __init__(self, name):
        self.name = name

    def get(self):
        return os.environ.get(self.name)


class Envs:
    SGLANG_PLUGINS = EnvStr("SGLANG_PLUGINS")


envs = Envs()

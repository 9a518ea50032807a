"""The command ``rownorm``, before it imports anything: ``rownorm --help`` must not wait for torch."""

import os
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

LAB_NEEDS = ("altair", "click", "msgspec", "rich", "vl_convert")


class Asleep(ModuleType):
    """A package that runs its ``__init__.py`` when something is first asked of it.

    Its submodules can be imported all the same, which is all that help, lists and messages need.
    """

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def main() -> None:
    # Read when torch is loaded. Threads that wait awake, the default, cost a time slice at every barrier as soon as
    # anything else runs on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if "rownorm" not in sys.modules:
        spec = find_spec("rownorm")
        assert spec is not None
        sys.modules["rownorm"] = package = module_from_spec(spec)
        package.__class__ = Asleep
    try:
        from rownorm.lab.cli import main

        main()
    except ModuleNotFoundError as error:
        if error.name not in LAB_NEEDS:
            raise
        sys.exit(f"rownorm needs {error.name} for this; pip install 'rownorm[lab]' brings it")


if __name__ == "__main__":
    main()

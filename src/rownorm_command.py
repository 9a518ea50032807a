"""The entry point of the command ``rownorm``. It defers the import of torch: ``rownorm --help`` must be fast."""

import os
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

LAB_NEEDS = ("altair", "click", "msgspec", "rich", "vl_convert")


class LazyPackage(ModuleType):
    """A package whose ``__init__.py`` runs at the first access to one of its attributes.

    Its submodules can be imported before that, which is all that help texts, lists and error messages need.
    """

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def main() -> None:
    """Run the command line of the lab."""
    # Read when torch is loaded. By default threads spin at a barrier, which costs a time slice whenever another process
    # runs on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if "rownorm" not in sys.modules:
        spec = find_spec("rownorm")
        assert spec is not None
        sys.modules["rownorm"] = package = module_from_spec(spec)
        package.__class__ = LazyPackage
    try:
        from rownorm.lab.cli.main import main

        main()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "triton":
            from rownorm.launch.triton_version import missing

            sys.exit(missing())
        if error.name not in LAB_NEEDS:
            raise
        sys.exit(f"rownorm needs {error.name} for this command: pip install 'rownorm[lab]'")


if __name__ == "__main__":
    main()

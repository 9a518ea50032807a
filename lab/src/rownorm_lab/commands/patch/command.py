"""``rownorm patch``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ...command_line.options import examples, usage_errors

if TYPE_CHECKING:
    from torch import nn

OUT_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@click.command(
    "patch",
    epilog=examples(
        "rownorm patch my_package.models:make_model",
        "rownorm patch torchvision.models:vit_b_16 --json",
        "rownorm patch my_package.models:make_model --out-dtype bf16",
        "rownorm patch my_package.models:make_model --fuse-residuals",
    ),
)
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--out-dtype",
    type=click.Choice(list(OUT_DTYPES)),
    help="The dtype of all results, as rownorm.patch takes it.",
)
@click.option(
    "--fuse-residuals",
    is_flag=True,
    help="Also compute residual adds together with the norms after them, where a probe of the block proves it.",
)
def command(factory: str, as_json: bool, out_dtype: str | None, fuse_residuals: bool) -> None:
    """Show what rownorm.patch does to a model: which norms it swaps, which it leaves, and why.

    FACTORY is a function or class of MODULE that returns the model without arguments, or the model itself. MODULE is
    found as Python finds it from the current folder.
    """
    import json

    import torch

    from rownorm import patch

    dtype = None if out_dtype is None else getattr(torch, OUT_DTYPES[out_dtype])
    with usage_errors("'MODULE:FACTORY'"):
        model = load(factory)
    report = patch(model, out_dtype=dtype, fuse_residuals=fuse_residuals)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else str(report))


def load(factory: str) -> nn.Module:
    """The model that ``module:factory`` names. ValueError that says what to do if there is none."""
    from importlib import import_module

    from torch import nn

    module_name, separator, path = factory.partition(":")
    if not (module_name and separator and path):
        raise ValueError(
            f"{factory!r} is not MODULE:FACTORY, for example my_package.models:make_model"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        raise _users(error, f"{module_name} cannot be imported") from None
    model: object = found
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise ValueError(
                f"{factory} is {type(model).__name__}; name a model, or a function that returns one"
            )
        try:
            model = model()
        except TypeError as error:
            raise ValueError(
                f"{factory} cannot be called without arguments: {error}. Write a function that makes the model."
            ) from error
        except Exception as error:
            raise _users(error, f"{factory} failed") from None
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"{factory} returned {type(model).__name__}; it must return a torch.nn.Module"
        )
    return model


def _users(error: Exception, what: str) -> click.ClickException:
    """The user's own error: where it was raised, and what it says."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    return click.ClickException(
        f"{what}: {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
    )

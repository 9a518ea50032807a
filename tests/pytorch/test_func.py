"""``torch.func``: transforms, single and nested, compared with the same transforms of plain PyTorch."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import rownorm
from rownorm.program import COLUMNS
from support.operators import COLS, ROWS, every_case, few_cases, full_cases


def fp64(case, device, **options):
    return tuple(case.tensors(device, torch.float64, **options).values())


def batched_tensors(case, device, in_dims, batch=2):
    """Tensors with an additional dimension of size ``batch`` at the place given by ``in_dims``."""
    return tuple(
        t if dim is None else torch.stack([t + i * t.cos() for i in range(batch)], dim)
        for t, dim in zip(fp64(case, device), in_dims, strict=True)
    )


def all_arguments(case):
    return tuple(range(len(case.tensor_names)))


def rows_only(case, dim):
    """``in_dims`` that batch the rows and share the parameters."""
    return tuple(None if name in case.parameters else dim for name in case.tensor_names)


def rows_and_samples(case):
    """``in_dims`` that take one row after the other, with the gate, scale and shift that belong to it."""
    return tuple(None if name in COLUMNS else 0 for name in case.tensor_names)


def second_order(function, argnums):
    """Gradient of the square of a gradient."""

    def squared(*tensors):
        return sum(g.square().sum() for g in grad(function, argnums)(*tensors))

    return grad(squared, argnums)


def pushed_forward(function):
    return lambda *tensors: jvp(function, tensors, tuple(t.cos() for t in tensors))


def pulled_back(function):
    def call(*tensors):
        outputs, pull = vjp(function, *tensors)
        return pull(tuple(output.cos() for output in outputs))

    return call


def forward_over_pull_back(function):
    """Forward mode over a backward whose forward ran before, outside of forward mode."""

    def call(*tensors):
        outputs, pull = vjp(function, *tensors)
        return jvp(lambda *dy: pull(dy), outputs, tuple(output.cos() for output in outputs))

    return call


OF_OUTPUTS = {
    "vjp": pulled_back,
    "jvp": pushed_forward,
    "jvp of vjp": forward_over_pull_back,
    "jacrev": jacrev,
    "jacfwd": jacfwd,
}


@few_cases
@pytest.mark.parametrize("transform", OF_OUTPUTS.values(), ids=OF_OUTPUTS)
def test_transforms_of_the_outputs(case, transform, device):
    tensors = fp64(case, device)
    expected = transform(case.expected)(*tensors)
    torch.testing.assert_close(transform(case.positional)(*tensors), expected)


OF_A_SCALAR = {
    "grad": grad,
    "hessian": hessian,
    "jacrev of jacrev": lambda function, argnums: jacrev(jacrev(function, argnums), argnums),
    "grad of grad": second_order,
    "grad of jvp": lambda function, argnums: grad(
        lambda *tensors: pushed_forward(function)(*tensors)[1].sin(), argnums
    ),
}


@few_cases
@pytest.mark.parametrize("transform", OF_A_SCALAR.values(), ids=OF_A_SCALAR)
def test_transforms_of_a_scalar(case, transform, device):
    tensors, argnums = fp64(case, device, rows=(2,), cols=3), all_arguments(case)
    expected = transform(case.expected_scalar, argnums)(*tensors)
    torch.testing.assert_close(transform(case.scalar, argnums)(*tensors), expected)


@every_case
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_vmap_over_rows(case, dim, device):
    in_dims = rows_only(case, dim)
    tensors = batched_tensors(case, device, in_dims)
    expected = vmap(case.expected, in_dims)(*tensors)
    torch.testing.assert_close(vmap(case.positional, in_dims)(*tensors), expected)


@full_cases
def test_vmap_over_one_tensor(case, device):
    for which in case.tensor_names:
        in_dims = tuple(0 if name == which else None for name in case.tensor_names)
        tensors = batched_tensors(case, device, in_dims)
        expected = vmap(case.expected, in_dims)(*tensors)
        torch.testing.assert_close(vmap(case.positional, in_dims)(*tensors), expected)


@full_cases
def test_vmap_over_everything_and_out_dims(case, device):
    in_dims = tuple(0 if name in case.parameters else 1 for name in case.tensor_names)
    tensors = batched_tensors(case, device, in_dims)
    expected = vmap(case.expected, in_dims, out_dims=1)(*tensors)
    torch.testing.assert_close(vmap(case.positional, in_dims, out_dims=1)(*tensors), expected)


@full_cases
def test_vmap_over_an_empty_batch(case, device):
    tensors = tuple(t.new_zeros(0, *t.shape) for t in case.tensors(device).values())
    expected = vmap(case.expected)(*tensors)
    torch.testing.assert_close(vmap(case.positional)(*tensors), expected)


@full_cases
def test_vmap_in_vmap(case, device):
    outer, inner = rows_only(case, 1), rows_and_samples(case)
    tensors = batched_tensors(case, device, outer)

    def nested(function):
        return vmap(vmap(function, inner), outer)

    torch.testing.assert_close(nested(case.positional)(*tensors), nested(case.expected)(*tensors))


@every_case
@pytest.mark.parametrize("n", [0, 1, 2])
def test_batches_of_gradients_of_the_rows_alone(case, n, device):
    """Nested vmap. Outputs that an operator does not compute, here the parameter gradients, have no batch dimension."""
    in_dims = rows_and_samples(case)
    tensors = tuple(
        t if dim is None else t[:n]
        for t, dim in zip(batched_tensors(case, device, in_dims), in_dims, strict=True)
    )

    def one_by_one(function):
        return vmap(vmap(grad(function), in_dims), in_dims)(*tensors)

    expected = one_by_one(case.expected_scalar)
    torch.testing.assert_close(one_by_one(case.scalar), expected)
    expected = vmap(jacrev(case.expected), in_dims)(*tensors)
    torch.testing.assert_close(vmap(jacrev(case.positional), in_dims)(*tensors), expected)


@few_cases
def test_per_sample_gradients(case, device):
    """vmap of grad: samples share the parameters and have their own gradients."""
    tensors, argnums, in_dims = fp64(case, device), all_arguments(case), rows_and_samples(case)

    def per_sample(function):
        return vmap(grad(function, argnums), in_dims)(*tensors)

    torch.testing.assert_close(per_sample(case.scalar), per_sample(case.expected_scalar))


@full_cases
@pytest.mark.parametrize("shared", [True, False], ids=["shared parameters", "own parameters"])
def test_gradient_of_a_batch(case, shared, device):
    in_dims = rows_only(case, 0) if shared else (0,) * len(case.tensor_names)
    tensors = batched_tensors(case, device, in_dims)

    def of_batch(function):
        def total(*tensors):
            return vmap(function, in_dims)(*tensors).sum()

        return grad(total, all_arguments(case))(*tensors)

    torch.testing.assert_close(of_batch(case.scalar), of_batch(case.expected_scalar))


@full_cases
def test_ensemble_gradients(case, device):
    """vmap of grad over models: every model has its own parameters and all get the same rows."""
    in_dims = tuple(0 if name in case.parameters else None for name in case.tensor_names)
    tensors, argnums = batched_tensors(case, device, in_dims), all_arguments(case)

    def ensemble(function):
        return vmap(grad(function, argnums), in_dims)(*tensors)

    torch.testing.assert_close(ensemble(case.scalar), ensemble(case.expected_scalar))


@full_cases
def test_per_sample_second_order(case, device):
    tensors, argnums, in_dims = fp64(case, device), all_arguments(case), rows_and_samples(case)

    def per_sample(function):
        return vmap(second_order(function, argnums), in_dims)(*tensors)

    torch.testing.assert_close(per_sample(case.scalar), per_sample(case.expected_scalar))


@full_cases
@pytest.mark.parametrize("through", ["function", "operator"])
def test_forward_mode_with_dual_tensors(case, through, device):
    """A dual tensor keeps its tangent, through the public function and through the operator."""
    tensors = case.tensors(device, torch.float64)
    tangents = {name: t.cos() for name, t in tensors.items()}
    namespace = rownorm if through == "function" else torch.ops.rownorm
    with forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(t, tangents[name]) for name, t in tensors.items()}
        outputs = getattr(namespace, case.operator)(**dual, **case.options)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        actual = tuple(forward_ad.unpack_dual(output).tangent for output in outputs)
    _, expected = jvp(case.expected, tuple(tensors.values()), tuple(tangents.values()))
    torch.testing.assert_close(actual, expected)


@full_cases
def test_no_grad_inside_grad(case, device):
    """A call under no_grad is a constant to every transform around it."""
    tensors = fp64(case, device)

    def half_constant(x):
        with torch.no_grad():
            constant = case.scalar(x, *tensors[1:])
        return constant * x.square().sum()

    constant = case.expected_scalar(*tensors)
    torch.testing.assert_close(grad(half_constant)(tensors[0]), 2 * constant * tensors[0])


@pytest.mark.parametrize("module", [rownorm.nn.LayerNorm, rownorm.nn.RMSNorm])
def test_functional_call(module, device):
    norm = module(COLS, device=device, dtype=torch.float64)
    other = {name: torch.randn_like(p) for name, p in norm.named_parameters()}
    x = torch.randn(ROWS, COLS, device=device, dtype=torch.float64)

    def loss(norm, parameters, x):
        return functional_call(norm, parameters, (x,)).sin().sum()

    own = getattr(torch.nn, module.__name__)(COLS, device=device, dtype=torch.float64)
    for transform in (
        lambda norm: functional_call(norm, other, (x,)),
        lambda norm: grad(lambda p: loss(norm, p, x))(other),
        lambda norm: vmap(grad(lambda p, x: loss(norm, p, x)), (None, 0))(other, x),
    ):
        torch.testing.assert_close(transform(norm), transform(own))

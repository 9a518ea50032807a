/* A norm with gradients in C++: forward, and the node of autograd's graph that runs backward.

   It does what _EagerNorm of ops/eager.py and its C (eager.c, backward.c) do, without a Python object for the node, for
   what is saved and for the gradients. An unusual call goes to the Python functions, with its arguments unchanged.

   It is an extension of its own, because it needs PyTorch's headers and takes half a minute to compile: native/node.py
   builds it in the background, and the C does every call until then.

   What it gains: experiment HST-08 in docs/experiments/host.md. */

#include <ATen/EmptyTensor.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/record_function.h>
#ifdef WITH_CUDA
#include <ATen/cuda/EmptyTensor.h>
#endif
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/utils/object_ptr.h>

namespace {

using namespace torch::autograd;

const Interface *native; /* of the C extension */
PyObject *forward_in_python;  /* eager.eager_norm */
PyObject *backward_in_python; /* eager._EagerNorm.backward */
PyObject *make_context;       /* eager.NodeContext */

[[noreturn]] void throw_python_error() {
    python_error error;
    error.persist();
    throw error;
}

/* A new reference; throws where it is NULL. */
THPObjectPtr checked(PyObject *object) {
    if (object == nullptr) throw_python_error();
    return THPObjectPtr(object);
}

/* The answer to a question of the C extension. */
bool is_yes(int answer) {
    if (answer < 0) throw_python_error();
    return answer != 0;
}

at::Tensor tensor_of(PyObject *object) { return object == Py_None ? at::Tensor() : THPVariable_Unpack(object); }

PyObject *object_of(const at::Tensor &tensor) {
    return tensor.defined() ? THPVariable_Wrap(tensor) : Py_NewRef(Py_None);
}

uint64_t address_of(const at::Tensor &tensor) {
    return tensor.defined() ? (uint64_t)(uintptr_t)tensor.const_data_ptr() : 0;
}

/* ---- Versions of PyTorch: a node is kept by a shared_ptr in some of them and by an intrusive_ptr in others. */

using NodePointer = decltype(Edge::function);

template <class T> std::shared_ptr<T> make_node(std::shared_ptr<Node> *) {
    return std::shared_ptr<T>(new T(), [](T *node) { deleteNode(node); });
}
template <class T> c10::intrusive_ptr<T> make_node(c10::intrusive_ptr<Node> *) { return c10::make_intrusive<T>(); }

template <class T> std::shared_ptr<Node> pointer_to(T *node, std::shared_ptr<Node> *) {
    return node->shared_from_this();
}
template <class T> c10::intrusive_ptr<Node> pointer_to(T *node, c10::intrusive_ptr<Node> *) {
    return c10::intrusive_ptr<Node>::reclaim_copy(node);
}

/* ---- Allocations */

struct Allocation {
    bool is_known = false; /* else the allocator of Python is called */
    bool is_on_gpu = false;
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype{};
};

std::vector<int64_t> integers_of(PyObject *tuple) {
    std::vector<int64_t> numbers;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
        numbers.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
    if (PyErr_Occurred()) throw_python_error();
    return numbers;
}

/* What an allocator does: rows.allocator makes one that takes a shape, strides and a dtype. */
Allocation read_allocation(const PreparedCall *call, Py_ssize_t i) {
    Allocation allocation;
    PyObject *arguments = call->allocator_arguments[i];
    if (PyTuple_GET_SIZE(arguments) != 3) return allocation;
    PyObject *sizes = PyTuple_GET_ITEM(arguments, 0), *strides = PyTuple_GET_ITEM(arguments, 1);
    PyObject *dtype = PyTuple_GET_ITEM(arguments, 2);
    if (!PyTuple_Check(sizes) || !PyTuple_Check(strides) || !THPDtype_Check(dtype)) return allocation;
    allocation.is_on_gpu = PyLong_AsLong(call->device) >= 0;
    allocation.sizes = integers_of(sizes);
    allocation.strides = integers_of(strides);
    allocation.dtype = reinterpret_cast<THPDtype *>(dtype)->scalar_type;
#ifdef WITH_CUDA
    allocation.is_known = true;
#else
    allocation.is_known = !allocation.is_on_gpu;
#endif
    return allocation;
}

using Allocations = std::vector<Allocation>;

void free_allocations(void *allocations) { delete static_cast<Allocations *>(allocations); }

const Allocations &allocations_of(PreparedCall *call) {
    if (call->allocations == nullptr) {
        auto read = std::make_unique<Allocations>();
        for (Py_ssize_t i = 0; i < call->n_allocated; i++) read->push_back(read_allocation(call, i));
        call->free_allocations = free_allocations;
        call->allocations = read.release();
    }
    return *static_cast<Allocations *>(call->allocations);
}

at::Tensor allocate(const PreparedCall *call, Py_ssize_t i, const Allocation &allocation) {
    if (!allocation.is_known)
        return tensor_of(checked(PyObject_Call(call->allocators[i], call->allocator_arguments[i], nullptr)));
#ifdef WITH_CUDA
    if (allocation.is_on_gpu)
        return at::Tensor(at::detail::empty_strided_cuda(allocation.sizes, allocation.strides, allocation.dtype,
                                                         at::Device(at::kCUDA))); /* the current one */
#endif
    return at::Tensor(at::detail::empty_strided_cpu(allocation.sizes, allocation.strides, allocation.dtype));
}

/* Allocate, start the kernels, and return the returned tensors, as ``start`` of launch.c does. Empty: Python has to do
   this call. addresses: MAX_TENSORS of them, those of the inputs filled in. */
variable_list start(PreparedCall *call, uint64_t *addresses) {
    if (is_yes(native->needs_python(call))) return {};
    const Allocations &allocations = allocations_of(call);
    at::Tensor allocated[MAX_TENSORS];
    for (Py_ssize_t i = 0; i < call->n_allocated; i++) {
        allocated[i] = allocate(call, i, allocations[i]);
        addresses[call->n_inputs + i] = address_of(allocated[i]);
    }
    if (native->launch_kernels(call, addresses)) throw_python_error();
    variable_list returned(call->n_returned);
    for (Py_ssize_t i = 0; i < call->n_returned; i++)
        if (call->returned[i] >= 0) returned[i] = allocated[call->returned[i]];
    return returned;
}

/* ---- Backward */

struct NormBackward : public Node {
    PreparedCall *call = nullptr; /* of forward; this and the options are references */
    PyObject *options = nullptr;
    at::ScalarType x_dtype{};
    std::optional<at::ScalarType> residual_dtype;
    SavedVariable saved[N_SAVED];
    uint64_t saved_addresses[N_SAVED];
    at::Tensor mu, rstd; /* not visible outside, so autograd does not have to guard them */

    ~NormBackward() override {
        if (call == nullptr || !Py_IsInitialized()) return;
        pybind11::gil_scoped_acquire gil;
        Py_DECREF(call);
        Py_DECREF(options);
    }

    std::string name() const override { return "NormBackward"; }

    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex_);
        for (SavedVariable &one : saved) one.reset_data();
        mu.reset();
        rstd.reset();
    }

    variable_list apply(variable_list &&incoming) override;

    /* Compiled autograd traces ``apply`` with other tensors in place of the saved ones. */
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs &args) const override {
        for (int i = 0; i < N_SAVED; i++) args.collect(saved[i], i == 0 && residual_dtype.has_value());
        args.collect(mu);
        args.collect(rstd);
        args.collect(x_dtype);
        args.collect(residual_dtype);
        pybind11::gil_scoped_acquire gil;
        THPObjectPtr text = checked(PyObject_Repr(options)); /* hashes of different options can be equal */
        const char *characters = PyUnicode_AsUTF8(text);
        if (characters == nullptr) throw_python_error();
        args.collect(std::string(characters));
    }

    variable_list apply_with_saved(const variable_list &incoming,
                                   torch::dynamo::autograd::SwapSavedVariables &swapped) override {
        for (SavedVariable &one : saved) swapped.before(one);
        swapped.before(mu);
        swapped.before(rstd);
        variable_list gradients = apply(variable_list(incoming));
        for (SavedVariable &one : saved) swapped.after(one);
        swapped.after(mu);
        swapped.after(rstd);
        return gradients;
    }

  private:
    bool put_gradient(BackwardKey &key, int number, const at::Tensor &gradient, const at::Tensor &plain) const;
    bool make_key(BackwardKey &key, const at::Tensor &dy, const at::Tensor &dh, const at::Tensor &plain) const;
    THPObjectPtr context(PyObject *unpacked, const at::Tensor *statistics);
    THPObjectPtr find_call(const BackwardKey &key, const at::Tensor &dy, const at::Tensor &dh, const at::Tensor *unpacked,
                           const at::Tensor *statistics);
};

PyObject *dtype_object(std::optional<at::ScalarType> dtype) {
    return dtype ? Py_NewRef(torch::getTHPDtype(*dtype)) : Py_NewRef(Py_None);
}

THPObjectPtr tuple_of(const at::Tensor *tensors, int n) {
    THPObjectPtr tuple = checked(PyTuple_New(n));
    for (int i = 0; i < n; i++) PyTuple_SET_ITEM(tuple.get(), i, checked(object_of(tensors[i])).release());
    return tuple;
}

/* An object with the attributes of _EagerNorm's ctx that Python's backward reads. */
THPObjectPtr NormBackward::context(PyObject *unpacked, const at::Tensor *statistics) {
    THPObjectPtr addresses = checked(PyList_New(N_SAVED)), needs = checked(PyTuple_New(N_INPUTS + 1));
    for (int i = 0; i < N_SAVED; i++) {
        uint64_t address = saved_addresses[i];
        PyObject *number = address ? PyLong_FromUnsignedLongLong(address) : Py_NewRef(Py_None);
        PyList_SET_ITEM(addresses.get(), i, checked(number).release());
    }
    for (int i = 0; i <= N_INPUTS; i++)
        PyTuple_SET_ITEM(needs.get(), i, PyBool_FromLong(i < N_INPUTS && task_should_compute_output(i)));
    THPObjectPtr both = tuple_of(statistics, 2);
    THPObjectPtr x(dtype_object(x_dtype)), residual(dtype_object(residual_dtype));
    THPObjectPtr state = checked(PyTuple_Pack(6, (PyObject *)call, addresses.get(), both.get(), options, x.get(),
                                              residual.get()));
    return checked(PyObject_CallFunctionObjArgs(make_context, state.get(), unpacked, needs.get(), nullptr));
}

/* Append an incoming gradient, the first or the second, to the key. False: Python has to look at it. plain: a tensor
   that was just allocated when forward ran. */
bool NormBackward::put_gradient(BackwardKey &key, int number, const at::Tensor &gradient, const at::Tensor &plain) const {
    key.bits <<= 6;
    if (!gradient.defined()) return true;
    /* A subclass, a batch of vmap, or a negated view has other dispatch keys. */
    if (gradient.key_set() != plain.key_set() || gradient.dim() > MAX_DIMENSIONS) return false;
    const InputMetadata &expected = input_metadata(number); /* autograd checks it, but grad_fn(...) does not */
    TORCH_CHECK(gradient.dtype() == expected.dtype() && gradient.device() == expected.device()
                    && gradient.sym_sizes().equals(expected.shape_as_dim_vector()),
                "the gradient of a norm must have the shape, dtype and device of its output");
    key.bits |= 32 | (address_of(gradient) & 15);
    if (gradient.is_contiguous()) return true;
    key.bits |= 16;
    memcpy(key.strides[number], gradient.strides().data(), gradient.dim() * sizeof(int64_t));
    return true;
}

bool NormBackward::make_key(BackwardKey &key, const at::Tensor &dy, const at::Tensor &dh, const at::Tensor &plain) const {
    if (!dy.defined() || !put_gradient(key, 0, dy, plain) || !put_gradient(key, 1, dh, plain)) return false;
    for (int i = 0; i < N_INPUTS; i++) key.bits = key.bits << 1 | task_should_compute_output(i);
    return true;
}

THPObjectPtr NormBackward::find_call(const BackwardKey &key, const at::Tensor &dy, const at::Tensor &dh,
                                     const at::Tensor *unpacked, const at::Tensor *statistics) {
    if (PyObject *known = native->known_backward_call(call, &key)) return THPObjectPtr(known);
    THPObjectPtr tensors = tuple_of(unpacked, N_SAVED), ctx = context(tensors, statistics);
    THPObjectPtr first = checked(object_of(dy)), second = checked(object_of(dh));
    return checked(native->ask_for_backward_call(call, &key, ctx, first, second, tensors));
}

variable_list NormBackward::apply(variable_list &&incoming) {
    RECORD_FUNCTION("rownorm::norm_backward", c10::ArrayRef<const c10::IValue>());
    const at::Tensor dy = incoming[0], dh = incoming.size() > 1 ? incoming[1] : at::Tensor();
    at::Tensor unpacked[N_SAVED], statistics[2];
    if (dy.defined()) { /* dh alone needs nothing that was saved, so h may have been modified */
        std::lock_guard<std::mutex> lock(mutex_); /* another thread may release what is saved */
        NodePointer self = pointer_to(this, (NodePointer *)nullptr);
        /* Throws where the graph was freed, or a tensor was modified in place. */
        for (int i = 0; i < N_SAVED; i++) unpacked[i] = saved[i].unpack(self);
        statistics[0] = mu;
        statistics[1] = rstd;
    }
    pybind11::gil_scoped_acquire gil;
    BackwardKey key = {};
    bool is_usual = !is_yes(native->backward_is_intercepted()) && make_key(key, dy, dh, statistics[1]);
    for (int i = 0; i < N_SAVED && is_usual; i++) is_usual = address_of(unpacked[i]) == saved_addresses[i];
    if (is_usual) {
        THPObjectPtr found = find_call(key, dy, dh, unpacked, statistics);
        if (Py_IS_TYPE(found.get(), native->prepared_call_type)) {
            /* In the order of reference.BackwardInputs. */
            uint64_t addresses[MAX_TENSORS] = {address_of(dy), address_of(dh)};
            memcpy(addresses + 2, saved_addresses, sizeof saved_addresses);
            for (int i = 0; i < 2; i++) addresses[2 + N_SAVED + i] = address_of(statistics[i]);
            variable_list gradients = start((PreparedCall *)found.get(), addresses);
            if (!gradients.empty()) {
                gradients.resize(N_INPUTS);
                return gradients;
            }
        }
    }
    THPObjectPtr tensors = tuple_of(unpacked, N_SAVED), ctx = context(tensors, statistics);
    THPObjectPtr first = checked(object_of(dy)), second = checked(object_of(dh));
    PyObject *arguments[] = {ctx, first, second, tensors};
    THPObjectPtr found = checked(PyObject_Vectorcall(backward_in_python, arguments, 4, nullptr));
    variable_list gradients;
    for (int i = 0; i < N_INPUTS; i++) gradients.push_back(tensor_of(PyTuple_GET_ITEM(found.get(), i)));
    return gradients;
}

/* ---- Forward */

/* y, and h with a residual, with their node; empty: Python has to do this call. */
variable_list forward_in_cpp(PyObject *const *inputs, PyObject *options) {
    uint64_t addresses[MAX_TENSORS];
    /* Hooks on saved tensors, for example of activation checkpointing. */
    if (at::SavedTensorDefaultHooks::get_hooks().has_value()) return {};
    PreparedCall *call = native->find_forward(inputs, options, 1, addresses);
    if (call == nullptr) {
        if (native->left_to_python()) throw_python_error();
        return {};
    }
    THPObjectPtr owned((PyObject *)call);
    variable_list outputs = start(call, addresses); /* execute.ForwardResult: y, h, mu, rstd */
    if (outputs.empty()) return {};
    const bool has_residual = inputs[1] != Py_None;
    auto node = make_node<NormBackward>((NodePointer *)nullptr);
    edge_list edges(N_INPUTS);
    for (int i = 0; i < N_INPUTS; i++)
        if (inputs[i] != Py_None) edges[i] = impl::gradient_edge(THPVariable_Unpack(inputs[i]));
    node->set_next_edges(std::move(edges));
    node->call = (PreparedCall *)owned.release();
    node->options = Py_NewRef(options);
    node->x_dtype = THPVariable_Unpack(inputs[0]).scalar_type();
    if (has_residual) node->residual_dtype = THPVariable_Unpack(inputs[1]).scalar_type();
    node->mu = std::move(outputs[2]);
    node->rstd = std::move(outputs[3]);
    outputs.resize(has_residual ? 2 : 1);
    for (const at::Tensor &output : outputs) set_history(output, node);
    node->saved[0] = has_residual ? SavedVariable(outputs[1], true) : SavedVariable(tensor_of(inputs[0]), false);
    node->saved_addresses[0] = has_residual ? address_of(outputs[1]) : addresses[0];
    for (int i = 1; i < N_SAVED; i++) {
        if (inputs[1 + i] != Py_None) node->saved[i] = SavedVariable(THPVariable_Unpack(inputs[1 + i]), false);
        node->saved_addresses[i] = addresses[1 + i];
    }
    return outputs;
}

/* record(x, residual, pre_bias, weight, bias, options): eager.eager_norm */
PyObject *record(PyObject *, PyObject *const *arguments, Py_ssize_t n) {
    HANDLE_TH_ERRORS
    if (n != N_INPUTS + 1) return PyErr_Format(PyExc_TypeError, "record takes %d arguments", N_INPUTS + 1);
    variable_list outputs = forward_in_cpp(arguments, arguments[N_INPUTS]);
    if (outputs.empty()) return PyObject_Vectorcall(forward_in_python, arguments, n, nullptr);
    if (outputs.size() == 1) return THPVariable_Wrap(std::move(outputs[0]));
    return tuple_of(outputs.data(), (int)outputs.size()).release();
    END_HANDLE_TH_ERRORS
}

/* use(interface of the C extension, eager_norm, _EagerNorm.backward, NodeContext) */
PyObject *use(PyObject *, PyObject *arguments) {
    PyObject *capsule, *forward, *backward, *context;
    if (!PyArg_ParseTuple(arguments, "OOOO:use", &capsule, &forward, &backward, &context)) return nullptr;
    const auto *given = static_cast<const Interface *>(PyCapsule_GetPointer(capsule, INTERFACE));
    if (given == nullptr) return nullptr;
    if (given->size != sizeof(Interface) || given->prepared_call_size != sizeof(PreparedCall))
        return PyErr_Format(PyExc_RuntimeError, "the C extension has another version of prepared_call.h");
    native = given;
    Py_XSETREF(forward_in_python, Py_NewRef(forward));
    Py_XSETREF(backward_in_python, Py_NewRef(backward));
    Py_XSETREF(make_context, Py_NewRef(context));
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"record", (PyCFunction)(void (*)(void))record, METH_FASTCALL, "A norm with gradients: eager.eager_norm"},
    {"use", use, METH_VARARGS, "Take the C extension and the functions of Python."},
    {}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "rownorm_node", nullptr, -1, methods};

} // namespace

PyMODINIT_FUNC PyInit_rownorm_node(void) { return PyModule_Create(&definition); }

/* A norm with gradients in C++: forward, and the node of autograd's graph that runs backward.

   It does what _EagerNorm of ops/eager.py does, without a Python object for the node, for what is saved and for the
   gradients. An unusual call goes to the Python functions, with its arguments unchanged. On a GPU the C extension finds
   the prepared calls and starts their kernels; on a CPU ``forward`` and ``backward`` of ops/cpu_native compute.

   It is an extension of its own, because it needs PyTorch's headers and takes half a minute to compile: native/node.py
   builds it in the background, and Python records every norm until then.

   What it gains: experiment HST-08 in docs/experiments/host.md. */

#include <ATen/DLConvertor.h>
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/record_function.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#ifdef WITH_CUDA
#include <ATen/cuda/EmptyTensor.h>
#endif
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/utils/object_ptr.h>

namespace {

using namespace torch::autograd;

const Interface *native; /* of the C extension; NULL: there is none, and the tensors are on a CPU */
PyObject *forward_on_cpu, *backward_on_cpu; /* of ops/cpu_native; None: tensors on a CPU are Python's */
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

/* 0 for a tensor that is not there. Throws where one has elements but no memory. */
uint64_t address_of(const at::Tensor &tensor) {
    if (!tensor.defined()) return 0;
    TORCH_CHECK(tensor.unsafeGetTensorImpl()->storage_initialized(),
                "rownorm: a tensor has elements, but no memory: its storage was freed");
    return (uint64_t)(uintptr_t)tensor.const_data_ptr();
}

bool is_term_of_h(int input) { return TERMS_OF_H >> input & 1; }

/* Whether something that intercepts operators is active in backward, or a second derivative is wanted:
   fast_path.can_skip_dispatcher_in_backward. */
bool is_intercepted() {
    return at::GradMode::is_enabled() || c10::impl::TorchDispatchModeTLS::any_modes_set()
           || at::impl::torch_function_mode_enabled()
           || c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)
           || ForwardADLevel::try_get_by_idx(0) != nullptr;
}

/* What a backward call depends on, of a saved tensor. */
struct Layout {
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype{};
    at::Device device{at::kCPU};
    uint64_t alignment = 0;

    Layout() = default;
    explicit Layout(const at::Tensor &t)
        : sizes(t.sizes().vec()), strides(t.strides().vec()), dtype(t.scalar_type()), device(t.device()),
          alignment(address_of(t) & 15) {}
    bool operator==(const Layout &) const = default;
};

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

/* The allocator of ops/cpu_native: a contiguous tensor, whose data is written to ``data``. NULL with an exception. It
   fills no memory for torch.use_deterministic_algorithms: the extension writes every element. */
PyObject *new_on_cpu(DLDataType dtype, int n_dims, const int64_t *shape, void **data) {
    HANDLE_TH_ERRORS
    at::Tensor tensor(at::detail::empty_cpu(at::IntArrayRef(shape, n_dims), at::toScalarType(dtype)));
    *data = tensor.mutable_data_ptr();
    return THPVariable_Wrap(std::move(tensor));
    END_HANDLE_TH_ERRORS
}

/* PreparedCall(...) refuses calls with more than MAX_TENSORS tensors; these are the inputs that are written before. */
static_assert(N_INPUTS <= MAX_TENSORS && 2 + N_SAVED <= MAX_TENSORS, "inputs of forward and of backward");

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
    PreparedCall *call = nullptr; /* of forward; NULL on a CPU. This and the options are references */
    PyObject *options = nullptr;
    at::ScalarType x_dtype{};
    std::optional<at::ScalarType> residual_dtype;
    bool is_h_output = false; /* h has this node; it has none where only parameters need a gradient */
    bool has_residual_gate = false;
    c10::DispatchKeySet plain_keys; /* those of a tensor that no subclass, transform or view flag makes special */
    SavedVariable saved[N_SAVED];
    uint64_t saved_addresses[N_SAVED] = {};
    std::vector<Layout> saved_layouts; /* with hooks on saved tensors, which may return tensors at other addresses */

    ~NormBackward() override {
        if (options == nullptr || !Py_IsInitialized()) return;
        pybind11::gil_scoped_acquire gil;
        Py_XDECREF(call);
        Py_DECREF(options);
    }

    std::string name() const override { return "NormBackward"; }

    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex_);
        for (SavedVariable &one : saved) one.reset_data();
    }

    variable_list apply(variable_list &&incoming) override;

    /* Compiled autograd traces ``gradients_of`` with other tensors in place of the saved ones. */
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs &args) const override {
        for (int i = 0; i < N_SAVED; i++) args.collect(saved[i], i == 0 && is_h_output && saved_layouts.empty());
        args.collect(x_dtype);
        args.collect(residual_dtype);
        args.collect(has_residual_gate);
        pybind11::gil_scoped_acquire gil;
        THPObjectPtr text = checked(PyObject_Repr(options)); /* hashes of different options can be equal */
        const char *characters = PyUnicode_AsUTF8(text);
        if (characters == nullptr) throw_python_error();
        args.collect(std::string(characters));
    }

    variable_list apply_with_saved(const variable_list &incoming,
                                   torch::dynamo::autograd::SwapSavedVariables &swapped) override {
        for (SavedVariable &one : saved) swapped.before(one);
        variable_list gradients = gradients_of(incoming);
        for (SavedVariable &one : saved) swapped.after(one);
        return gradients;
    }

  private:
    /* Not a subclass, a batch of vmap, a negated view or a tensor without memory, which have other dispatch keys. */
    bool is_plain(const at::Tensor &t) const { return !t.defined() || t.key_set() == plain_keys; }
    void check(const at::Tensor &gradient, int number) const;
    variable_list gradients_of(const variable_list &incoming);
    bool read_saved(const at::Tensor *unpacked, uint64_t *addresses) const;
    bool put_gradient(BackwardKey &key, int number, const at::Tensor &gradient) const;
    variable_list by_kernels(const at::Tensor &dy, const at::Tensor &dh, const at::Tensor *unpacked);
    variable_list by_cpu_extension(const at::Tensor &dy, const at::Tensor &dh, const at::Tensor *unpacked);
    THPObjectPtr context(PyObject *unpacked);
};

PyObject *dtype_object(std::optional<at::ScalarType> dtype) {
    return dtype ? Py_NewRef(torch::getTHPDtype(*dtype)) : Py_NewRef(Py_None);
}

THPObjectPtr tuple_of(const at::Tensor *tensors, int n) {
    THPObjectPtr tuple = checked(PyTuple_New(n));
    for (int i = 0; i < n; i++) PyTuple_SET_ITEM(tuple.get(), i, checked(object_of(tensors[i])).release());
    return tuple;
}

variable_list tensors_of(PyObject *tuple) {
    variable_list tensors;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) tensors.push_back(tensor_of(PyTuple_GET_ITEM(tuple, i)));
    return tensors;
}

/* An object with the attributes of _EagerNorm's ctx that Python's backward reads. */
THPObjectPtr NormBackward::context(PyObject *unpacked) {
    THPObjectPtr addresses(Py_NewRef(Py_None)), needs = checked(PyTuple_New(N_INPUTS + 1));
    if (call != nullptr && saved_layouts.empty()) {
        addresses = checked(PyList_New(N_SAVED));
        for (int i = 0; i < N_SAVED; i++) {
            uint64_t address = saved_addresses[i];
            PyObject *number = address ? PyLong_FromUnsignedLongLong(address) : Py_NewRef(Py_None);
            PyList_SET_ITEM(addresses.get(), i, checked(number).release());
        }
    }
    for (int i = 0; i <= N_INPUTS; i++)
        PyTuple_SET_ITEM(needs.get(), i, PyBool_FromLong(i < N_INPUTS && task_should_compute_output(i)));
    THPObjectPtr x(dtype_object(x_dtype)), residual(dtype_object(residual_dtype));
    PyObject *forward_call = call == nullptr ? Py_None : (PyObject *)call;
    THPObjectPtr state = checked(PyTuple_Pack(5, forward_call, addresses.get(), options, x.get(), residual.get()));
    PyObject *gated = has_residual_gate ? Py_True : Py_False;
    return checked(PyObject_CallFunctionObjArgs(make_context, state.get(), unpacked, needs.get(), gated, nullptr));
}

/* Autograd passes only gradients like the outputs, but ``grad_fn(...)`` passes anything, and the kernels trust it. */
void NormBackward::check(const at::Tensor &gradient, int number) const {
    if (!gradient.defined()) return;
    const InputMetadata &expected = input_metadata(number);
    TORCH_CHECK(gradient.dtype() == expected.dtype() && gradient.device() == expected.device()
                    && gradient.sym_sizes().equals(expected.shape_as_dim_vector()),
                "the gradient of a norm must have the shape, dtype and device of its output");
}

/* The addresses of the saved tensors. False: they are not as forward saved them, and Python has to look at them. */
bool NormBackward::read_saved(const at::Tensor *unpacked, uint64_t *addresses) const {
    for (int i = 0; i < N_SAVED; i++) {
        const at::Tensor &t = unpacked[i];
        if (!is_plain(t)) return false;
        addresses[i] = address_of(t);
        bool is_same = saved_layouts.empty() ? addresses[i] == saved_addresses[i]
                       : t.defined()         ? Layout(t) == saved_layouts[i]
                                             : saved_layouts[i] == Layout();
        if (!is_same) return false;
    }
    return true;
}

/* Append an incoming gradient, the first or the second, to the key. False: Python has to look at it. */
bool NormBackward::put_gradient(BackwardKey &key, int number, const at::Tensor &gradient) const {
    key.bits <<= 6;
    if (!gradient.defined()) return true;
    if (!is_plain(gradient) || gradient.dim() > MAX_DIMENSIONS) return false;
    key.bits |= 32 | (address_of(gradient) & 15);
    if (gradient.is_contiguous()) return true;
    key.bits |= 16;
    memcpy(key.strides[number], gradient.strides().data(), gradient.dim() * sizeof(int64_t));
    return true;
}

/* The gradients of the inputs, computed by kernels. Empty: Python has to do it. */
variable_list NormBackward::by_kernels(const at::Tensor &dy, const at::Tensor &dh, const at::Tensor *unpacked) {
    BackwardKey key = {};
    uint64_t addresses[MAX_TENSORS]; /* in the order of reference.BackwardInputs */
    if (!put_gradient(key, 0, dy) || !put_gradient(key, 1, dh) || !read_saved(unpacked, addresses + 2)) return {};
    addresses[0] = address_of(dy);
    addresses[1] = address_of(dh);
    for (int i = 0; i < N_INPUTS; i++) key.bits = key.bits << 1 | task_should_compute_output(i);
    THPObjectPtr found(native->known_backward_call(call, &key));
    if (!found) {
        THPObjectPtr tensors = tuple_of(unpacked, N_SAVED), ctx = context(tensors);
        THPObjectPtr first = checked(object_of(dy)), second = checked(object_of(dh));
        found = checked(native->ask_for_backward_call(call, &key, ctx, first, second, tensors));
    }
    if (!Py_IS_TYPE(found.get(), native->prepared_call_type)) return {};
    variable_list gradients = start((PreparedCall *)found.get(), addresses);
    if (!gradients.empty()) gradients.resize(N_INPUTS);
    return gradients;
}

/* The same on a CPU. x and a residual of the same dtype share one gradient, as in ops/autograd.py. */
variable_list NormBackward::by_cpu_extension(const at::Tensor &dy, const at::Tensor &dh, const at::Tensor *unpacked) {
    if (!is_plain(dy) || !is_plain(dh)) return {};
    for (int i = 0; i < N_SAVED; i++)
        if (!is_plain(unpacked[i])) return {};
    bool needs[N_INPUTS];
    for (int i = 0; i < N_INPUTS; i++) needs[i] = task_should_compute_output(i);
    const bool is_shared = residual_dtype == x_dtype && !has_residual_gate;
    THPObjectPtr inputs = checked(PyTuple_New(2 + N_SAVED)), wanted = checked(PyTuple_New(N_INPUTS));
    for (int i = 0; i < 2 + N_SAVED; i++)
        PyTuple_SET_ITEM(inputs.get(), i, checked(object_of(i == 0 ? dy : i == 1 ? dh : unpacked[i - 2])).release());
    for (int i = 0; i < N_INPUTS; i++) {
        bool is_wanted = needs[i];
        if (is_shared && i == INPUT_X) is_wanted |= needs[INPUT_RESIDUAL];
        if (is_shared && i == INPUT_RESIDUAL) is_wanted = false;
        PyTuple_SET_ITEM(wanted.get(), i, PyBool_FromLong(is_wanted));
    }
    PyObject *arguments[] = {inputs, options, residual_dtype ? Py_True : Py_False, wanted};
    THPObjectPtr found = checked(PyObject_Vectorcall(backward_on_cpu, arguments, 4, nullptr));
    if (found.get() == Py_None) return {};
    variable_list gradients = tensors_of(found);
    if (is_shared && needs[INPUT_RESIDUAL]) gradients[INPUT_RESIDUAL] = gradients[INPUT_X];
    if (is_shared && !needs[INPUT_X]) gradients[INPUT_X].reset();
    return gradients;
}

variable_list NormBackward::gradients_of(const variable_list &incoming) {
    const at::Tensor dy = incoming[0], dh = incoming.size() > 1 ? incoming[1] : at::Tensor();
    at::Tensor unpacked[N_SAVED];
    /* Without a residual_gate, dh alone needs nothing that was saved, so h may have been modified. */
    if (dy.defined() || has_residual_gate) {
        std::lock_guard<std::mutex> lock(mutex_); /* another thread may release what is saved */
        NodePointer self = pointer_to(this, (NodePointer *)nullptr);
        /* Throws where the graph was freed, or a tensor was modified in place. */
        for (int i = 0; i < N_SAVED; i++) unpacked[i] = saved[i].unpack(self);
        if (is_h_output && !saved_layouts.empty() && at::GradMode::is_enabled()) {
            unpacked[0] = unpacked[0].detach();
            impl::set_gradient_edge(unpacked[0], Edge(self, 1)); /* h is the second output */
        }
    }
    pybind11::gil_scoped_acquire gil;
    if (dy.defined() && !is_intercepted()) {
        variable_list gradients =
            call == nullptr ? by_cpu_extension(dy, dh, unpacked) : by_kernels(dy, dh, unpacked);
        if (!gradients.empty()) return gradients;
    }
    THPObjectPtr tensors = tuple_of(unpacked, N_SAVED), ctx = context(tensors);
    THPObjectPtr first = checked(object_of(dy)), second = checked(object_of(dh));
    PyObject *arguments[] = {ctx, first, second, tensors};
    THPObjectPtr found = checked(PyObject_Vectorcall(backward_in_python, arguments, 4, nullptr));
    variable_list gradients = tensors_of(found);
    gradients.resize(N_INPUTS);
    return gradients;
}

variable_list NormBackward::apply(variable_list &&incoming) {
    RECORD_FUNCTION("rownorm::norm_backward", c10::ArrayRef<const c10::IValue>());
    for (size_t i = 0; i < incoming.size(); i++) check(incoming[i], (int)i);
    return gradients_of(incoming);
}

/* ---- Forward */

/* y, h, mu and rstd by the extension for CPUs; empty where it does not apply. */
variable_list forward_by_cpu_extension(PyObject *const *inputs, PyObject *options) {
    THPObjectPtr tuple = checked(PyTuple_New(N_INPUTS));
    for (int i = 0; i < N_INPUTS; i++) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(inputs[i]));
    PyObject *arguments[] = {tuple, options, Py_True};
    THPObjectPtr found = checked(PyObject_Vectorcall(forward_on_cpu, arguments, 3, nullptr));
    return found.get() == Py_None ? variable_list() : tensors_of(found);
}

/* y, h, mu and rstd by kernels, and their call; empty: Python has to do it. */
variable_list forward_by_kernels(PyObject *const *inputs, PyObject *options, THPObjectPtr &call) {
    uint64_t addresses[MAX_TENSORS];
    call = THPObjectPtr((PyObject *)native->find_forward(inputs, options, 1, addresses));
    if (call.get() != nullptr) return start((PreparedCall *)call.get(), addresses);
    if (native->left_to_python()) throw_python_error();
    return {};
}

/* y, and h with a residual, with their node; empty: Python has to do this call. */
variable_list forward_in_cpp(PyObject *const *inputs, PyObject *options) {
    at::Tensor tensors[N_INPUTS];
    for (int i = 0; i < N_INPUTS; i++) tensors[i] = tensor_of(inputs[i]);
    const at::Tensor &x = tensors[INPUT_X], &residual = tensors[INPUT_RESIDUAL];
    THPObjectPtr call;
    variable_list outputs;
    if (x.is_cpu() && forward_on_cpu != Py_None) outputs = forward_by_cpu_extension(inputs, options);
    else if (native != nullptr) outputs = forward_by_kernels(inputs, options, call);
    if (outputs.empty()) return {};
    auto node = make_node<NormBackward>((NodePointer *)nullptr);
    edge_list edges(N_INPUTS);
    bool is_h_output = false; /* of the node: a term of h needs a gradient */
    for (int i = 0; i < N_INPUTS; i++) {
        if (tensors[i].defined()) edges[i] = impl::gradient_edge(tensors[i]);
        is_h_output |= residual.defined() && is_term_of_h(i) && edges[i].is_valid();
    }
    node->set_next_edges(std::move(edges));
    node->call = (PreparedCall *)call.release();
    node->options = Py_NewRef(options);
    node->x_dtype = x.scalar_type();
    if (residual.defined()) node->residual_dtype = residual.scalar_type();
    node->is_h_output = is_h_output;
    node->has_residual_gate = tensors[INPUT_RESIDUAL_GATE].defined();
    node->plain_keys = outputs[3].key_set();
    set_history(outputs[0], node);
    if (is_h_output) set_history(outputs[1], node);
    at::Tensor to_save[N_SAVED];
    to_save[0] = residual.defined() ? outputs[1] : x;
    for (int i = N_ROWS_OF_H; i < N_INPUTS; i++) {
        /* Of a term of a stored h backward needs only dtype and shape, so it may be modified: a new version counter. A
           residual_gate needs the values of all terms. */
        const bool may_change = residual.defined() && is_term_of_h(i) && tensors[i].defined() && !node->has_residual_gate;
        to_save[1 + i - N_ROWS_OF_H] = may_change ? tensors[i].variable_data() : tensors[i];
    }
    if (node->has_residual_gate) to_save[N_SAVED - 3] = x;
    to_save[N_SAVED - 2] = outputs[2]; /* mu */
    to_save[N_SAVED - 1] = outputs[3]; /* rstd */
    const bool has_hooks = at::SavedTensorDefaultHooks::get_hooks().has_value();
    for (int i = 0; i < N_SAVED; i++) {
        const at::Tensor &t = to_save[i];
        if (has_hooks) node->saved_layouts.push_back(t.defined() ? Layout(t) : Layout());
        else node->saved_addresses[i] = address_of(t);
        const bool is_output = i == 0 && is_h_output;
        /* A hook that keeps an output with its node would keep the node, too. */
        if (is_output && has_hooks) node->saved[i] = SavedVariable(t.detach(), false);
        else if (t.defined()) node->saved[i] = SavedVariable(t, is_output);
    }
    outputs.resize(residual.defined() ? 2 : 1);
    return outputs;
}

/* record(*inputs, options): eager.eager_norm */
PyObject *record(PyObject *, PyObject *const *arguments, Py_ssize_t n) {
    HANDLE_TH_ERRORS
    if (n != N_INPUTS + 1) return PyErr_Format(PyExc_TypeError, "record takes %d arguments", N_INPUTS + 1);
    variable_list outputs = forward_in_cpp(arguments, arguments[N_INPUTS]);
    if (outputs.empty()) return PyObject_Vectorcall(forward_in_python, arguments, n, nullptr);
    if (outputs.size() == 1) return THPVariable_Wrap(std::move(outputs[0]));
    return tuple_of(outputs.data(), (int)outputs.size()).release();
    END_HANDLE_TH_ERRORS
}

/* use(interface of the C extension or None, forward and backward of cpu_native or None, eager_norm, _EagerNorm.backward,
   NodeContext) */
PyObject *use(PyObject *, PyObject *arguments) {
    PyObject *capsule, *objects[5];
    if (!PyArg_ParseTuple(arguments, "OOOOOO:use", &capsule, &objects[0], &objects[1], &objects[2], &objects[3],
                          &objects[4])) return nullptr;
    const Interface *given = nullptr;
    if (capsule != Py_None) {
        given = static_cast<const Interface *>(PyCapsule_GetPointer(capsule, INTERFACE));
        if (given == nullptr) return nullptr;
        if (given->size != sizeof(Interface) || given->prepared_call_size != sizeof(PreparedCall))
            return PyErr_Format(PyExc_RuntimeError, "the C extension has another version of prepared_call.h");
    }
    native = given;
    PyObject **const places[] = {&forward_on_cpu, &backward_on_cpu, &forward_in_python, &backward_in_python, &make_context};
    for (int i = 0; i < 5; i++) Py_XSETREF(*places[i], Py_NewRef(objects[i]));
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"record", (PyCFunction)(void (*)(void))record, METH_FASTCALL, "A norm with gradients: eager.eager_norm"},
    {"use", use, METH_VARARGS, "Take the C extension and the functions of Python."},
    {}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "rownorm_node", nullptr, -1, methods};

/* The type of a node's Python object. Without one of its own it would be no torch.autograd.graph.Node. */
PyTypeObject *make_node_type() {
    static PyGetSetDef properties[] = {
        {"next_functions", THPCppFunction_next_functions, nullptr, nullptr, nullptr},
        {"requires_grad", THPCppFunction_requires_grad, nullptr, nullptr, nullptr},
        {"metadata", THPCppFunction_metadata, nullptr, nullptr, nullptr},
        {"_input_metadata", THPCppFunction_input_metadata, nullptr, nullptr, nullptr},
        {}};
    static PyMethodDef node_methods[] = {
        {"_register_hook_dict", THPCppFunction_register_hook_dict, METH_O, nullptr},
        {"register_hook", THPCppFunction_register_hook, METH_O, nullptr},
        {"register_prehook", THPCppFunction_register_prehook, METH_O, nullptr},
        {"name", THPCppFunction_name, METH_NOARGS, nullptr},
        {"_sequence_nr", THPCppFunction_sequence_nr, METH_NOARGS, nullptr},
        {}};
    static PyTypeObject type;
    if (type.tp_name == nullptr) {
        _initFunctionPyTypeObject(type, "NormBackward", properties, node_methods);
        registerCppFunction(typeid(NormBackward), &type);
    }
    return &type;
}

} // namespace

PyMODINIT_FUNC PyInit_rownorm_node(void) {
    HANDLE_TH_ERRORS
    PyObject *module = PyModule_Create(&definition);
    THPObjectPtr allocator(PyCapsule_New((void *)new_on_cpu, "rownorm_node.allocator", nullptr));
    if (module != nullptr && (!allocator || PyModule_AddObjectRef(module, "allocator", allocator)
                              || PyModule_AddObjectRef(module, "NormBackward", (PyObject *)make_node_type())))
        Py_CLEAR(module);
    return module;
    END_HANDLE_TH_ERRORS
}

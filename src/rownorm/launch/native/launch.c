/* PreparedCall: allocate the outputs of a call and start its kernels, as the function of launcher.bind_all does.

   What it gains: experiment HST-03 in docs/experiments/host.md, the line for no_grad. */

static PyTypeObject PreparedCallType;

/* Read a tuple: the fields of native.Kernel in __init__.py, in their order. */
static int read_kernel(PyObject *described, Kernel *kernel) {
    unsigned long long function;
    unsigned grid, warps, shared, cluster;
    int cooperative;
    PyObject *parameters;
    if (!PyArg_ParseTuple(described, "KIIIpIO!:kernel", &function, &grid, &warps, &shared, &cooperative, &cluster,
                          &PyTuple_Type, &parameters)) return -1;
    kernel->function = (CUfunction)(uintptr_t)function;
    /* The same configuration and attributes as Triton's launcher sets. */
    CUlaunchConfig *config = &kernel->config;
    config->gridDimX = grid * cluster;
    config->blockDimX = 32 * warps;
    config->gridDimY = config->gridDimZ = config->blockDimY = config->blockDimZ = 1;
    config->sharedMemBytes = shared;
    config->attrs = kernel->attributes;
    CUlaunchAttribute *attribute = kernel->attributes;
    if (cooperative) {
        attribute->id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attribute++->value.cooperative = 1;
    }
    if (cluster != 1) {
        attribute->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute->value.clusterDim.x = cluster;
        attribute->value.clusterDim.y = attribute->value.clusterDim.z = 1;
        attribute++;
        attribute->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
        attribute++->value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
    }
    config->numAttrs = (unsigned)(attribute - kernel->attributes);
    kernel->n_parameters = PyTuple_GET_SIZE(parameters);
    if (kernel->n_parameters > MAX_PARAMETERS) {
        PyErr_SetString(PyExc_ValueError, "too many parameters");
        return -1;
    }
    for (Py_ssize_t i = 0; i < kernel->n_parameters; i++) {
        Parameter *parameter = &kernel->parameters[i];
        long long value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parameters, i), "iL:parameter", &parameter->index, &value)) return -1;
        parameter->value = (uint64_t)value;
        if (parameter->index < -1 || parameter->index >= MAX_TENSORS) {
            PyErr_SetString(PyExc_ValueError, "tensor index out of range");
            return -1;
        }
    }
    return 0;
}

_Static_assert(N_INPUTS <= MAX_TENSORS, "find_forward writes the addresses of the inputs");

/* PreparedCall(...): the arguments that native.prepare passes, in its order. */
static PyObject *prepared_call_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    int n_inputs, checks_device;
    PyObject *allocators, *returned, *kernels, *device, *fallback;
    if (!PyArg_ParseTuple(arguments, "iO!O!O!OpO:PreparedCall", &n_inputs, &PyTuple_Type, &allocators, &PyTuple_Type,
                          &returned, &PyTuple_Type, &kernels, &device, &checks_device, &fallback)) return NULL;
    PreparedCall *call = (PreparedCall *)type->tp_alloc(type, 0);
    if (call == NULL) return NULL;
    call->arguments = Py_NewRef(arguments);
    call->device = device;
    call->fallback = fallback;
    call->n_inputs = n_inputs;
    call->checks_device = checks_device;
    call->n_allocated = PyTuple_GET_SIZE(allocators);
    call->n_returned = PyTuple_GET_SIZE(returned);
    call->n_kernels = PyTuple_GET_SIZE(kernels);
    if (n_inputs < 0 || n_inputs + call->n_allocated > MAX_TENSORS || call->n_returned > MAX_RETURNED) {
        PyErr_SetString(PyExc_ValueError, "too many tensors");
        goto error;
    }
    call->kernels = PyMem_Calloc(call->n_kernels ? call->n_kernels : 1, sizeof(Kernel));
    if (call->kernels == NULL) {
        PyErr_NoMemory();
        goto error;
    }
    for (Py_ssize_t i = 0; i < call->n_allocated; i++)
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(allocators, i), "OO!:allocator", &call->allocators[i], &PyTuple_Type,
                              &call->allocator_arguments[i])) goto error;
    for (Py_ssize_t i = 0; i < call->n_returned; i++) {
        call->returned[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(returned, i));
        if (!PyErr_Occurred() && (call->returned[i] < -1 || call->returned[i] >= call->n_allocated))
            PyErr_SetString(PyExc_ValueError, "tensor index out of range");
    }
    if (PyErr_Occurred()) goto error;
    for (Py_ssize_t i = 0; i < call->n_kernels; i++)
        if (read_kernel(PyTuple_GET_ITEM(kernels, i), &call->kernels[i])) goto error;
    return (PyObject *)call;
error:
    Py_DECREF(call);
    return NULL;
}

static int prepared_call_traverse(PreparedCall *call, visitproc visit, void *arg) {
    Py_VISIT(call->arguments);
    for (int i = 0; i < MAX_BACKWARD_CALLS; i++) Py_VISIT(call->backward_calls[i].call);
    return 0;
}

/* Break reference cycles. A finalizer of another object in the cycle may call this object later, so ``arguments`` is
   released in dealloc. */
static int prepared_call_clear(PreparedCall *call) {
    for (int i = 0; i < MAX_BACKWARD_CALLS; i++) Py_CLEAR(call->backward_calls[i].call);
    return 0;
}

static void prepared_call_dealloc(PreparedCall *call) {
    PyObject_GC_UnTrack(call);
    prepared_call_clear(call);
    Py_XDECREF(call->arguments);
    if (call->allocations != NULL) call->free_allocations(call->allocations);
    PyMem_Free(call->kernels);
    Py_TYPE(call)->tp_free((PyObject *)call);
}

/* Whether a launch hook of Triton has callbacks, for a profiler for example. */
static int has_callbacks(PyObject *name) {
    PyObject *hook = PyObject_GetAttr(runtime, name);
    if (hook == NULL || hook == Py_None) return is_true(hook);
    PyObject *calls = PyObject_GetAttr(hook, s_calls);
    Py_DECREF(hook);
    return is_true(calls);
}

/* Whether Python has to do this call: 1 or 0; -1 with an exception. A thread without a CUDA context is one reason:
   Triton's launcher creates it. */
static int needs_python(PreparedCall *call) {
    CUcontext context = NULL;
    if (current_context == NULL || current_context(&context) || context == NULL) return 1;
    int has_hooks = has_callbacks(s_enter);
    if (has_hooks == 0) has_hooks = has_callbacks(s_exit);
    if (has_hooks || !call->checks_device) return has_hooks;
    PyObject *device = PyObject_CallNoArgs(current_device);
    int is_current = device == NULL ? -1 : PyObject_RichCompareBool(device, call->device, Py_EQ);
    Py_XDECREF(device);
    return is_current < 0 ? -1 : !is_current;
}

static int launch(const Kernel *kernel, uint64_t *addresses, CUstream stream) {
    void *parameters[MAX_PARAMETERS];
    for (Py_ssize_t i = 0; i < kernel->n_parameters; i++) {
        const Parameter *parameter = &kernel->parameters[i];
        parameters[i] = parameter->index < 0 ? (void *)&parameter->value : &addresses[parameter->index];
    }
    CUlaunchConfig config = kernel->config;
    config.hStream = stream;
    CUresult result;
    Py_BEGIN_ALLOW_THREADS; /* the driver blocks while its queue is full */
    result = launch_kernel(&config, kernel->function, parameters, NULL);
    Py_END_ALLOW_THREADS;
    if (result == CUDA_SUCCESS) return 0;
    const char *text = NULL;
    if (error_string == NULL || error_string(result, &text) || text == NULL) text = "an unknown error";
    PyErr_Format(PyExc_RuntimeError, "CUDA could not start a kernel: %s (%d)", text, (int)result);
    return -1;
}

/* Start the kernels of a call on the current stream. addresses: those of the inputs and of the allocated tensors. */
static int launch_kernels(PreparedCall *call, uint64_t *addresses) {
    PyObject *number = PyObject_CallOneArg(current_stream, call->device);
    if (number == NULL) return -1;
    CUstream stream = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (PyErr_Occurred()) return -1;
    for (Py_ssize_t i = 0; i < call->n_kernels; i++)
        if (launch(&call->kernels[i], addresses, stream)) return -1;
    return 0;
}

/* Allocate, start the kernels, and return the tuple of returned tensors. NULL without an exception: Python has to do
   this call.

   addresses: MAX_TENSORS of them, the first ``n_inputs`` filled in. The others are added here. */
static PyObject *start(PreparedCall *call, uint64_t *addresses) {
    if (needs_python(call)) return NULL;
    PyObject *allocated[MAX_TENSORS], *answer = NULL;
    Py_ssize_t n_allocated = 0;
    uint64_t *next = addresses + call->n_inputs;
    for (; n_allocated < call->n_allocated; n_allocated++) {
        PyObject *tensor = PyObject_Call(call->allocators[n_allocated], call->allocator_arguments[n_allocated], NULL);
        if (tensor == NULL) goto done;
        allocated[n_allocated] = tensor;
        if (address_of(tensor, next++)) {
            n_allocated++;
            goto done;
        }
    }
    if (launch_kernels(call, addresses)) goto done;
    answer = PyTuple_New(call->n_returned);
    for (Py_ssize_t i = 0; answer != NULL && i < call->n_returned; i++)
        PyTuple_SET_ITEM(answer, i, Py_NewRef(call->returned[i] < 0 ? Py_None : allocated[call->returned[i]]));
done:
    while (n_allocated) Py_DECREF(allocated[--n_allocated]);
    return answer;
}

/* call(inputs, addresses), as launcher.PreparedCall describes it. */
static PyObject *prepared_call_call(PreparedCall *call, PyObject *arguments, PyObject *keywords) {
    PyObject *inputs, *list;
    if (!PyArg_ParseTuple(arguments, "OO!:PreparedCall", &inputs, &PyList_Type, &list)) return NULL;
    if (PyList_GET_SIZE(list) != call->n_inputs)
        return PyErr_Format(PyExc_ValueError, "%d tensors expected, got %zd", call->n_inputs, PyList_GET_SIZE(list));
    uint64_t addresses[MAX_TENSORS];
    for (int i = 0; i < call->n_inputs; i++) {
        PyObject *number = PyList_GET_ITEM(list, i);
        addresses[i] = number == Py_None ? 0 : PyLong_AsUnsignedLongLong(number);
    }
    if (PyErr_Occurred()) return NULL;
    PyObject *answer = start(call, addresses);
    return answer != NULL || PyErr_Occurred() ? answer : PyObject_Call(call->fallback, arguments, NULL);
}

static PyObject *prepared_call_arguments(PreparedCall *call, void *closure) { return Py_NewRef(call->arguments); }

static PyGetSetDef prepared_call_getset[] = {
    {"arguments", (getter)prepared_call_arguments, NULL, "the arguments of PreparedCall(...)", NULL}, {NULL}};

static PyTypeObject PreparedCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rownorm.launch.native.PreparedCall",
    .tp_doc = "PreparedCall(n_inputs, allocators, returned, kernels, device, checks_device, fallback)",
    .tp_basicsize = sizeof(PreparedCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = prepared_call_new,
    .tp_dealloc = (destructor)prepared_call_dealloc,
    .tp_traverse = (traverseproc)prepared_call_traverse,
    .tp_clear = (inquiry)prepared_call_clear,
    .tp_call = (ternaryfunc)prepared_call_call,
    .tp_getset = prepared_call_getset,
};

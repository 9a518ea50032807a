/* What the other C files share: the objects that Python hands in, and helpers.

   The files are compiled as one, in the order of native.SOURCES, when a kernel is first needed. Python stays the
   complete implementation: launcher.py and ops/execute.py decide how a call is done, once for each kind of call, and can
   do all of it. The C repeats the usual call with fewer Python objects. A call that is unusual in any way goes to the
   Python function, with its arguments unchanged.

   Two conventions hold in all files:
     - A function that returns an object and does a call returns NULL without an exception where Python has to do that
       call; NULL with an exception is an error.
     - A function that answers a question returns 1 (yes), 0 (no) or -1 (an error, with an exception). A function that
       only does something returns 0, or -1 with an exception.

   Nothing of torch or of the CUDA driver is linked. Python passes their functions to ``use``, ``use_driver`` and
   ``use_dlpack`` (module.c). A tensor argument that is None has the address 0. */

typedef CUresult (*LaunchKernel)(const CUlaunchConfig *, CUfunction, void **, void **);
typedef CUresult (*ErrorString)(CUresult, const char **);
typedef CUresult (*CurrentContext)(CUcontext *);

static LaunchKernel launch_kernel;
static ErrorString error_string;
static CurrentContext current_context;
static const DLPackExchangeAPI *dlpack; /* torch's: reads a tensor without a call of Python */

/* Objects that ``use`` receives, by name: for launching, for tensors, for ``norm``. */
static PyObject *runtime, *current_stream, *current_device;
static PyObject *is_neg, *tensor_type, *parameter_type;
static PyObject *find_forward_in_python, *find_backward, *record;
static PyObject *has_memory_in_python; /* checks.has_memory */
static PyObject *forward_on_cpu; /* of ops/cpu_native; None: there is none */
static PyObject *is_grad_enabled, *is_inference_mode_enabled, *is_autocast_enabled, *autocast_options;
static PyObject *conditions, *forward_ad;
static PyObject *has_function_modes, *function_stack_size, *function_stack_at, *device_mode_type;
static PyObject *disable_function_modes;

static const struct { const char *name; PyObject **object; } SETTINGS[] = {
    {"runtime", &runtime}, {"current_stream", &current_stream}, {"current_device", &current_device},
    {"is_neg", &is_neg}, {"tensor_type", &tensor_type}, {"parameter_type", &parameter_type},
    {"find_forward", &find_forward_in_python}, {"find_backward", &find_backward}, {"record", &record},
    {"has_memory", &has_memory_in_python}, {"forward_on_cpu", &forward_on_cpu},
    {"is_grad_enabled", &is_grad_enabled}, {"is_inference_mode_enabled", &is_inference_mode_enabled},
    {"is_autocast_enabled", &is_autocast_enabled}, {"autocast_options", &autocast_options},
    {"conditions", &conditions}, {"forward_ad", &forward_ad}, {"has_function_modes", &has_function_modes},
    {"function_stack_size", &function_stack_size}, {"function_stack_at", &function_stack_at},
    {"device_mode_type", &device_mode_type}, {"disable_function_modes", &disable_function_modes},
};

/* Interned names of attributes. */
static PyObject *s_enter, *s_exit, *s_calls, *s_level, *s_requires_grad, *s_enter_context, *s_exit_context;

static const struct { const char *name; PyObject **object; } NAMES[] = {
    {"launch_enter_hook", &s_enter}, {"launch_exit_hook", &s_exit}, {"calls", &s_calls},
    {"_current_level", &s_level}, {"requires_grad", &s_requires_grad}, {"__enter__", &s_enter_context},
    {"__exit__", &s_exit_context},
};

/* Whether ``answer``, a new reference that is released here, is true: 1 or 0; -1 with an exception. */
static int is_true(PyObject *answer) {
    if (answer == NULL) return -1;
    int truth = answer == Py_False || answer == Py_None ? 0 : PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return truth;
}

/* Describe a tensor: its address, shape, strides, dtype and device, valid while the tensor is. Returns -1 with an
   exception where it has no storage. */
static int describe(PyObject *tensor, DLTensor *described) {
    return dlpack->dltensor_from_py_object_no_sync(tensor, described);
}

static uint64_t address_in(const DLTensor *described) {
    return (uint64_t)(uintptr_t)described->data + described->byte_offset;
}

/* The address of a tensor's data; 0 for None. Returns -1 with an exception where a tensor has no storage. */
static int address_of(PyObject *tensor, uint64_t *address) {
    DLTensor described;
    *address = 0;
    if (tensor == Py_None) return 0;
    if (describe(tensor, &described)) return -1;
    *address = address_in(&described);
    return 0;
}

/* Whether there is memory for a tensor's elements: 1 or 0; -1 with an exception. The address of a tensor whose storage was
   freed is its offset there; checks.LOW_ADDRESS gives the reason for the bound. */
static int has_memory(PyObject *tensor, uint64_t address) {
    if (address >> 32) return 1;
    return has_memory_in_python == NULL ? 0 : is_true(PyObject_CallOneArg(has_memory_in_python, tensor));
}

/* A new reference to a tuple of these objects. */
static PyObject *tuple_of(PyObject *const *objects, Py_ssize_t n) {
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple != NULL && i < n; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(objects[i]));
    return tuple;
}

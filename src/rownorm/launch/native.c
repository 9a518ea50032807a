/* The shortest way from a call to its kernels: what every call repeats, and nothing else.

   launcher.py and ops/eager.py say what happens, decide it once for each kind of call, and can do all of it. Here the
   usual call is done again with fewer Python objects: in autograd's thread each of them has to come from another core.
   Whatever is unusual goes back to the Python function, as if nothing had been tried.

   Nothing of torch or of the driver is linked: Python hands in the functions (``use``). A tensor that is not there has
   the address 0. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cuda.h>
#include <stdint.h>

enum { MOST_TENSORS = 32, MOST_PARAMETERS = 48, MOST_RETURNED = 8, REMEMBERED = 4 };

typedef CUresult (*LaunchKernel)(const CUlaunchConfig *, CUfunction, void **, void **);
typedef CUresult (*ErrorString)(CUresult, const char **);
typedef CUresult (*CurrentContext)(CUcontext *);

static LaunchKernel launch_kernel;
static ErrorString error_string;
static CurrentContext current_context;
static unsigned generation; /* counts how often plans may have changed */

/* What Python hands in: of launching, of tensors, of the eager autograd function. */
static PyObject *runtime, *current_stream, *current_device;
static PyObject *data_ptr, *is_contiguous, *stride, *get_device, *is_neg, *tensor_type;
static PyObject *forward_runs, *forward_in_python, *backward_in_python, *find_backward;
static PyObject *questions, *forward_ad, *saved_tensors_hooks;

static const struct { const char *name; PyObject **place; } SETTINGS[] = {
    {"runtime", &runtime}, {"current_stream", &current_stream}, {"current_device", &current_device},
    {"data_ptr", &data_ptr}, {"is_contiguous", &is_contiguous}, {"stride", &stride},
    {"get_device", &get_device}, {"is_neg", &is_neg}, {"tensor_type", &tensor_type},
    {"forward_runs", &forward_runs}, {"forward_in_python", &forward_in_python},
    {"backward_in_python", &backward_in_python}, {"find_backward", &find_backward},
    {"questions", &questions}, {"forward_ad", &forward_ad}, {"saved_tensors_hooks", &saved_tensors_hooks},
};

/* Names of attributes. */
static PyObject *s_enter, *s_exit, *s_calls, *s_level, *s_known, *s_saved, *s_needs, *s_to_save, *s_materialize;
static PyObject *s_shape, *s_dtype, *s_is_cpu;

static const struct { const char *name; PyObject **place; } NAMES[] = {
    {"launch_enter_hook", &s_enter}, {"launch_exit_hook", &s_exit}, {"calls", &s_calls},
    {"_current_level", &s_level}, {"known", &s_known}, {"saved_tensors", &s_saved},
    {"needs_input_grad", &s_needs}, {"to_save", &s_to_save}, {"materialize_grads", &s_materialize},
    {"shape", &s_shape}, {"dtype", &s_dtype}, {"is_cpu", &s_is_cpu},
};

/* Whether a new reference is true; it is let go. -1: an error. */
static int is_true(PyObject *answer) {
    if (answer == NULL) return -1;
    int truth = answer == Py_False || answer == Py_None ? 0 : PyObject_IsTrue(answer);
    Py_DECREF(answer);
    return truth;
}

static int address_of(PyObject *tensor, uint64_t *address) {
    *address = 0;
    if (tensor == Py_None) return 0;
    PyObject *number = PyObject_CallOneArg(data_ptr, tensor);
    if (number == NULL) return -1;
    *address = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    return *address == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

/* ---- Run: launcher.bind_all's function */

typedef struct {
    int place;      /* among the addresses; -1: a constant */
    uint64_t value; /* of which the kernel reads the first bytes */
} Parameter;

typedef struct {
    CUfunction function;
    CUlaunchConfig config; /* but for the stream */
    CUlaunchAttribute attributes[3];
    Py_ssize_t n_parameters;
    Parameter parameters[MOST_PARAMETERS];
} Kernel;

typedef struct {
    unsigned key, generation;
    PyObject *run; /* a Run, None where it has to be Python's, or NULL */
} Remembered;

typedef struct {
    PyObject_HEAD
    PyObject *arguments;  /* what it was made of; everything below that is an object is borrowed from it */
    PyObject *device, *otherwise;
    int n_given, is_guarded;
    Py_ssize_t n_makers, n_fixed, n_returned, n_kernels;
    PyObject *functions[MOST_TENSORS], *function_arguments[MOST_TENSORS];
    uint64_t fixed[MOST_TENSORS];
    int returned[MOST_RETURNED];           /* places among what is made; -1: None */
    Remembered backward[REMEMBERED]; /* for a forward run */
    Kernel *kernels;
} Run;

static PyTypeObject RunType;

static int read_kernel(PyObject *described, Kernel *kernel) {
    unsigned long long function;
    unsigned grid, warps, shared, cluster;
    int cooperative;
    PyObject *parameters;
    if (!PyArg_ParseTuple(described, "KIIIpIO!:kernel", &function, &grid, &warps, &shared, &cooperative, &cluster,
                          &PyTuple_Type, &parameters)) return -1;
    kernel->function = (CUfunction)(uintptr_t)function;
    /* As Triton's launcher has it. */
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
    if (kernel->n_parameters > MOST_PARAMETERS) {
        PyErr_SetString(PyExc_ValueError, "too many parameters");
        return -1;
    }
    for (Py_ssize_t i = 0; i < kernel->n_parameters; i++) {
        Parameter *parameter = &kernel->parameters[i];
        long long value;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parameters, i), "iL:parameter", &parameter->place, &value)) return -1;
        parameter->value = (uint64_t)value;
        if (parameter->place < -1 || parameter->place >= MOST_TENSORS) {
            PyErr_SetString(PyExc_ValueError, "no such place");
            return -1;
        }
    }
    return 0;
}

static PyObject *run_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    int n_given, is_guarded;
    PyObject *makers, *tensors, *addresses, *returned, *kernels, *device, *otherwise;
    if (!PyArg_ParseTuple(arguments, "iO!OO!O!O!OpO:Run", &n_given, &PyTuple_Type, &makers, &tensors, &PyTuple_Type,
                          &addresses, &PyTuple_Type, &returned, &PyTuple_Type, &kernels, &device, &is_guarded,
                          &otherwise)) return NULL;
    Run *run = (Run *)type->tp_alloc(type, 0);
    if (run == NULL) return NULL;
    run->arguments = Py_NewRef(arguments);
    run->device = device;
    run->otherwise = otherwise;
    run->n_given = n_given;
    run->is_guarded = is_guarded;
    run->n_makers = PyTuple_GET_SIZE(makers);
    run->n_fixed = PyTuple_GET_SIZE(addresses);
    run->n_returned = PyTuple_GET_SIZE(returned);
    run->n_kernels = PyTuple_GET_SIZE(kernels);
    if (n_given < 0 || n_given + run->n_makers + run->n_fixed > MOST_TENSORS || run->n_returned > MOST_RETURNED) {
        PyErr_SetString(PyExc_ValueError, "too many tensors");
        goto wrong;
    }
    run->kernels = PyMem_Calloc(run->n_kernels ? run->n_kernels : 1, sizeof(Kernel));
    if (run->kernels == NULL) {
        PyErr_NoMemory();
        goto wrong;
    }
    for (Py_ssize_t i = 0; i < run->n_makers; i++)
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(makers, i), "OO!:maker", &run->functions[i], &PyTuple_Type,
                              &run->function_arguments[i])) goto wrong;
    for (Py_ssize_t i = 0; i < run->n_fixed; i++)
        run->fixed[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(addresses, i));
    for (Py_ssize_t i = 0; i < run->n_returned; i++) {
        run->returned[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(returned, i));
        if (!PyErr_Occurred() && (run->returned[i] < -1 || run->returned[i] >= run->n_makers))
            PyErr_SetString(PyExc_ValueError, "no such place");
    }
    if (PyErr_Occurred()) goto wrong;
    for (Py_ssize_t i = 0; i < run->n_kernels; i++)
        if (read_kernel(PyTuple_GET_ITEM(kernels, i), &run->kernels[i])) goto wrong;
    return (PyObject *)run;
wrong:
    Py_DECREF(run);
    return NULL;
}

static int run_traverse(Run *run, visitproc visit, void *arg) {
    Py_VISIT(run->arguments);
    for (int i = 0; i < REMEMBERED; i++) Py_VISIT(run->backward[i].run);
    return 0;
}

/* It may be called while it is cleared: what it was made of stays until it goes itself. */
static int run_clear(Run *run) {
    for (int i = 0; i < REMEMBERED; i++) Py_CLEAR(run->backward[i].run);
    return 0;
}

static void run_dealloc(Run *run) {
    PyObject_GC_UnTrack(run);
    run_clear(run);
    Py_XDECREF(run->arguments);
    PyMem_Free(run->kernels);
    Py_TYPE(run)->tp_free((PyObject *)run);
}

/* Whether somebody asked Triton to be told of launches. */
static int hook_listens(PyObject *name) {
    PyObject *hook = PyObject_GetAttr(runtime, name);
    if (hook == NULL || hook == Py_None) return is_true(hook);
    PyObject *calls = PyObject_GetAttr(hook, s_calls);
    Py_DECREF(hook);
    return is_true(calls);
}

/* Whether a run has to be Python's. A thread without a context is given one by Triton's launcher. */
static int is_unusual(Run *run) {
    CUcontext context = NULL;
    if (current_context == NULL || current_context(&context) || context == NULL) return 1;
    int heard = hook_listens(s_enter);
    if (heard == 0) heard = hook_listens(s_exit);
    if (heard || !run->is_guarded) return heard;
    PyObject *device = PyObject_CallNoArgs(current_device);
    int is_here = device == NULL ? -1 : PyObject_RichCompareBool(device, run->device, Py_EQ);
    Py_XDECREF(device);
    return is_here < 0 ? -1 : !is_here;
}

static int launch(const Kernel *kernel, uint64_t *addresses, CUstream stream) {
    void *parameters[MOST_PARAMETERS];
    for (Py_ssize_t i = 0; i < kernel->n_parameters; i++) {
        const Parameter *parameter = &kernel->parameters[i];
        parameters[i] = parameter->place < 0 ? (void *)&parameter->value : &addresses[parameter->place];
    }
    CUlaunchConfig config = kernel->config;
    config.hStream = stream;
    CUresult result;
    Py_BEGIN_ALLOW_THREADS; /* it blocks while the queue is full */
    result = launch_kernel(&config, kernel->function, parameters, NULL);
    Py_END_ALLOW_THREADS;
    if (result == CUDA_SUCCESS) return 0;
    const char *text = NULL;
    if (error_string == NULL || error_string(result, &text) || text == NULL) text = "an unknown error";
    PyErr_Format(PyExc_RuntimeError, "CUDA could not start a kernel: %s (%d)", text, (int)result);
    return -1;
}

/* Make what is made, start the kernels, return what is returned. NULL without an exception: it is for Python.

   addresses: those of the given tensors, with room for all; the others are added. */
static PyObject *start(Run *run, uint64_t *addresses) {
    int unusual = is_unusual(run);
    if (unusual) return NULL;
    PyObject *made[MOST_TENSORS], *answer = NULL;
    Py_ssize_t n_made = 0;
    uint64_t *next = addresses + run->n_given;
    for (; n_made < run->n_makers; n_made++) {
        made[n_made] = PyObject_Call(run->functions[n_made], run->function_arguments[n_made], NULL);
        if (made[n_made] == NULL) goto done;
        if (address_of(made[n_made], next++)) {
            n_made++;
            goto done;
        }
    }
    for (Py_ssize_t i = 0; i < run->n_fixed; i++) *next++ = run->fixed[i];
    PyObject *number = PyObject_CallOneArg(current_stream, run->device);
    if (number == NULL) goto done;
    CUstream stream = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (PyErr_Occurred()) goto done;
    for (Py_ssize_t i = 0; i < run->n_kernels; i++)
        if (launch(&run->kernels[i], addresses, stream)) goto done;
    answer = PyTuple_New(run->n_returned);
    for (Py_ssize_t i = 0; answer != NULL && i < run->n_returned; i++)
        PyTuple_SET_ITEM(answer, i, Py_NewRef(run->returned[i] < 0 ? Py_None : made[run->returned[i]]));
done:
    while (n_made) Py_DECREF(made[--n_made]);
    return answer;
}

/* run(given, addresses), as launcher.bind_all has it. */
static PyObject *run_call(Run *run, PyObject *arguments, PyObject *keywords) {
    PyObject *given, *list;
    if (!PyArg_ParseTuple(arguments, "OO!:run", &given, &PyList_Type, &list)) return NULL;
    if (PyList_GET_SIZE(list) != run->n_given)
        return PyErr_Format(PyExc_ValueError, "%d tensors expected, got %zd", run->n_given, PyList_GET_SIZE(list));
    uint64_t addresses[MOST_TENSORS];
    for (int i = 0; i < run->n_given; i++) {
        PyObject *number = PyList_GET_ITEM(list, i);
        addresses[i] = number == Py_None ? 0 : PyLong_AsUnsignedLongLong(number);
    }
    if (PyErr_Occurred()) return NULL;
    PyObject *answer = start(run, addresses);
    return answer != NULL || PyErr_Occurred() ? answer : PyObject_Call(run->otherwise, arguments, NULL);
}

static PyObject *run_arguments(Run *run, void *closure) { return Py_NewRef(run->arguments); }

static PyGetSetDef run_getset[] = {
    {"arguments", (getter)run_arguments, NULL, "what it was made of", NULL}, {NULL}};

static PyTypeObject RunType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rownorm.launch.native.Run",
    .tp_doc = "Run(n_given, makers, fixed, their addresses, returned, kernels, device, is_guarded, otherwise)",
    .tp_basicsize = sizeof(Run),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = run_new,
    .tp_dealloc = (destructor)run_dealloc,
    .tp_traverse = (traverseproc)run_traverse,
    .tp_clear = (inquiry)run_clear,
    .tp_call = (ternaryfunc)run_call,
    .tp_getset = run_getset,
};

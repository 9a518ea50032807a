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

/* ---- Kept: what forward leaves for backward, eager.py's ctx.known. It holds no way back to itself. */

typedef struct {
    PyObject_HEAD
    Run *run;
    PyObject *mu, *rstd, *options, *x_dtype, *residual_dtype;
    uint64_t places[4];     /* of h, pre_bias, weight, bias: what autograd has to give back */
    uint64_t statistics[2]; /* nobody else has these: they stay where they are */
} Kept;

static void kept_dealloc(Kept *kept) {
    Py_XDECREF(kept->run);
    Py_XDECREF(kept->mu);
    Py_XDECREF(kept->rstd);
    Py_XDECREF(kept->options);
    Py_XDECREF(kept->x_dtype);
    Py_XDECREF(kept->residual_dtype);
    PyObject_Free(kept);
}

/* For Python it reads as the tuple that eager.py would have left. */
static PyObject *kept_iter(Kept *kept) {
    PyObject *places = PyList_New(4);
    for (int i = 0; places != NULL && i < 4; i++) {
        uint64_t place = kept->places[i];
        PyObject *number = place ? PyLong_FromUnsignedLongLong(place) : Py_NewRef(Py_None);
        if (number == NULL) Py_CLEAR(places);
        else PyList_SET_ITEM(places, i, number);
    }
    PyObject *known = places == NULL ? NULL : Py_BuildValue("(ON(OO)OOO)", kept->run, places, kept->mu, kept->rstd,
                                                          kept->options, kept->x_dtype, kept->residual_dtype);
    PyObject *iterator = known == NULL ? NULL : PyObject_GetIter(known);
    Py_XDECREF(known);
    return iterator;
}

static PyTypeObject KeptType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rownorm.launch.native.Kept",
    .tp_basicsize = sizeof(Kept),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)kept_dealloc,
    .tp_iter = (getiterfunc)kept_iter,
};

/* ---- forward: execute.find_forward, and _EagerNorm.forward */

/* How a tensor lies: True where it is contiguous, else its strides. */
static PyObject *layout(PyObject *tensor) {
    PyObject *contiguous = PyObject_CallOneArg(is_contiguous, tensor);
    if (contiguous != Py_False) return contiguous;
    Py_DECREF(contiguous);
    return PyObject_CallOneArg(stride, tensor);
}

/* execute._facts, into a new tuple from ``place`` on. */
static int put_facts(PyObject *tuple, Py_ssize_t place, PyObject *tensor, uint64_t address) {
    PyObject *facts[] = {PyObject_GetAttr(tensor, s_shape),  layout(tensor),
                         PyObject_GetAttr(tensor, s_dtype),  PyObject_CallOneArg(get_device, tensor),
                         PyObject_GetAttr(tensor, s_is_cpu), PyLong_FromLong((long)(address & 15))};
    int missing = 0;
    for (int i = 0; i < 6; i++) {
        PyTuple_SET_ITEM(tuple, place + i, facts[i]);
        missing |= facts[i] == NULL;
    }
    return missing;
}

/* The run for these tensors, borrowed, and their addresses; NULL, with an exception or without, where Python has to
   look. given: x, residual, pre_bias, weight, bias. */
static Run *find(PyObject *const *given, PyObject *options, PyObject *want_statistics, uint64_t *addresses) {
    for (int i = 0; i < 5; i++)
        if (address_of(given[i], &addresses[i]) || (addresses[i] == 0 && given[i] != Py_None)) return NULL;
    PyObject *key = PyTuple_New(12), *run = NULL;
    if (key == NULL) return NULL;
    PyTuple_SET_ITEM(key, 0, Py_NewRef(options));
    PyTuple_SET_ITEM(key, 1, Py_NewRef(want_statistics));
    int wrong = put_facts(key, 2, given[0], addresses[0]);
    for (int i = 1; i < 5 && !wrong; i++) {
        PyObject *facts = given[i] == Py_None ? Py_NewRef(Py_None) : PyTuple_New(6);
        PyTuple_SET_ITEM(key, 7 + i, facts);
        wrong = facts == NULL || (facts != Py_None && put_facts(facts, 0, given[i], addresses[i]));
    }
    if (!wrong) run = PyDict_GetItemWithError(forward_runs, key);
    Py_DECREF(key);
    return run != NULL && Py_IS_TYPE(run, &RunType) ? (Run *)run : NULL;
}

/* forward(ctx, x, residual, pre_bias, weight, bias, options) */
static PyObject *forward(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    uint64_t addresses[MOST_TENSORS];
    Kept *kept = NULL;
    PyObject *saved = NULL, *made = NULL, *answer = NULL;
    if (n != 7) return PyObject_Vectorcall(forward_in_python, arguments, n, NULL);
    PyObject *ctx = arguments[0], *const *given = arguments + 1, *options = arguments[6];
    int has_residual = given[1] != Py_None;
    PyObject *hooks = PyObject_CallOneArg(saved_tensors_hooks, Py_True);
    int has_hooks = is_true(hooks);
    Run *run = has_hooks ? NULL : find(given, options, Py_True, addresses);
    if (run != NULL) {
        Py_INCREF(run);
        made = start(run, addresses);
    }
    if (made == NULL) {
        Py_XDECREF(run);
        if (run != NULL && PyErr_Occurred()) return NULL;
        PyErr_Clear(); /* a tensor without storage, an option that cannot be hashed: Python has words for these */
        return PyObject_Vectorcall(forward_in_python, arguments, n, NULL);
    }
    PyObject *y = PyTuple_GET_ITEM(made, 0), *h = PyTuple_GET_ITEM(made, 1);
    kept = PyObject_New(Kept, &KeptType);
    if (kept == NULL) {
        Py_DECREF(run);
        goto done;
    }
    kept->run = run;
    kept->mu = Py_NewRef(PyTuple_GET_ITEM(made, 2));
    kept->rstd = Py_NewRef(PyTuple_GET_ITEM(made, 3));
    kept->options = Py_NewRef(options);
    kept->x_dtype = PyObject_GetAttr(given[0], s_dtype);
    kept->residual_dtype = has_residual ? PyObject_GetAttr(given[1], s_dtype) : Py_NewRef(Py_None);
    if (kept->x_dtype == NULL || kept->residual_dtype == NULL) goto done;
    for (int i = 1; i < 4; i++) kept->places[i] = addresses[1 + i];
    kept->places[0] = addresses[0];
    if (has_residual && address_of(h, &kept->places[0])) goto done;
    if (address_of(kept->mu, &kept->statistics[0]) || address_of(kept->rstd, &kept->statistics[1])) goto done;
    saved = PyTuple_Pack(4, has_residual ? h : given[0], given[2], given[3], given[4]);
    /* What ctx.save_for_backward and ctx.set_materialize_grads do. */
    if (saved == NULL || PyObject_SetAttr(ctx, s_to_save, saved) || PyObject_SetAttr(ctx, s_materialize, Py_False)
        || PyObject_SetAttr(ctx, s_known, (PyObject *)kept)) goto done;
    answer = has_residual ? PyTuple_Pack(2, y, h) : Py_NewRef(y);
done:
    Py_XDECREF(saved);
    Py_XDECREF(kept);
    Py_DECREF(made);
    return answer;
}

/* ---- backward: _EagerNorm.backward */

/* Whether a gradient that comes in is a plain tensor: 1, 0, or -1 for an error. */
static int is_plain(PyObject *tensor) {
    if (!Py_IS_TYPE(tensor, (PyTypeObject *)tensor_type)) return 0;
    int negative = is_true(PyObject_CallOneArg(is_neg, tensor));
    return negative < 0 ? -1 : !negative;
}

/* listeners.nothing_listens_to_backward */
static int nothing_listens(PyObject *dy, PyObject *dh) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(questions); i++) {
        int yes = is_true(PyObject_CallNoArgs(PyTuple_GET_ITEM(questions, i)));
        if (yes) return yes < 0 ? -1 : 0;
    }
    PyObject *number = PyObject_GetAttr(forward_ad, s_level);
    if (number == NULL) return -1;
    long level = PyLong_AsLong(number);
    Py_DECREF(number);
    if (level >= 0) return 0;
    if (PyErr_Occurred()) return -1;
    int plain = is_plain(dy);
    return plain == 1 && dh != Py_None ? is_plain(dh) : plain;
}

/* How a gradient lies, in five bits; -1 where it is not contiguous, or its address is not to be had. */
static int lies(PyObject *tensor, uint64_t *address) {
    if (tensor == Py_None) return *address = 0;
    if (address_of(tensor, address) || is_true(PyObject_CallOneArg(is_contiguous, tensor)) != 1) return -1;
    return 16 | (int)(*address & 15);
}

/* The backward run of a forward run, borrowed; None, or NULL with an exception, where there is none. */
static PyObject *remembered(Run *run, unsigned key, PyObject *ctx, PyObject *dy, PyObject *dh) {
    for (int i = 0; i < REMEMBERED; i++) {
        Remembered *one = &run->backward[i];
        if (one->run != NULL && one->key == key && one->generation == generation) return one->run;
    }
    unsigned now = generation;
    PyObject *found = PyObject_CallFunctionObjArgs(find_backward, ctx, dy, dh, NULL);
    if (found == NULL) return NULL;
    Remembered last = run->backward[REMEMBERED - 1];
    memmove(run->backward + 1, run->backward, (REMEMBERED - 1) * sizeof(Remembered));
    run->backward[0] = (Remembered){key, now, found};
    Py_XDECREF(last.run);
    return found;
}

/* _EagerNorm.backward(ctx, dy, dh=None) for the usual call. NULL without an exception: it is for Python. */
static PyObject *usual_backward(PyObject *ctx, PyObject *dy, PyObject *dh) {
    uint64_t addresses[MOST_TENSORS];
    PyObject *needs = NULL, *saved = NULL, *answer = NULL;
    PyObject *known = PyObject_GetAttr(ctx, s_known);
    if (known == NULL || !Py_IS_TYPE(known, &KeptType) || dy == Py_None) goto done;
    Kept *kept = (Kept *)known;
    saved = PyObject_GetAttr(ctx, s_saved); /* fails where they are gone, or were written to */
    if (saved == NULL || nothing_listens(dy, dh) != 1) goto done;
    int dy_lies = lies(dy, &addresses[0]), dh_lies = lies(dh, &addresses[1]);
    if (dy_lies < 0 || dh_lies < 0) {
        PyErr_Clear(); /* gradients that autograd batches have no storage */
        goto done;
    }
    if (!PyTuple_CheckExact(saved) || PyTuple_GET_SIZE(saved) != 4) goto done;
    for (int i = 0; i < 4; i++)
        if (address_of(PyTuple_GET_ITEM(saved, i), &addresses[2 + i]) || addresses[2 + i] != kept->places[i]) {
            PyErr_Clear();
            goto done;
        }
    memcpy(&addresses[6], kept->statistics, sizeof kept->statistics);
    needs = PyObject_GetAttr(ctx, s_needs);
    if (needs == NULL || !PyTuple_CheckExact(needs) || PyTuple_GET_SIZE(needs) != 6) goto done;
    unsigned key = (unsigned)(dy_lies << 5 | dh_lies);
    for (int i = 0; i < 5; i++) key = key << 1 | (PyTuple_GET_ITEM(needs, i) == Py_True);
    PyObject *run = remembered(kept->run, key, ctx, dy, dh);
    if (run == NULL || !Py_IS_TYPE(run, &RunType)) goto done;
    Py_INCREF(run); /* another thread may make the forward run forget it */
    answer = start((Run *)run, addresses);
    Py_DECREF(run);
done:
    Py_XDECREF(known);
    Py_XDECREF(saved);
    Py_XDECREF(needs);
    return answer;
}

static PyObject *backward(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    PyObject *answer = NULL;
    if (n == 2 || n == 3) answer = usual_backward(arguments[0], arguments[1], n == 3 ? arguments[2] : Py_None);
    if (answer != NULL || PyErr_Occurred()) return answer;
    return PyObject_Vectorcall(backward_in_python, arguments, n, NULL);
}

/* ---- the module */

static PyObject *use(PyObject *module, PyObject *arguments, PyObject *keywords) {
    PyObject *name, *value;
    Py_ssize_t place = 0;
    while (keywords != NULL && PyDict_Next(keywords, &place, &name, &value)) {
        size_t i = 0, n = sizeof SETTINGS / sizeof SETTINGS[0];
        while (i < n && PyUnicode_CompareWithASCIIString(name, SETTINGS[i].name)) i++;
        if (i == n) return PyErr_Format(PyExc_TypeError, "use: nothing is called %R", name);
        Py_XSETREF(*SETTINGS[i].place, Py_NewRef(value));
    }
    Py_RETURN_NONE;
}

static PyObject *use_driver(PyObject *module, PyObject *arguments) {
    unsigned long long launcher, errors, contexts;
    if (!PyArg_ParseTuple(arguments, "KKK:use_driver", &launcher, &errors, &contexts)) return NULL;
    launch_kernel = (LaunchKernel)(uintptr_t)launcher;
    error_string = (ErrorString)(uintptr_t)errors;
    current_context = (CurrentContext)(uintptr_t)contexts;
    Py_RETURN_NONE;
}

static PyObject *forget(PyObject *module, PyObject *nothing) {
    generation++;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"use", (PyCFunction)(void (*)(void))use, METH_VARARGS | METH_KEYWORDS, "Functions and tables of Python."},
    {"use_driver", use_driver, METH_VARARGS, "Addresses of cuLaunchKernelEx, cuGetErrorString, cuCtxGetCurrent."},
    {"forget", forget, METH_NOARGS, "Plans may have changed: find every backward run again."},
    {"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL, "_EagerNorm.forward"},
    {"backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL, "_EagerNorm.backward"},
    {NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "rownorm_native", NULL, -1, methods};

PyMODINIT_FUNC PyInit_rownorm_native(void) {
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (*NAMES[i].place == NULL && (*NAMES[i].place = PyUnicode_InternFromString(NAMES[i].name)) == NULL)
            return NULL;
    if (PyType_Ready(&RunType) || PyType_Ready(&KeptType)) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    /* autograd's engine asks a node for ``apply``, which has to take that node as its first argument. */
    PyObject *function = PyObject_GetAttrString(module, "backward");
    PyObject *apply = function == NULL ? NULL : PyInstanceMethod_New(function);
    int wrong = apply == NULL || PyModule_AddObjectRef(module, "apply", apply)
                || PyModule_AddObjectRef(module, "Run", (PyObject *)&RunType);
    Py_XDECREF(apply);
    Py_XDECREF(function);
    if (wrong) Py_CLEAR(module);
    return module;
}

/* The module: what Python passes in, and what it gets. Compiled last. */

/* use(name=object, ...): the objects of SETTINGS. */
static PyObject *use(PyObject *module, PyObject *arguments, PyObject *keywords) {
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (keywords != NULL && PyDict_Next(keywords, &position, &name, &value)) {
        size_t i = 0, n = sizeof SETTINGS / sizeof SETTINGS[0];
        while (i < n && PyUnicode_CompareWithASCIIString(name, SETTINGS[i].name)) i++;
        if (i == n) return PyErr_Format(PyExc_TypeError, "use: unknown setting %R", name);
        Py_XSETREF(*SETTINGS[i].object, Py_NewRef(value));
    }
    Py_RETURN_NONE;
}

/* use_driver(addresses of the three functions) */
static PyObject *use_driver(PyObject *module, PyObject *arguments) {
    unsigned long long launch_address, error_address, context_address;
    if (!PyArg_ParseTuple(arguments, "KKK:use_driver", &launch_address, &error_address, &context_address)) return NULL;
    launch_kernel = (LaunchKernel)(uintptr_t)launch_address;
    error_string = (ErrorString)(uintptr_t)error_address;
    current_context = (CurrentContext)(uintptr_t)context_address;
    Py_RETURN_NONE;
}

/* use_dlpack(Tensor.__dlpack_c_exchange_api__) */
static PyObject *use_dlpack(PyObject *module, PyObject *capsule) {
    const DLPackExchangeAPI *given = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (given == NULL) return NULL;
    if (given->header.version.major != DLPACK_MAJOR_VERSION || given->dltensor_from_py_object_no_sync == NULL)
        return PyErr_Format(PyExc_RuntimeError, "this version of DLPack is not known");
    dlpack = given;
    Py_RETURN_NONE;
}

static PyObject *forget(PyObject *module, PyObject *unused) {
    generation++;
    forget_forward_calls();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"use", (PyCFunction)(void (*)(void))use, METH_VARARGS | METH_KEYWORDS, "Take functions and tables of Python."},
    {"use_driver", use_driver, METH_VARARGS, "Take addresses of cuLaunchKernelEx, cuGetErrorString, cuCtxGetCurrent."},
    {"use_dlpack", use_dlpack, METH_O, "Take torch's table of DLPack functions."},
    {"forget", forget, METH_NOARGS, "Plans may have changed: find every call again."},
    {"forward_key", (PyCFunction)(void (*)(void))forward_key, METH_FASTCALL, "The key of a call, for the tests."},
    {"norm", (PyCFunction)(void (*)(void))norm, METH_FASTCALL, "norms._norm, or NotImplemented"},
    {"module_norm", (PyCFunction)(void (*)(void))module_norm, METH_FASTCALL, "The same for a module of nn.py."},
    {NULL}};

static const Interface interface = {
    sizeof(Interface), sizeof(PreparedCall), &PreparedCallType, find_forward, known_backward_call,
    ask_for_backward_call, needs_python, launch_kernels, left_to_python};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "rownorm_native", NULL, -1, methods};

PyMODINIT_FUNC PyInit_rownorm_native(void) {
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (*NAMES[i].object == NULL && (*NAMES[i].object = PyUnicode_InternFromString(NAMES[i].name)) == NULL)
            return NULL;
    if (forward_calls == NULL && (forward_calls = PyDict_New()) == NULL) return NULL;
    if (PyType_Ready(&PreparedCallType)) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    PyObject *capsule = PyCapsule_New((void *)&interface, INTERFACE, NULL);
    int failed = capsule == NULL || PyModule_AddObjectRef(module, "interface", capsule)
                 || PyModule_AddObjectRef(module, "PreparedCall", (PyObject *)&PreparedCallType);
    Py_XDECREF(capsule);
    if (failed) Py_CLEAR(module);
    return module;
}

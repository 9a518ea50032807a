/* The eager autograd function of ops/eager.py, for the usual call. Compiled with native.c, which it follows. */

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
    PyObject *fact = NULL;
    for (int i = 0; i < 6; i++) {
        switch (i) {
            case 0: fact = PyObject_GetAttr(tensor, s_shape); break;
            case 1: fact = layout(tensor); break;
            case 2: fact = PyObject_GetAttr(tensor, s_dtype); break;
            case 3: fact = PyObject_CallOneArg(get_device, tensor); break;
            case 4: fact = PyObject_GetAttr(tensor, s_is_cpu); break;
            case 5: fact = PyLong_FromLong((long)(address & 15));
        }
        if (fact == NULL) return -1;
        PyTuple_SET_ITEM(tuple, place + i, fact);
    }
    return 0;
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

/* The backward run of a forward run; None, or NULL with an exception, where there is none. */
static PyObject *remembered(Run *run, unsigned key, PyObject *ctx, PyObject *dy, PyObject *dh) {
    for (int i = 0; i < REMEMBERED; i++) {
        Remembered *one = &run->backward[i];
        if (one->run != NULL && one->key == key && one->generation == generation) return Py_NewRef(one->run);
    }
    unsigned now = generation;
    PyObject *found = PyObject_CallFunctionObjArgs(find_backward, ctx, dy, dh, NULL);
    if (found == NULL) return NULL;
    Remembered last = run->backward[REMEMBERED - 1];
    memmove(run->backward + 1, run->backward, (REMEMBERED - 1) * sizeof(Remembered));
    run->backward[0] = (Remembered){key, now, Py_NewRef(found)};
    Py_XDECREF(last.run);
    return found;
}

/* _EagerNorm.backward(ctx, dy, dh=None) for the usual call. NULL without an exception: it is for Python. */
static PyObject *usual_backward(PyObject *ctx, PyObject *dy, PyObject *dh) {
    uint64_t addresses[MOST_TENSORS];
    PyObject *needs = NULL, *saved = NULL, *run = NULL, *answer = NULL;
    PyObject *known = PyObject_GetAttr(ctx, s_known);
    if (known == NULL || !Py_IS_TYPE(known, &KeptType) || dy == Py_None) goto done;
    Kept *kept = (Kept *)known;
    saved = PyObject_GetAttr(ctx, s_saved); /* fails where they are gone, or were written to */
    if (saved == NULL || nothing_listens(dy, dh) != 1) goto done;
    int dy_lies = lies(dy, &addresses[0]), dh_lies = dy_lies < 0 ? -1 : lies(dh, &addresses[1]);
    if (dh_lies < 0) {
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
    run = remembered(kept->run, key, ctx, dy, dh);
    if (run != NULL && Py_IS_TYPE(run, &RunType)) answer = start((Run *)run, addresses);
done:
    Py_XDECREF(run);
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

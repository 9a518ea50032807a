/* Forward and backward of the autograd function in ops/eager.py, for the usual call.

   What it gains, with launch.c: experiment HST-03 in docs/experiments/host.md. */

enum { N_INPUTS = 5 }; /* x, residual, pre_bias, weight, bias: call_key.INPUTS */

/* ---- SavedForBackward: ctx.forward_state of ops/eager.py, with the same fields.

   The garbage collector does not track it: nothing that it refers to can refer to it, so it is in no cycle. */

typedef struct {
    PyObject_HEAD
    PreparedCall *call; /* of forward */
    PyObject *mu, *rstd, *options, *x_dtype, *residual_dtype;
    uint64_t addresses[4];  /* of h, pre_bias, weight, bias: the tensors that autograd saves */
    uint64_t statistics[2]; /* addresses of mu and rstd, which only this object refers to */
} SavedForBackward;

static void saved_dealloc(SavedForBackward *state) {
    Py_XDECREF(state->call);
    Py_XDECREF(state->mu);
    Py_XDECREF(state->rstd);
    Py_XDECREF(state->options);
    Py_XDECREF(state->x_dtype);
    Py_XDECREF(state->residual_dtype);
    PyObject_Free(state);
}

/* Python unpacks it like the tuple that the forward of ops/eager.py saves. */
static PyObject *saved_iter(SavedForBackward *state) {
    PyObject *addresses = PyList_New(4);
    for (int i = 0; addresses != NULL && i < 4; i++) {
        uint64_t address = state->addresses[i];
        PyObject *number = address ? PyLong_FromUnsignedLongLong(address) : Py_NewRef(Py_None);
        if (number == NULL) Py_CLEAR(addresses);
        else PyList_SET_ITEM(addresses, i, number);
    }
    PyObject *fields = addresses == NULL ? NULL : Py_BuildValue(
        "(ON(OO)OOO)", state->call, addresses, state->mu, state->rstd, state->options, state->x_dtype,
        state->residual_dtype);
    PyObject *iterator = fields == NULL ? NULL : PyObject_GetIter(fields);
    Py_XDECREF(fields);
    return iterator;
}

static PyTypeObject SavedForBackwardType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rownorm.launch.native.SavedForBackward",
    .tp_basicsize = sizeof(SavedForBackward),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)saved_dealloc,
    .tp_iter = (getiterfunc)saved_iter,
};

/* ---- The key of a forward call, from the description in ops/call_key.py */

/* The kinds of call_key.EXPRESSIONS, in the order of FIELD_KINDS. */
typedef enum { ATTRIBUTE, METHOD, LAYOUT, ALIGNMENT } FieldKind;

static const char *const FIELD_KINDS[] = {"attribute", "method", "layout", "alignment"};

typedef struct {
    FieldKind kind;
    PyObject *object; /* an attribute's name, or a method of torch.Tensor; NULL for the other kinds */
} KeyField;

static KeyField key_fields[MAX_KEY_FIELDS];
static Py_ssize_t n_key_fields;

static int read_key_field(PyObject *described, KeyField *field) {
    const char *kind;
    PyObject *name;
    if (!PyArg_ParseTuple(described, "sU:field", &kind, &name)) return -1;
    size_t i = 0, n = sizeof FIELD_KINDS / sizeof FIELD_KINDS[0];
    while (i < n && strcmp(kind, FIELD_KINDS[i])) i++;
    if (i == n) {
        PyErr_Format(PyExc_ValueError, "use_key_fields: unknown kind '%s'", kind);
        return -1;
    }
    field->kind = (FieldKind)i;
    if (field->kind == ATTRIBUTE) field->object = Py_NewRef(name);
    if (field->kind == METHOD) field->object = PyObject_GetAttr(tensor_type, name);
    return field->kind == METHOD && field->object == NULL ? -1 : 0;
}

/* use_key_fields(call_key.FIELDS), after ``use`` was given tensor_type */
static PyObject *use_key_fields(PyObject *module, PyObject *fields) {
    KeyField read[MAX_KEY_FIELDS] = {0};
    if (!PyTuple_Check(fields) || PyTuple_GET_SIZE(fields) > MAX_KEY_FIELDS)
        return PyErr_Format(PyExc_ValueError, "use_key_fields: a tuple of at most %d fields", MAX_KEY_FIELDS);
    Py_ssize_t n = PyTuple_GET_SIZE(fields);
    for (Py_ssize_t i = 0; i < n; i++)
        if (read_key_field(PyTuple_GET_ITEM(fields, i), &read[i])) {
            while (i) Py_XDECREF(read[--i].object);
            return NULL;
        }
    for (Py_ssize_t i = 0; i < n_key_fields; i++) Py_XDECREF(key_fields[i].object);
    memcpy(key_fields, read, sizeof key_fields);
    n_key_fields = n;
    Py_RETURN_NONE;
}

/* True where a tensor is contiguous, else its strides. */
static PyObject *layout(PyObject *tensor) {
    PyObject *contiguous = PyObject_CallOneArg(is_contiguous, tensor);
    if (contiguous != Py_False) return contiguous;
    Py_DECREF(contiguous);
    return PyObject_CallOneArg(stride, tensor);
}

/* Put the fields of a tensor into a new tuple, from ``start`` on. */
static int put_fields(PyObject *tuple, Py_ssize_t start, PyObject *tensor, uint64_t address) {
    for (Py_ssize_t i = 0; i < n_key_fields; i++) {
        PyObject *value = NULL;
        switch (key_fields[i].kind) {
            case ATTRIBUTE: value = PyObject_GetAttr(tensor, key_fields[i].object); break;
            case METHOD: value = PyObject_CallOneArg(key_fields[i].object, tensor); break;
            case LAYOUT: value = layout(tensor); break;
            case ALIGNMENT: value = PyLong_FromLong((long)(address & 15));
        }
        if (value == NULL) return -1;
        PyTuple_SET_ITEM(tuple, start + i, value);
    }
    return 0;
}

/* call_key.forward_key: (options, want_statistics, *fields of x, then for each other input its fields or None).

   Fills in the addresses. NULL without an exception where a tensor has the address 0, which Python has to look at. */
static PyObject *make_forward_key(PyObject *const *inputs, PyObject *options, PyObject *want_statistics,
                                  uint64_t *addresses) {
    for (int i = 0; i < N_INPUTS; i++)
        if (address_of(inputs[i], &addresses[i]) || (addresses[i] == 0 && inputs[i] != Py_None)) return NULL;
    Py_ssize_t n_first = 2 + n_key_fields;
    PyObject *key = PyTuple_New(n_first + N_INPUTS - 1);
    if (key == NULL) return NULL;
    PyTuple_SET_ITEM(key, 0, Py_NewRef(options));
    PyTuple_SET_ITEM(key, 1, Py_NewRef(want_statistics));
    int failed = put_fields(key, 2, inputs[0], addresses[0]);
    for (int i = 1; i < N_INPUTS && !failed; i++) {
        PyObject *fields = inputs[i] == Py_None ? Py_NewRef(Py_None) : PyTuple_New(n_key_fields);
        PyTuple_SET_ITEM(key, n_first + i - 1, fields);
        failed = fields == NULL || (fields != Py_None && put_fields(fields, 0, inputs[i], addresses[i]));
    }
    if (failed) Py_CLEAR(key);
    return key;
}

/* forward_key(x, residual, pre_bias, weight, bias, options, want_statistics), for the tests. */
static PyObject *forward_key(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    uint64_t addresses[MAX_TENSORS];
    if (n != N_INPUTS + 2) return PyErr_Format(PyExc_TypeError, "forward_key takes %d arguments", N_INPUTS + 2);
    PyObject *key = make_forward_key(arguments, arguments[N_INPUTS], arguments[N_INPUTS + 1], addresses);
    return key != NULL || PyErr_Occurred() ? key : Py_NewRef(Py_None);
}

/* ---- forward: execute.find_forward, and _EagerNorm.forward */

/* The prepared call for these tensors, borrowed, and their addresses. NULL, with an exception or without: Python has
   to find it. */
static PreparedCall *find_forward(PyObject *const *inputs, PyObject *options, PyObject *want_statistics,
                                  uint64_t *addresses) {
    PyObject *key = make_forward_key(inputs, options, want_statistics, addresses);
    if (key == NULL) return NULL;
    PyObject *call = PyDict_GetItemWithError(forward_calls, key);
    Py_DECREF(key);
    return call != NULL && Py_IS_TYPE(call, &PreparedCallType) ? (PreparedCall *)call : NULL;
}

/* forward(ctx, x, residual, pre_bias, weight, bias, options) */
static PyObject *forward(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    uint64_t addresses[MAX_TENSORS];
    SavedForBackward *state = NULL;
    PyObject *saved = NULL, *outputs = NULL, *answer = NULL;
    if (n != N_INPUTS + 2) return PyObject_Vectorcall(forward_in_python, arguments, n, NULL);
    PyObject *ctx = arguments[0], *const *inputs = arguments + 1, *options = arguments[1 + N_INPUTS];
    int has_residual = inputs[1] != Py_None;
    PyObject *hooks = PyObject_CallOneArg(saved_tensors_hooks, Py_True);
    int has_hooks = is_true(hooks);
    PreparedCall *call = has_hooks ? NULL : find_forward(inputs, options, Py_True, addresses);
    if (call != NULL) {
        Py_INCREF(call);
        outputs = start(call, addresses);
    }
    if (outputs == NULL) {
        Py_XDECREF(call);
        if (call != NULL && PyErr_Occurred()) return NULL;
        /* A tensor without storage or an option that cannot be hashed: Python raises an error that explains it. */
        PyErr_Clear();
        return PyObject_Vectorcall(forward_in_python, arguments, n, NULL);
    }
    /* outputs: execute.ForwardResult, which is y, h, mu, rstd */
    PyObject *y = PyTuple_GET_ITEM(outputs, 0), *h = PyTuple_GET_ITEM(outputs, 1);
    state = PyObject_New(SavedForBackward, &SavedForBackwardType);
    if (state == NULL) {
        Py_DECREF(call);
        goto done;
    }
    state->call = call;
    state->mu = Py_NewRef(PyTuple_GET_ITEM(outputs, 2));
    state->rstd = Py_NewRef(PyTuple_GET_ITEM(outputs, 3));
    state->options = Py_NewRef(options);
    state->x_dtype = PyObject_GetAttr(inputs[0], s_dtype);
    state->residual_dtype = has_residual ? PyObject_GetAttr(inputs[1], s_dtype) : Py_NewRef(Py_None);
    if (state->x_dtype == NULL || state->residual_dtype == NULL) goto done;
    for (int i = 1; i < 4; i++) state->addresses[i] = addresses[1 + i];
    state->addresses[0] = addresses[0];
    if (has_residual && address_of(h, &state->addresses[0])) goto done;
    if (address_of(state->mu, &state->statistics[0]) || address_of(state->rstd, &state->statistics[1])) goto done;
    saved = PyTuple_Pack(4, has_residual ? h : inputs[0], inputs[2], inputs[3], inputs[4]);
    /* The attributes that ctx.save_for_backward and ctx.set_materialize_grads set. */
    if (saved == NULL || PyObject_SetAttr(ctx, s_to_save, saved) || PyObject_SetAttr(ctx, s_materialize, Py_False)
        || PyObject_SetAttr(ctx, s_state, (PyObject *)state)) goto done;
    answer = has_residual ? PyTuple_Pack(2, y, h) : Py_NewRef(y);
done:
    Py_XDECREF(saved);
    Py_XDECREF(state);
    Py_DECREF(outputs);
    return answer;
}

/* ---- backward: _EagerNorm.backward */

/* Incremented whenever plans may have changed. Backward calls that were found in an earlier generation are not used. */
static unsigned generation;

/* Whether an incoming gradient is a plain tensor: 1 or 0; -1 with an exception. */
static int is_plain(PyObject *tensor) {
    if (!Py_IS_TYPE(tensor, (PyTypeObject *)tensor_type)) return 0;
    int negative = is_true(PyObject_CallOneArg(is_neg, tensor));
    return negative < 0 ? -1 : !negative;
}

/* fast_path.can_skip_dispatcher_in_backward */
static int can_skip_dispatcher_in_backward(PyObject *dy, PyObject *dh) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(backward_conditions); i++) {
        int is_active = is_true(PyObject_CallNoArgs(PyTuple_GET_ITEM(backward_conditions, i)));
        if (is_active) return is_active < 0 ? -1 : 0;
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

/* Presence and alignment of an incoming gradient, in five bits. -1 where it is not contiguous or has no storage. */
static int gradient_key(PyObject *tensor, uint64_t *address) {
    if (tensor == Py_None) return *address = 0;
    if (address_of(tensor, address) || is_true(PyObject_CallOneArg(is_contiguous, tensor)) != 1) return -1;
    return 16 | (int)(*address & 15);
}

/* The backward call of a forward call. None where backward has to run in Python; NULL with an exception. */
static PyObject *find_backward_call(PreparedCall *forward_call, unsigned key, PyObject *ctx, PyObject *dy,
                                    PyObject *dh) {
    BackwardCall *known = forward_call->backward_calls;
    for (int i = 0; i < MAX_BACKWARD_CALLS; i++)
        if (known[i].call != NULL && known[i].key == key && known[i].generation == generation)
            return Py_NewRef(known[i].call);
    unsigned now = generation;
    PyObject *found = PyObject_CallFunctionObjArgs(find_backward, ctx, dy, dh, NULL);
    if (found == NULL) return NULL;
    BackwardCall oldest = known[MAX_BACKWARD_CALLS - 1];
    memmove(known + 1, known, (MAX_BACKWARD_CALLS - 1) * sizeof(BackwardCall));
    known[0] = (BackwardCall){key, now, Py_NewRef(found)};
    Py_XDECREF(oldest.call);
    return found;
}

/* _EagerNorm.backward(ctx, dy, dh=None) for the usual call. NULL without an exception: Python has to do it. */
static PyObject *usual_backward(PyObject *ctx, PyObject *dy, PyObject *dh) {
    /* In the order of reference.BackwardInputs: dy, dh, h, pre_bias, weight, bias, mu, rstd. */
    uint64_t addresses[MAX_TENSORS];
    PyObject *needs = NULL, *saved = NULL, *call = NULL, *answer = NULL;
    PyObject *forward_state = PyObject_GetAttr(ctx, s_state);
    if (forward_state == NULL || !Py_IS_TYPE(forward_state, &SavedForBackwardType) || dy == Py_None) goto done;
    SavedForBackward *state = (SavedForBackward *)forward_state;
    saved = PyObject_GetAttr(ctx, s_saved); /* raises where the graph was freed, or a tensor was modified in place */
    if (saved == NULL || can_skip_dispatcher_in_backward(dy, dh) != 1) goto done;
    int dy_key = gradient_key(dy, &addresses[0]), dh_key = dy_key < 0 ? -1 : gradient_key(dh, &addresses[1]);
    if (dh_key < 0) {
        PyErr_Clear(); /* batched gradients (is_grads_batched) have no storage */
        goto done;
    }
    if (!PyTuple_CheckExact(saved) || PyTuple_GET_SIZE(saved) != 4) goto done;
    for (int i = 0; i < 4; i++)
        if (address_of(PyTuple_GET_ITEM(saved, i), &addresses[2 + i]) || addresses[2 + i] != state->addresses[i]) {
            PyErr_Clear();
            goto done;
        }
    memcpy(&addresses[6], state->statistics, sizeof state->statistics);
    needs = PyObject_GetAttr(ctx, s_needs);
    if (needs == NULL || !PyTuple_CheckExact(needs) || PyTuple_GET_SIZE(needs) != N_INPUTS + 1) goto done;
    /* The key, 15 bits:

         14       13 to 10         9        8 to 5            4   3         2         1       0
         dy: 1    its address & 15 has dh   its address & 15  x   residual  pre_bias  weight  bias: needs a gradient */
    unsigned key = (unsigned)(dy_key << 5 | dh_key);
    for (int i = 0; i < N_INPUTS; i++) key = key << 1 | (PyTuple_GET_ITEM(needs, i) == Py_True);
    call = find_backward_call(state->call, key, ctx, dy, dh);
    if (call != NULL && Py_IS_TYPE(call, &PreparedCallType)) answer = start((PreparedCall *)call, addresses);
done:
    Py_XDECREF(call);
    Py_XDECREF(forward_state);
    Py_XDECREF(saved);
    Py_XDECREF(needs);
    return answer;
}

/* unrecorded_backward(ctx, dy, dh): without an entry in a profiler's trace */
static PyObject *unrecorded_backward(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    if (n != 3) return PyErr_Format(PyExc_TypeError, "unrecorded_backward takes 3 arguments");
    PyObject *answer = usual_backward(arguments[0], arguments[1], arguments[2]);
    if (answer != NULL || PyErr_Occurred()) return answer;
    return PyObject_Vectorcall(backward_in_python, arguments, n, NULL);
}

/* backward(ctx, dy, dh=None) */
static PyObject *backward(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    int is_profiled = n == 2 || n == 3 ? is_true(PyObject_CallNoArgs(is_profiler_enabled)) : 1;
    if (is_profiled < 0) return NULL;
    if (is_profiled) return PyObject_Vectorcall(record_backward, arguments, n, NULL);
    PyObject *const all[] = {arguments[0], arguments[1], n == 3 ? arguments[2] : Py_None};
    return unrecorded_backward(module, all, 3);
}

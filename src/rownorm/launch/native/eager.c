/* A norm called eagerly: the public function (``norm``), and forward of the autograd function in ops/eager.py.

   What it gains, with launch.c: experiments HST-03 and HST-05 in docs/experiments/host.md. */

/* ---- SavedForBackward: ctx.forward_state of ops/eager.py, with the same fields.

   The garbage collector does not track it: nothing that it refers to can refer to it, so it is in no cycle. */

typedef struct {
    PyObject_HEAD
    PreparedCall *call; /* of forward */
    PyObject *mu, *rstd; /* NULL where hooks on saved tensors had to get them */
    PyObject *options, *x_dtype, *residual_dtype;
    PyObject *saved_key;          /* of all that hooks got; NULL without hooks */
    uint64_t addresses[N_SAVED];  /* without hooks: of the tensors that autograd saves */
    uint64_t statistics[2];       /* without hooks: addresses of mu and rstd, which only this object refers to */
} SavedForBackward;

static void saved_dealloc(SavedForBackward *state) {
    Py_XDECREF(state->call);
    Py_XDECREF(state->mu);
    Py_XDECREF(state->rstd);
    Py_XDECREF(state->options);
    Py_XDECREF(state->x_dtype);
    Py_XDECREF(state->residual_dtype);
    Py_XDECREF(state->saved_key);
    PyObject_Free(state);
}

/* A list of the addresses, None for 0; None with hooks. */
static PyObject *saved_addresses(SavedForBackward *state) {
    if (state->saved_key != NULL) return Py_NewRef(Py_None);
    PyObject *addresses = PyList_New(N_SAVED);
    for (int i = 0; addresses != NULL && i < N_SAVED; i++) {
        uint64_t address = state->addresses[i];
        PyObject *number = address ? PyLong_FromUnsignedLongLong(address) : Py_NewRef(Py_None);
        if (number == NULL) Py_CLEAR(addresses);
        else PyList_SET_ITEM(addresses, i, number);
    }
    return addresses;
}

/* Python unpacks it like the tuple that the forward of ops/eager.py saves. */
static PyObject *saved_iter(SavedForBackward *state) {
    PyObject *addresses = saved_addresses(state);
    PyObject *statistics = state->mu == NULL ? PyTuple_New(0) : PyTuple_Pack(2, state->mu, state->rstd);
    PyObject *fields = NULL, *iterator = NULL;
    if (addresses != NULL && statistics != NULL)
        fields = PyTuple_Pack(6, state->call, addresses, statistics, state->options, state->x_dtype,
                              state->residual_dtype);
    if (fields != NULL) iterator = PyObject_GetIter(fields);
    Py_XDECREF(addresses);
    Py_XDECREF(statistics);
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

/* After a call was not found: forget the exception, because Python raises one that explains what is wrong. Returns -1
   for what is not an error, such as Ctrl-C while a kernel was compiled. */
static int left_to_python(void) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Clear();
    return 0;
}

/* ---- forward: _EagerNorm.forward */

/* forward(ctx, x, residual, pre_bias, weight, bias, options) */
static PyObject *forward(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    uint64_t addresses[MAX_TENSORS];
    SavedForBackward *state = NULL;
    PyObject *saved = NULL, *outputs = NULL, *answer = NULL;
    if (n != N_INPUTS + 2) return PyObject_Vectorcall(forward_in_python, arguments, n, NULL);
    PyObject *ctx = arguments[0], *const *inputs = arguments + 1, *options = arguments[1 + N_INPUTS];
    int has_residual = inputs[1] != Py_None;
    int has_hooks = is_true(PyObject_CallOneArg(saved_tensors_hooks, Py_True));
    PreparedCall *call = has_hooks < 0 ? NULL : find_forward(inputs, options, 1, addresses);
    if (call != NULL) outputs = start(call, addresses);
    if (outputs == NULL) {
        Py_XDECREF(call);
        if ((call != NULL && PyErr_Occurred()) || left_to_python()) return NULL;
        return PyObject_Vectorcall(forward_in_python, arguments, n, NULL);
    }
    /* outputs: execute.ForwardResult, which is y, h, mu, rstd */
    PyObject *y = PyTuple_GET_ITEM(outputs, 0), *h = PyTuple_GET_ITEM(outputs, 1);
    state = PyObject_New(SavedForBackward, &SavedForBackwardType);
    if (state == NULL) {
        Py_DECREF(call);
        goto done;
    }
    PyObject *mu = PyTuple_GET_ITEM(outputs, 2), *rstd = PyTuple_GET_ITEM(outputs, 3);
    PyObject *all[] = {has_residual ? h : inputs[0], inputs[2], inputs[3], inputs[4], mu, rstd};
    state->call = call;
    state->mu = state->rstd = state->saved_key = NULL;
    state->options = Py_NewRef(options);
    state->x_dtype = PyObject_GetAttr(inputs[0], s_dtype);
    state->residual_dtype = has_residual ? PyObject_GetAttr(inputs[1], s_dtype) : Py_NewRef(Py_None);
    if (state->x_dtype == NULL || state->residual_dtype == NULL) goto done;
    if (has_hooks) {
        /* Hooks may keep the tensors elsewhere, so they get the statistics too, and may return other tensors. */
        uint64_t unused[N_SAVED_BY_HOOKS];
        state->saved_key = make_key(all, N_SAVED_BY_HOOKS, 0, unused);
        if (state->saved_key == NULL) state->saved_key = PyErr_Occurred() ? NULL : PyBytes_FromString("");
        if (state->saved_key == NULL) goto done;
        saved = PyTuple_Pack(N_SAVED_BY_HOOKS, all[0], all[1], all[2], all[3], all[4], all[5]);
    }
    else {
        state->mu = Py_NewRef(mu);
        state->rstd = Py_NewRef(rstd);
        for (int i = 1; i < N_SAVED; i++) state->addresses[i] = addresses[1 + i];
        state->addresses[0] = addresses[0];
        if (has_residual && address_of(h, &state->addresses[0])) goto done;
        if (address_of(mu, &state->statistics[0]) || address_of(rstd, &state->statistics[1])) goto done;
        saved = PyTuple_Pack(N_SAVED, all[0], all[1], all[2], all[3]);
    }
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

/* ---- norm: norms._norm */

/* Whether an input or an incoming gradient is a plain tensor: 1 or 0; -1 with an exception. */
static int is_plain(PyObject *tensor) {
    if (!Py_IS_TYPE(tensor, (PyTypeObject *)tensor_type) && !Py_IS_TYPE(tensor, (PyTypeObject *)parameter_type))
        return 0;
    int negative = is_true(PyObject_CallOneArg(is_neg, tensor));
    return negative < 0 ? -1 : !negative;
}

/* Whether one of these functions returns true, or forward-mode differentiation is active: 1 or 0; -1 with an exception.
   */
static int is_intercepted(PyObject *conditions) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(conditions); i++) {
        int is_active = is_true(PyObject_CallNoArgs(PyTuple_GET_ITEM(conditions, i)));
        if (is_active) return is_active;
    }
    PyObject *number = PyObject_GetAttr(forward_ad, s_level);
    if (number == NULL) return -1;
    long level = PyLong_AsLong(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : level >= 0;
}

/* fast_path.can_skip_dispatcher */
static int can_skip_dispatcher(PyObject *const *inputs) {
    int intercepted = is_intercepted(forward_conditions);
    if (intercepted) return intercepted < 0 ? -1 : 0;
    for (int i = 0; i < N_INPUTS; i++) {
        int plain = i && inputs[i] == Py_None ? 1 : is_plain(inputs[i]);
        if (plain != 1) return plain;
    }
    return 1;
}

/* autograd.needs_gradient */
static int needs_gradient(PyObject *const *inputs) {
    int needs = is_true(PyObject_CallNoArgs(is_grad_enabled));
    if (needs != 1) return needs;
    for (int i = 0; i < N_INPUTS; i++) {
        if (inputs[i] != Py_None && (needs = is_true(PyObject_GetAttr(inputs[i], s_requires_grad)))) return needs;
    }
    return 0;
}

/* Forward without a gradient: y, or (y, h) with a residual. NULL without an exception: Python has to do it. */
static PyObject *forward_only(PyObject *const *inputs, PyObject *options) {
    uint64_t addresses[MAX_TENSORS];
    PyObject *outputs = NULL, *answer = NULL;
    PreparedCall *call = find_forward(inputs, options, 0, addresses);
    if (call == NULL) left_to_python();
    else outputs = start(call, addresses);
    if (outputs != NULL) {
        PyObject *y = PyTuple_GET_ITEM(outputs, 0);
        answer = inputs[1] == Py_None ? Py_NewRef(y) : PyTuple_Pack(2, y, PyTuple_GET_ITEM(outputs, 1));
        Py_DECREF(outputs);
    }
    Py_XDECREF(call);
    return answer;
}

/* Whether autocast is enabled and can change the options of a call on these rows: those of 16 bits, as
   autocast.autocast_program says. */
static int autocast_may_change(PyObject *x) {
    DLTensor t;
    int is_enabled = is_true(PyObject_CallNoArgs(is_autocast_enabled));
    if (is_enabled != 1) return is_enabled;
    return describe(x, &t) ? -1 : t.dtype.bits == 16;
}

/* norms._norm, where function modes are off or disabled. NULL without an exception: Python has to do it. */
static PyObject *norm_without_modes(PyObject *const *inputs, PyObject *options) {
    if (can_skip_dispatcher(inputs) != 1) return NULL;
    PyObject *answer = NULL;
    int is_changed = autocast_may_change(inputs[0]);
    if (is_changed < 0) return NULL;
    options = is_changed ? PyObject_CallFunctionObjArgs(autocast_options, inputs[0], options, NULL) : Py_NewRef(options);
    int needs = options == NULL ? -1 : needs_gradient(inputs);
    if (needs == 1) {
        PyObject *const all[] = {inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], options};
        answer = PyObject_Vectorcall(record_forward, all, N_INPUTS + 1, NULL);
    }
    else if (needs == 0) answer = forward_only(inputs, options);
    Py_XDECREF(options);
    return answer;
}

/* ``with disable_function_modes(): norm_without_modes(...)``. While a default device is set, every attribute of a tensor
   would cost a call of Python. */
static PyObject *norm_on_default_device(PyObject *const *inputs, PyObject *options) {
    PyObject *context = PyObject_CallNoArgs(disable_function_modes);
    PyObject *entered = context == NULL ? NULL : PyObject_CallMethodNoArgs(context, s_enter_context);
    if (entered == NULL) {
        Py_XDECREF(context);
        return NULL;
    }
    PyObject *answer = norm_without_modes(inputs, options);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback); /* leaving the context must not see it */
    PyObject *left = PyObject_CallMethodObjArgs(context, s_exit_context, Py_None, Py_None, Py_None, NULL);
    if (left == NULL) Py_CLEAR(answer);
    else PyErr_Restore(type, value, traceback);
    Py_XDECREF(left);
    Py_DECREF(entered);
    Py_DECREF(context);
    return answer;
}

/* fast_path.default_device_is_set, where there are function modes. */
static int is_default_device_set(void) {
    PyObject *number = PyObject_CallNoArgs(function_stack_size);
    long n = number == NULL ? -1 : PyLong_AsLong(number);
    Py_XDECREF(number);
    for (long i = 0; i < n; i++) {
        PyObject *index = PyLong_FromLong(i);
        PyObject *mode = index == NULL ? NULL : PyObject_CallOneArg(function_stack_at, index);
        Py_XDECREF(index);
        if (mode == NULL) return -1;
        int is_device = Py_IS_TYPE(mode, (PyTypeObject *)device_mode_type);
        Py_DECREF(mode);
        if (!is_device) return 0;
    }
    return n < 0 ? -1 : 1;
}

/* Whether the rows of a module's input have its width. Without a call of Python, which function modes would see. */
static int has_width(PyObject *x, PyObject *normalized_shape) {
    DLTensor t;
    if (!Py_IS_TYPE(x, (PyTypeObject *)tensor_type) || !PyTuple_Check(normalized_shape)
        || PyTuple_GET_SIZE(normalized_shape) != 1) return 0;
    if (describe(x, &t)) {
        PyErr_Clear();
        return 0;
    }
    return t.ndim > 0 && t.shape[t.ndim - 1] == PyLong_AsLongLong(PyTuple_GET_ITEM(normalized_shape, 0));
}

/* norm(x, residual, pre_bias, weight, bias, options, normalized_shape=None): y, or (y, h) with a residual.
   NotImplemented: Python has to do it. */
static PyObject *norm(PyObject *module, PyObject *const *inputs, Py_ssize_t n) {
    if (n != N_INPUTS + 1 && n != N_INPUTS + 2)
        return PyErr_Format(PyExc_TypeError, "norm takes %d or %d arguments", N_INPUTS + 1, N_INPUTS + 2);
    PyObject *options = inputs[N_INPUTS], *answer = NULL;
    if (n == N_INPUTS + 1 || has_width(inputs[0], inputs[N_INPUTS + 1])) {
        int modes = is_true(PyObject_CallNoArgs(has_function_modes));
        if (modes == 0) answer = norm_without_modes(inputs, options);
        else if (modes == 1 && is_default_device_set() == 1)
            answer = norm_on_default_device(inputs, options);
    }
    return answer != NULL || PyErr_Occurred() ? answer : Py_NewRef(Py_NotImplemented);
}

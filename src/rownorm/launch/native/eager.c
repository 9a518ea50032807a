/* ``norm``: a public function called eagerly. Without a gradient the whole call is done here. With one, ``record`` does it:
   node.cpp where it is there, else the autograd function of ops/eager.py.

   What it gains, with launch.c: experiments HST-03 and HST-05 in docs/experiments/host.md. */

/* After a call was not found: forget the exception, because Python raises one that explains what is wrong. Returns -1
   for what is not an error, such as Ctrl-C while a kernel was compiled. */
static int left_to_python(void) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Clear();
    return 0;
}

/* Whether an input is a plain tensor: 1 or 0; -1 with an exception. */
static int is_plain(PyObject *tensor) {
    if (!Py_IS_TYPE(tensor, (PyTypeObject *)tensor_type) && !Py_IS_TYPE(tensor, (PyTypeObject *)parameter_type))
        return 0;
    int negative = is_true(PyObject_CallOneArg(is_neg, tensor));
    return negative < 0 ? -1 : !negative;
}

/* Whether something that intercepts operators is active: 1 or 0; -1 with an exception. */
static int is_intercepted(void) {
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
    int intercepted = is_intercepted();
    if (intercepted) return intercepted < 0 ? -1 : 0;
    for (int i = 0; i < N_INPUTS; i++) {
        int plain = i != INPUT_X && inputs[i] == Py_None ? 1 : is_plain(inputs[i]);
        if (plain != 1) return plain;
    }
    return 1;
}

/* autograd.needs_gradient */
static int needs_gradient(PyObject *const *inputs) {
    int needs = is_true(PyObject_CallNoArgs(is_grad_enabled));
    if (needs != 1) return needs;
    needs = 0;
    for (int i = 0; i < N_INPUTS && needs == 0; i++)
        if (inputs[i] != Py_None) needs = is_true(PyObject_GetAttr(inputs[i], s_requires_grad));
    if (needs != 1) return needs;
    int is_inference = is_true(PyObject_CallNoArgs(is_inference_mode_enabled)); /* gradients can be enabled inside it */
    return is_inference < 0 ? -1 : !is_inference;
}

/* Whether every input has memory. One that only stands for zeros (torch._efficientzerotensor) has none. Forward without a
   gradient does not have to ask: ``put_tensor`` does. */
static int have_memory(PyObject *const *inputs) {
    uint64_t address;
    for (int i = 0; i < N_INPUTS; i++)
        if (inputs[i] != Py_None
            && (address_of(inputs[i], &address) || address == 0 || has_memory(inputs[i], address) != 1)) return 0;
    return 1;
}

/* y, h, mu and rstd by kernels. NULL without an exception: Python has to do it. */
static PyObject *outputs_by_kernels(PyObject *const *inputs, PyObject *options) {
    uint64_t addresses[MAX_TENSORS];
    PyObject *outputs = NULL;
    PreparedCall *call = find_forward(inputs, options, 0, addresses);
    if (call == NULL) left_to_python();
    else outputs = start(call, addresses);
    Py_XDECREF(call);
    return outputs;
}

/* The same by the extension for CPUs. */
static PyObject *outputs_by_cpu_extension(PyObject *const *inputs, PyObject *options) {
    PyObject *tuple = tuple_of(inputs, N_INPUTS);
    if (tuple == NULL) return NULL;
    PyObject *const arguments[] = {tuple, options, Py_False};
    PyObject *outputs = PyObject_Vectorcall(forward_on_cpu, arguments, 3, NULL);
    Py_DECREF(tuple);
    if (outputs == Py_None) Py_CLEAR(outputs); /* it does not cover this call */
    return outputs;
}

static int is_on_cpu(PyObject *x) {
    DLTensor t;
    if (!describe(x, &t)) return t.device.device_type == kDLCPU;
    PyErr_Clear();
    return 0;
}

/* Forward without a gradient: y, or (y, h) with a residual. NULL without an exception: Python has to do it. */
static PyObject *forward_only(PyObject *const *inputs, PyObject *options) {
    int by_extension = forward_on_cpu != Py_None && is_on_cpu(inputs[INPUT_X]);
    PyObject *outputs = (by_extension ? outputs_by_cpu_extension : outputs_by_kernels)(inputs, options);
    if (outputs == NULL) return NULL;
    PyObject *y = PyTuple_GET_ITEM(outputs, 0);
    PyObject *answer = inputs[INPUT_RESIDUAL] == Py_None ? Py_NewRef(y) : PyTuple_Pack(2, y, PyTuple_GET_ITEM(outputs, 1));
    Py_DECREF(outputs);
    return answer;
}

/* Whether autocast is enabled and can change the options of a call on these rows: those of 16 bits, as
   autocast.autocast_program says. */
static int autocast_may_change(PyObject *x) {
    DLTensor t;
    int is_enabled = is_true(PyObject_CallNoArgs(is_autocast_enabled));
    if (is_enabled != 1) return is_enabled;
    return describe(x, &t) ? -1 : t.dtype.bits == 16; /* DLPack refuses a meta tensor */
}

/* norms._norm, where function modes are off or disabled. NULL without an exception: Python has to do it. */
static PyObject *norm_without_modes(PyObject *const *inputs, PyObject *options) {
    if (can_skip_dispatcher(inputs) != 1) return NULL;
    PyObject *answer = NULL;
    int is_changed = autocast_may_change(inputs[INPUT_X]);
    if (is_changed < 0) {
        left_to_python();
        return NULL;
    }
    options = is_changed ? PyObject_CallFunctionObjArgs(autocast_options, inputs[INPUT_X], options, NULL) : Py_NewRef(options);
    int needs = options == NULL ? -1 : needs_gradient(inputs);
    if (needs == 1 && have_memory(inputs)) {
        PyObject *all[N_INPUTS + 1];
        memcpy(all, inputs, N_INPUTS * sizeof *all);
        all[N_INPUTS] = options;
        PyObject *function = Py_NewRef(record); /* the call may replace it */
        answer = PyObject_Vectorcall(function, all, N_INPUTS + 1, NULL);
        Py_DECREF(function);
    }
    else if (needs == 0) answer = forward_only(inputs, options);
    else left_to_python();
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
    if (left != NULL) PyErr_Restore(type, value, traceback);
    else {
        Py_CLEAR(answer);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    }
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

static PyObject *norm_or_not_implemented(PyObject *const *inputs, PyObject *options) {
    PyObject *answer = NULL;
    int modes = is_true(PyObject_CallNoArgs(has_function_modes));
    if (modes == 0) answer = norm_without_modes(inputs, options);
    else if (modes == 1 && is_default_device_set() == 1) answer = norm_on_default_device(inputs, options);
    return answer != NULL || PyErr_Occurred() ? answer : Py_NewRef(Py_NotImplemented);
}

/* norm(*inputs, options): y, or (y, h) with a residual. NotImplemented: Python has to do it. */
static PyObject *norm(PyObject *module, PyObject *const *inputs, Py_ssize_t n) {
    if (n != N_INPUTS + 1) return PyErr_Format(PyExc_TypeError, "norm takes %d arguments", N_INPUTS + 1);
    return norm_or_not_implemented(inputs, inputs[N_INPUTS]);
}

/* module_norm(x, weight, bias, options, normalized_shape): the same for a module, which has no other inputs. */
static PyObject *module_norm(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    if (n != 5) return PyErr_Format(PyExc_TypeError, "module_norm takes 5 arguments");
    if (!has_width(arguments[0], arguments[4])) return Py_NewRef(Py_NotImplemented);
    PyObject *inputs[N_INPUTS];
    for (int i = 0; i < N_INPUTS; i++) inputs[i] = Py_None;
    inputs[INPUT_X] = arguments[0];
    inputs[INPUT_WEIGHT] = arguments[1];
    inputs[INPUT_BIAS] = arguments[2];
    return norm_or_not_implemented(inputs, arguments[3]);
}

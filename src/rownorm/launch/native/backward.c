/* Backward of the autograd function in ops/eager.py, for the usual call.

   What it gains, with launch.c: experiment HST-03 in docs/experiments/host.md. */

static int backward_is_intercepted(void) { return is_intercepted(backward_conditions); }

/* fast_path.can_skip_dispatcher_in_backward */
static int can_skip_dispatcher_in_backward(PyObject *dy, PyObject *dh) {
    int intercepted = backward_is_intercepted();
    if (intercepted) return intercepted < 0 ? -1 : 0;
    int plain = is_plain(dy);
    return plain == 1 && dh != Py_None ? is_plain(dh) : plain;
}

static int is_contiguous(const DLTensor *t) {
    int64_t expected = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->strides[i] != expected) return 0;
        expected *= t->shape[i];
    }
    return 1;
}

/* Append an incoming gradient, the first or the second, to the key. Returns -1 where it has no storage or too many
   dimensions. */
static int put_gradient(BackwardKey *key, int number, PyObject *tensor, uint64_t *address) {
    DLTensor t;
    key->bits <<= 6;
    *address = 0;
    if (tensor == Py_None) return 0;
    if (describe(tensor, &t) || t.ndim > MAX_DIMENSIONS || (t.strides == NULL && t.ndim)) return -1;
    *address = address_in(&t);
    key->bits |= 32 | (*address & 15);
    if (is_contiguous(&t)) return 0;
    key->bits |= 16;
    memcpy(key->strides[number], t.strides, t.ndim * sizeof(int64_t));
    return 0;
}

/* The backward call that was found for this key, a new reference; NULL without an exception: none yet. */
static PyObject *known_backward_call(PreparedCall *forward_call, const BackwardKey *key) {
    BackwardCall *known = forward_call->backward_calls;
    for (int i = 0; i < MAX_BACKWARD_CALLS; i++)
        if (known[i].call != NULL && known[i].generation == generation && !memcmp(&known[i].key, key, sizeof *key))
            return Py_NewRef(known[i].call);
    return NULL;
}

/* Ask eager.find_backward and remember its answer: a PreparedCall, or None where backward has to run in Python. NULL with
   an exception. */
static PyObject *ask_for_backward_call(PreparedCall *forward_call, const BackwardKey *key, PyObject *ctx, PyObject *dy,
                                       PyObject *dh, PyObject *saved) {
    BackwardCall *known = forward_call->backward_calls;
    unsigned now = generation;
    PyObject *found = PyObject_CallFunctionObjArgs(find_backward, ctx, dy, dh, saved, NULL);
    if (found == NULL) return NULL;
    BackwardCall oldest = known[MAX_BACKWARD_CALLS - 1];
    memmove(known + 1, known, (MAX_BACKWARD_CALLS - 1) * sizeof(BackwardCall));
    known[0] = (BackwardCall){*key, now, Py_NewRef(found)};
    Py_XDECREF(oldest.call);
    return found;
}

/* The addresses of h, pre_bias, weight, bias, mu and rstd: 1, or 0 where they are not the tensors that forward saved and
   Python has to look at them. */
static int read_saved(SavedForBackward *state, PyObject *saved, uint64_t *addresses) {
    int n = state->saved_key == NULL ? N_SAVED : N_SAVED_BY_HOOKS;
    if (!PyTuple_CheckExact(saved) || PyTuple_GET_SIZE(saved) != n) return 0;
    int is_same = 1;
    if (state->saved_key == NULL) {
        for (int i = 0; i < N_SAVED && is_same; i++)
            is_same = !address_of(PyTuple_GET_ITEM(saved, i), &addresses[i]) && addresses[i] == state->addresses[i];
        memcpy(&addresses[N_SAVED], state->statistics, sizeof state->statistics);
    }
    else {
        for (int i = 0; i < n && is_same; i++) {
            PyObject *tensor = PyTuple_GET_ITEM(saved, i);
            is_same = tensor == Py_None || is_plain(tensor) == 1;
        }
        PyObject *key = is_same ? make_key(&PyTuple_GET_ITEM(saved, 0), n, 0, addresses) : NULL;
        is_same = key != NULL && PyObject_RichCompareBool(key, state->saved_key, Py_EQ) == 1;
        Py_XDECREF(key);
    }
    PyErr_Clear();
    return is_same;
}

/* _EagerNorm.backward(ctx, dy, dh=None) for the usual call. NULL without an exception: Python has to do it.

   saved: receives ctx.saved_tensors, a new reference, or stays NULL. They can be asked for once: hooks of activation
   checkpointing refuse a second time. */
static PyObject *usual_backward(PyObject *ctx, PyObject *dy, PyObject *dh, PyObject **saved) {
    /* In the order of reference.BackwardInputs: dy, dh, h, pre_bias, weight, bias, mu, rstd. */
    uint64_t addresses[MAX_TENSORS];
    PyObject *needs = NULL, *call = NULL, *answer = NULL;
    PyObject *forward_state = PyObject_GetAttr(ctx, s_state);
    if (forward_state == NULL || !Py_IS_TYPE(forward_state, &SavedForBackwardType) || dy == Py_None) goto done;
    SavedForBackward *state = (SavedForBackward *)forward_state;
    *saved = PyObject_GetAttr(ctx, s_saved); /* raises where the graph was freed, or a tensor was modified in place */
    if (*saved == NULL || can_skip_dispatcher_in_backward(dy, dh) != 1) goto done;
    BackwardKey key = {0};
    if (put_gradient(&key, 0, dy, &addresses[0]) || put_gradient(&key, 1, dh, &addresses[1])) {
        PyErr_Clear(); /* batched gradients (is_grads_batched) have no storage */
        goto done;
    }
    if (!read_saved(state, *saved, addresses + 2)) goto done;
    needs = PyObject_GetAttr(ctx, s_needs);
    if (needs == NULL || !PyTuple_CheckExact(needs) || PyTuple_GET_SIZE(needs) != N_INPUTS + 1) goto done;
    for (int i = 0; i < N_INPUTS; i++) key.bits = key.bits << 1 | (PyTuple_GET_ITEM(needs, i) == Py_True);
    call = known_backward_call(state->call, &key);
    if (call == NULL) call = ask_for_backward_call(state->call, &key, ctx, dy, dh, *saved);
    if (call != NULL && Py_IS_TYPE(call, &PreparedCallType)) answer = start((PreparedCall *)call, addresses);
done:
    Py_XDECREF(call);
    Py_XDECREF(forward_state);
    Py_XDECREF(needs);
    return answer;
}

/* unrecorded_backward(ctx, dy, dh): without an entry in a profiler's trace */
static PyObject *unrecorded_backward(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    if (n != 3) return PyErr_Format(PyExc_TypeError, "unrecorded_backward takes 3 arguments");
    PyObject *saved = NULL, *answer = usual_backward(arguments[0], arguments[1], arguments[2], &saved);
    if (answer == NULL && !PyErr_Occurred()) {
        PyObject *const all[] = {arguments[0], arguments[1], arguments[2], saved == NULL ? Py_None : saved};
        answer = PyObject_Vectorcall(backward_in_python, all, 4, NULL);
    }
    Py_XDECREF(saved);
    return answer;
}

/* backward(ctx, dy, dh=None) */
static PyObject *backward(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    int is_profiled = n == 2 || n == 3 ? is_true(PyObject_CallNoArgs(is_profiler_enabled)) : 1;
    if (is_profiled < 0) return NULL;
    if (is_profiled) return PyObject_Vectorcall(record_backward, arguments, n, NULL);
    PyObject *const all[] = {arguments[0], arguments[1], n == 3 ? arguments[2] : Py_None};
    return unrecorded_backward(module, all, 3);
}

/* Keys: the prepared call of a forward call is found by the bytes that describe its inputs.

   A key has all that DLPack says about the inputs. Two calls with equal keys are equal for ops/call_key.py too, which
   decides which calls are the same. So a prepared call that Python found for a key can be used again.

   What it gains: experiment HST-05 in docs/experiments/host.md. */

typedef struct {
    Py_ssize_t size;
    char bytes[N_INPUTS * (5 * sizeof(int32_t) + 2 * MAX_DIMENSIONS * sizeof(int64_t)) + 1];
} Key;

static void put(Key *key, const void *bytes, size_t size) {
    memcpy(key->bytes + key->size, bytes, size);
    key->size += (Py_ssize_t)size;
}

/* Append what a call depends on, of one tensor. Returns 1 where Python has to look at the tensor, for example because it
   has no memory; -1 with an exception. */
static int put_tensor(Key *key, PyObject *tensor, uint64_t *address) {
    DLTensor t;
    int32_t head[5] = {-1};
    *address = 0;
    if (tensor == Py_None) {
        put(key, head, sizeof head[0]);
        return 0;
    }
    if (describe(tensor, &t)) return -1;
    *address = address_in(&t);
    if (*address == 0 || t.ndim > MAX_DIMENSIONS || (t.strides == NULL && t.ndim)) return 1;
    int found = has_memory(tensor, *address);
    if (found != 1) return found < 0 ? -1 : 1;
    head[0] = t.ndim;
    head[1] = (int32_t)(*address & 15);
    head[2] = t.device.device_type;
    head[3] = t.device.device_id;
    memcpy(&head[4], &t.dtype, sizeof head[4]);
    put(key, head, sizeof head);
    put(key, t.shape, t.ndim * sizeof(int64_t));
    put(key, t.strides, t.ndim * sizeof(int64_t));
    return 0;
}

/* The key of a forward call on these inputs as ``bytes``, and their addresses. NULL without an exception: Python has to do
   it. */
static PyObject *make_key(PyObject *const *inputs, int want_statistics, uint64_t *addresses) {
    Key key;
    key.size = 0;
    for (int i = 0; i < N_INPUTS; i++)
        if (put_tensor(&key, inputs[i], &addresses[i])) return NULL;
    key.bytes[key.size++] = (char)want_statistics;
    return PyBytes_FromStringAndSize(key.bytes, key.size);
}

/* forward_key(*inputs, want_statistics) */
static PyObject *forward_key(PyObject *module, PyObject *const *arguments, Py_ssize_t n) {
    uint64_t addresses[N_INPUTS];
    if (n != N_INPUTS + 1) return PyErr_Format(PyExc_TypeError, "forward_key takes %d arguments", N_INPUTS + 1);
    PyObject *key = make_key(arguments, arguments[N_INPUTS] == Py_True, addresses);
    return key != NULL || PyErr_Occurred() ? key : Py_NewRef(Py_None);
}

/* Incremented whenever plans may have changed. A call that was found in an earlier generation is not used. */
static unsigned generation;

/* By options, then by key: a PreparedCall, or None where Python has to do the call. Only what Python has checked is
   stored. */
static PyObject *forward_calls;
static Py_ssize_t n_forward_calls;

static void forget_forward_calls(void) {
    PyDict_Clear(forward_calls);
    n_forward_calls = 0;
}

/* Whether these options can be looked up. A number that is a bool cannot: Python refuses True, which equals 1. */
static int can_be_known(PyObject *options) {
    if (!PyTuple_Check(options)) return 0;
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(options); i++)
        if (NUMBER_OPTIONS >> i & 1 && PyBool_Check(PyTuple_GET_ITEM(options, i))) return 0;
    return 1;
}

static int store_call(PyObject *options, PyObject *key, PyObject *call) {
    if (n_forward_calls >= MAX_PREPARED_CALLS) forget_forward_calls();
    PyObject *calls = PyDict_GetItemWithError(forward_calls, options);
    if (calls == NULL) {
        if (PyErr_Occurred() || (calls = PyDict_New()) == NULL) return -1;
        int failed = PyDict_SetItem(forward_calls, options, calls);
        Py_DECREF(calls);
        if (failed) return -1;
    }
    n_forward_calls++;
    return PyDict_SetItem(calls, key, call);
}

/* Ask execute.find_forward, and store its answer: a PreparedCall or None. A new reference; NULL with an exception. */
static PyObject *ask_python(PyObject *const *inputs, PyObject *options, int want_statistics, PyObject *key) {
    unsigned now = generation;
    PyObject *tuple = tuple_of(inputs, N_INPUTS);
    PyObject *wanted = want_statistics ? Py_True : Py_False;
    PyObject *found = tuple == NULL ? NULL : PyObject_CallFunctionObjArgs(find_forward_in_python, tuple, options,
                                                                        wanted, NULL);
    Py_XDECREF(tuple);
    if (found != NULL && now == generation && store_call(options, key, found)) Py_CLEAR(found);
    return found;
}

/* The prepared call for these inputs, a new reference, and their addresses. NULL, with an exception or without: Python
   has to do the call, and raises an error that explains what is wrong with it. */
static PreparedCall *find_forward(PyObject *const *inputs, PyObject *options, int want_statistics,
                                  uint64_t *addresses) {
    PyObject *key = can_be_known(options) ? make_key(inputs, want_statistics, addresses) : NULL;
    if (key == NULL) return NULL;
    PyObject *calls = PyDict_GetItemWithError(forward_calls, options);
    PyObject *call = calls == NULL ? NULL : PyDict_GetItemWithError(calls, key);
    Py_XINCREF(call);
    if (call == NULL && !PyErr_Occurred()) call = ask_python(inputs, options, want_statistics, key);
    Py_DECREF(key);
    if (call != NULL && !Py_IS_TYPE(call, &PreparedCallType)) Py_CLEAR(call);
    return (PreparedCall *)call;
}

/* The backward calls that belong to a forward call: node.cpp finds them here. */

/* The backward call that was found for this key, a new reference; NULL without an exception: none yet. */
static PyObject *known_backward_call(PreparedCall *forward_call, const BackwardKey *key) {
    BackwardCall *known = forward_call->backward_calls;
    for (int i = 0; i < MAX_BACKWARD_CALLS; i++)
        if (known[i].call != NULL && known[i].generation == generation && !memcmp(&known[i].key, key, sizeof *key))
            return Py_NewRef(known[i].call);
    return NULL;
}

/* Ask the find_backward of eager.Native and remember its answer: a PreparedCall, or None where backward has to run in Python. NULL with
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

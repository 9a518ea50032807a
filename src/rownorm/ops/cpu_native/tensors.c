/* Tensors of PyTorch, read through DLPack's C interface and allocated by PyTorch. */

static PyObject *tensor_type, *parameter_type, *empty_like, *empty_strided, *fp32_on_cpu, *has_memory_in_python;
static const DLPackExchangeAPI *dlpack;
/* ``new_on_cpu`` of launch/native/node.cpp. NULL until it is loaded: PyTorch's functions in Python allocate. */
static PyObject *(*new_tensor)(DLDataType dtype, int n_dims, const int64_t *shape, void **data);
static const DLDataType DLPACK_TYPE[] = {{kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLBfloat, 16, 1}}; /* by DType */

typedef struct {
    DType dtype;
    void *data; /* NULL: None */
    int n_dims;
    const int64_t *shape; /* owned by the tensor */
    int64_t n_rows, n_cols;
} Rows;

static DType dtype_of(DLDataType type) {
    if (type.code == kDLBfloat) return BF16;
    if (type.code != kDLFloat) return OTHER;
    return type.bits == 32 ? FP32 : type.bits == 16 && HAS_FP16 ? FP16 : OTHER;
}

/* Whether the memory of a tensor is there: it may be freed, or the tensor may stand for zeros. checks.LOW_ADDRESS gives
   the reason for the bound. */
static int has_memory(PyObject *tensor, void *data) {
    if ((uint64_t)(uintptr_t)data >> 32) return 1;
    PyObject *answer = data == NULL ? NULL : PyObject_CallOneArg(has_memory_in_python, tensor);
    PyErr_Clear(); /* Python looks at the tensor again */
    Py_XDECREF(answer);
    return answer == Py_True;
}

/* Whether this is None, or a contiguous tensor of a covered dtype on the CPU, with elements and memory. */
static int read_rows(PyObject *tensor, Rows *rows) {
    *rows = (Rows){0};
    if (tensor == Py_None) return 1;
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    if (type != tensor_type && type != parameter_type) return 0;
    DLTensor t;
    if (dlpack->dltensor_from_py_object_no_sync(tensor, &t)) {
        PyErr_Clear();
        return 0;
    }
    rows->dtype = dtype_of(t.dtype);
    if (t.device.device_type != kDLCPU || rows->dtype == OTHER) return 0;
    int64_t n_elements = 1;
    for (int i = t.ndim - 1; i >= 0; i--) {
        if (t.shape[i] != 1 && t.strides[i] != n_elements) return 0;
        n_elements *= t.shape[i];
    }
    if (n_elements == 0 || !has_memory(tensor, t.data)) return 0;
    rows->data = (char *)t.data + t.byte_offset;
    rows->n_dims = t.ndim;
    rows->shape = t.shape;
    rows->n_cols = t.ndim == 0 ? 1 : t.shape[t.ndim - 1];
    rows->n_rows = n_elements / rows->n_cols;
    return 1;
}

static int read_all(PyObject *tensors, Rows *rows, int n) {
    if (!PyTuple_Check(tensors) || PyTuple_GET_SIZE(tensors) != n) return 0;
    for (int i = 0; i < n; i++)
        if (!read_rows(PyTuple_GET_ITEM(tensors, i), &rows[i])) return 0;
    return 1;
}

/* Whether ``rows`` is None or has the shape of x. */
static int fits_rows(const Rows *rows, const Rows *x) {
    return rows->data == NULL
           || (rows->n_dims == x->n_dims && !memcmp(rows->shape, x->shape, x->n_dims * sizeof *x->shape));
}

/* Whether ``parameter`` is None or has one element for each column of x. */
static int fits_columns(const Rows *parameter, const Rows *x) {
    return parameter->data == NULL || (parameter->n_dims == 1 && parameter->n_cols == x->n_cols);
}

/* Whether ``statistic`` is None or has one element in fp32 for each row of x. */
static int fits_statistic(const Rows *statistic, const Rows *x) {
    return statistic->data == NULL
           || (statistic->dtype == FP32 && statistic->n_rows * statistic->n_cols == x->n_rows);
}

/* A parameter in fp32; NULL for None. */
static const float *parameter_in_fp32(const Rows *parameter, float *copy) {
    return parameter->data == NULL ? NULL : in_fp32(parameter->dtype, parameter->data, copy, parameter->n_cols);
}

/* weight + weight_shift in fp32; NULL for None. */
static const float *scale_in_fp32(const Rows *weight, double shift, float *copy) {
    if (shift == 0 || weight->data == NULL) return parameter_in_fp32(weight, copy);
    load(weight->dtype, weight->data, copy, weight->n_cols);
    for (int64_t i = 0; i < weight->n_cols; i++) copy[i] += (float)shift;
    return copy;
}

/* ``tensor``, a new reference, and its data. NULL with an exception. */
static PyObject *with_data(PyObject *tensor, void *data) {
    Rows rows;
    if (tensor == NULL) return NULL;
    if (!read_rows(tensor, &rows)) {
        Py_DECREF(tensor);
        PyErr_SetString(PyExc_RuntimeError, "PyTorch allocated a tensor that cannot be written");
        return NULL;
    }
    memcpy(data, &rows.data, sizeof rows.data);
    return tensor;
}

/* A tensor like ``tensor``, which was read as ``rows``; its data is written to ``data``, a pointer to a pointer. */
static PyObject *allocate_like(PyObject *tensor, const Rows *rows, void *data) {
    if (new_tensor != NULL) return new_tensor(DLPACK_TYPE[rows->dtype], rows->n_dims, rows->shape, data);
    return with_data(PyObject_CallOneArg(empty_like, tensor), data);
}

/* A tensor with one element in fp32 for each row of x. empty_strided parses its arguments faster than empty. */
static PyObject *allocate_statistic(const Rows *x, void *data) {
    int n = x->n_dims - 1;
    if (new_tensor != NULL) return new_tensor(DLPACK_TYPE[FP32], n, x->shape, data);
    PyObject *shape = PyTuple_New(n), *strides = PyTuple_New(n), *tensor = NULL;
    int64_t stride = 1;
    for (int i = n - 1; shape != NULL && strides != NULL && i >= 0; i--) {
        PyTuple_SET_ITEM(shape, i, PyLong_FromLongLong(x->shape[i]));
        PyTuple_SET_ITEM(strides, i, PyLong_FromLongLong(stride));
        stride *= x->shape[i];
    }
    PyObject *arguments[] = {shape, strides};
    if (!PyErr_Occurred()) tensor = PyObject_VectorcallDict(empty_strided, arguments, 2, fp32_on_cpu);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return with_data(tensor, data);
}

/* A tuple of these tensors, whose references it takes; None for NULL. NULL where there is an exception. */
static PyObject *as_tuple(PyObject **tensors, int n) {
    PyObject *tuple = PyErr_Occurred() ? NULL : PyTuple_New(n);
    for (int i = 0; i < n; i++)
        if (tuple == NULL) Py_XDECREF(tensors[i]);
        else PyTuple_SET_ITEM(tuple, i, tensors[i] == NULL ? Py_NewRef(Py_None) : tensors[i]);
    return tuple;
}

/* The module: what Python passes in, and what it gets. Compiled last.

   ``forward`` and ``backward`` return None for a call that they do not cover: an activation, an out_dtype, fp64, a
   tensor that is not contiguous or has no elements, or arguments that ops/checks.py may refuse. Python then computes
   it. */

typedef struct {
    int center, rounds_x_hat, batch_invariant; /* rounds_x_hat: rounding="llama" */
    double eps, weight_shift;
} Options;

/* The numbers of inputs and options are flags of the compiler, from the description of the row program. What is not
   named here is not covered unless it is absent, or has its default. */
enum {
    READ_OPTIONS = 1 << OPTION_CENTER | 1 << OPTION_EPS | 1 << OPTION_WEIGHT_SHIFT | 1 << OPTION_ROUNDING
                   | 1 << OPTION_BATCH_INVARIANT,
    READ_INPUTS = 1 << INPUT_X | 1 << INPUT_RESIDUAL | 1 << INPUT_PRE_BIAS | 1 << INPUT_WEIGHT | 1 << INPUT_BIAS,
    N_OTHER_INPUTS = N_INPUTS - N_ROWS_OF_H,
};
static PyObject *defaults; /* of the fields of a Program */

/* Whether the fields of a Program, in a tuple, are valid and covered. */
static int read_options(PyObject *fields, Options *options) {
    if (!PyTuple_Check(fields) || PyTuple_GET_SIZE(fields) != N_OPTIONS) return 0;
    for (int i = 0; i < N_OPTIONS; i++) {
        PyObject *value = PyTuple_GET_ITEM(fields, i), *usual = PyTuple_GET_ITEM(defaults, i);
        if (READ_OPTIONS >> i & 1 || value == usual) continue;
        int is_usual = PyObject_RichCompareBool(value, usual, Py_EQ);
        if (is_usual < 0) PyErr_Clear(); /* checks.py says what is wrong with it */
        if (is_usual != 1) return 0;
    }
    PyObject *center = PyTuple_GET_ITEM(fields, OPTION_CENTER), *eps = PyTuple_GET_ITEM(fields, OPTION_EPS);
    PyObject *weight_shift = PyTuple_GET_ITEM(fields, OPTION_WEIGHT_SHIFT);
    PyObject *rounding = PyTuple_GET_ITEM(fields, OPTION_ROUNDING);
    if (!PyFloat_CheckExact(eps) || !PyFloat_CheckExact(weight_shift) || !PyUnicode_Check(rounding)) return 0;
    options->center = center == Py_True;
    options->batch_invariant = PyTuple_GET_ITEM(fields, OPTION_BATCH_INVARIANT) == Py_True;
    options->eps = PyFloat_AS_DOUBLE(eps);
    options->weight_shift = PyFloat_AS_DOUBLE(weight_shift);
    options->rounds_x_hat = PyUnicode_CompareWithASCIIString(rounding, "once") != 0;
    if (options->rounds_x_hat && PyUnicode_CompareWithASCIIString(rounding, "llama")) return 0;
    return isfinite(options->eps) && options->eps >= 0 && isfinite(options->weight_shift);
}

/* Whether all inputs that are there are covered. in: those from ``first`` on. */
static int are_known(const Rows *in, int first) {
    for (int i = first; i < N_INPUTS; i++)
        if (!(READ_INPUTS >> i & 1) && in[i - first].data != NULL) return 0;
    return 1;
}

/* forward(inputs, options, want_statistics) -> (y, h, mu, rstd) or None */
static PyObject *forward(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments) {
    enum { X = INPUT_X, RESIDUAL = INPUT_RESIDUAL, PRE_BIAS = INPUT_PRE_BIAS, WEIGHT = INPUT_WEIGHT, BIAS = INPUT_BIAS };
    enum { Y, H, MU, RSTD, N_OUTPUTS };
    Rows in[N_INPUTS];
    Options options;
    if (n_arguments != 3) return PyErr_Format(PyExc_TypeError, "forward takes 3 arguments");
    if (!read_options(arguments[1], &options) || !read_all(arguments[0], in, N_INPUTS) || !are_known(in, 0))
        Py_RETURN_NONE;
    const Rows *x = &in[X];
    int want_statistics = arguments[2] == Py_True;
    if (x->data == NULL || x->n_dims == 0 || !fits_rows(&in[RESIDUAL], x) || !fits_columns(&in[PRE_BIAS], x)
        || !fits_columns(&in[WEIGHT], x) || !fits_columns(&in[BIAS], x)
        || (options.weight_shift != 0 && in[WEIGHT].data == NULL)) Py_RETURN_NONE;

    Forward f = {.n_cols = x->n_cols, .center = options.center, .eps = options.eps,
                 .rounds_x_hat = options.rounds_x_hat && x->dtype != FP32,
                 .x_dtype = x->dtype, .h_dtype = in[RESIDUAL].dtype, .x = x->data, .residual = in[RESIDUAL].data};
    Work work = {forward_rows, &f, x->n_rows, x->n_rows * x->n_cols, 1};
    if (choose_threads(&work)) return NULL;
    float *memory = malloc((3 + FORWARD_SCRATCH * work.n_threads) * x->n_cols * sizeof *memory);
    if (memory == NULL) return PyErr_NoMemory();
    f.pre_bias = parameter_in_fp32(&in[PRE_BIAS], memory);
    f.weight = scale_in_fp32(&in[WEIGHT], options.weight_shift, memory + x->n_cols);
    f.bias = parameter_in_fp32(&in[BIAS], memory + 2 * x->n_cols);
    f.scratch = memory + 3 * x->n_cols;

    PyObject *const *tensors = &PyTuple_GET_ITEM(arguments[0], 0), *outputs[N_OUTPUTS] = {NULL};
    int is_allocated = (outputs[Y] = allocate_like(tensors[X], x, &f.y)) != NULL
        && (f.residual == NULL || (outputs[H] = allocate_like(tensors[RESIDUAL], &in[RESIDUAL], &f.h)) != NULL)
        && (!(want_statistics && f.center) || (outputs[MU] = allocate_statistic(x, &f.mu)) != NULL)
        && (!want_statistics || (outputs[RSTD] = allocate_statistic(x, &f.rstd)) != NULL);
    if (is_allocated) run(&work);
    free(memory);
    return as_tuple(outputs, N_OUTPUTS);
}

/* backward((dy, dh, h, the inputs that are not rows of h, x or None, mu, rstd), options, has_residual, wanted) -> gradients of the inputs,
   or None */
static PyObject *backward(PyObject *module, PyObject *const *arguments, Py_ssize_t n_arguments) {
    enum { DY, DH, H, OTHERS, X = OTHERS + N_OTHER_INPUTS, MU, RSTD, N };
    enum {
        PRE_BIAS = OTHERS + INPUT_PRE_BIAS - N_ROWS_OF_H,
        WEIGHT = OTHERS + INPUT_WEIGHT - N_ROWS_OF_H,
        BIAS = OTHERS + INPUT_BIAS - N_ROWS_OF_H,
    };
    static const int LIKE[N_INPUTS] = {[INPUT_X] = DY, [INPUT_RESIDUAL] = H, [INPUT_PRE_BIAS] = PRE_BIAS,
                                       [INPUT_WEIGHT] = WEIGHT, [INPUT_BIAS] = BIAS};
    static const int INPUT_OF_SUM[N_SUMS] = {[DPRE_BIAS] = INPUT_PRE_BIAS, [DWEIGHT] = INPUT_WEIGHT,
                                             [DBIAS] = INPUT_BIAS};
    Rows in[N];
    Options options;
    if (n_arguments != 4) return PyErr_Format(PyExc_TypeError, "backward takes 4 arguments");
    PyObject *wanted = arguments[3];
    if (!read_options(arguments[1], &options) || !read_all(arguments[0], in, N)
        || !are_known(in + OTHERS, N_ROWS_OF_H) || !PyTuple_Check(wanted) || PyTuple_GET_SIZE(wanted) != N_INPUTS)
        Py_RETURN_NONE;
    for (int i = 0; i < N_INPUTS; i++)
        if (PyTuple_GET_ITEM(wanted, i) == Py_True && !(READ_INPUTS >> i & 1)) Py_RETURN_NONE;
    const Rows *dy = &in[DY];
    int has_residual = arguments[2] == Py_True;
    if (dy->data == NULL || dy->n_dims == 0 || in[H].data == NULL || in[RSTD].data == NULL
        || options.center != (in[MU].data != NULL) || !fits_rows(&in[DH], dy)
        || (in[DH].data != NULL && in[DH].dtype != in[H].dtype) || !fits_rows(&in[H], dy)
        || !fits_columns(&in[PRE_BIAS], dy) || !fits_columns(&in[WEIGHT], dy) || !fits_columns(&in[BIAS], dy)
        || !fits_statistic(&in[MU], dy) || !fits_statistic(&in[RSTD], dy)) Py_RETURN_NONE;

    int64_t n = dy->n_cols, n_parts = number_of_parts(dy->n_rows, n);
    Backward b = {.n_rows = dy->n_rows, .n_cols = n, .n_parts = n_parts, .center = options.center,
                  .rounds_x_hat = options.rounds_x_hat && dy->dtype != FP32, .dy_dtype = dy->dtype,
                  .one_by_one = options.batch_invariant, .h_dtype = in[H].dtype, .dy = dy->data, .dh = in[DH].data,
                  .h = in[H].data, .mu = in[MU].data, .rstd = in[RSTD].data};
    Work work = {backward_parts, &b, n_parts, dy->n_rows * n, 1};
    if (choose_threads(&work)) return NULL;
    float *memory = malloc((2 + N_SUMS * n_parts + BACKWARD_SCRATCH * work.n_threads) * n * sizeof *memory);
    if (memory == NULL) return PyErr_NoMemory();
    b.pre_bias = has_residual ? NULL : parameter_in_fp32(&in[PRE_BIAS], memory); /* h with a residual includes it */
    b.weight = scale_in_fp32(&in[WEIGHT], options.weight_shift, memory + n);
    if (b.weight == NULL) b.weight = fill(memory + n, 1, n);
    b.sums = memory + 2 * n;
    b.scratch = b.sums + N_SUMS * n_parts * n;

    PyObject *gradients[N_INPUTS] = {NULL};
    void *data[N_INPUTS] = {NULL};
    int is_allocated = 1;
    for (int i = 0; i < N_INPUTS && is_allocated; i++)
        if (PyTuple_GET_ITEM(wanted, i) == Py_True && in[LIKE[i]].data != NULL) {
            gradients[i] = allocate_like(PyTuple_GET_ITEM(arguments[0], LIKE[i]), &in[LIKE[i]], &data[i]);
            is_allocated = gradients[i] != NULL;
        }
    if (is_allocated) {
        b.dx = data[INPUT_X];
        b.dresidual = data[INPUT_RESIDUAL];
        for (int i = 0; i < N_SUMS; i++) b.wanted[i] = data[INPUT_OF_SUM[i]] != NULL;
        b.wanted[DWEIGHT] = b.wanted[DBIAS] = b.wanted[DWEIGHT] || b.wanted[DBIAS];
        run(&work);
        add_parts(&b);
        for (int i = 0; i < N_SUMS; i++) {
            int input = INPUT_OF_SUM[i];
            if (data[input] != NULL) store(in[LIKE[input]].dtype, b.sums + i * n, data[input], n);
        }
    }
    free(memory);
    return as_tuple(gradients, N_INPUTS);
}

/* use(Tensor, Parameter, Tensor.__dlpack_c_exchange_api__, torch.empty_like, torch.empty_strided, its keywords for fp32
   on a CPU, checks.has_memory, torch.get_num_threads, the defaults of a Program's fields, addresses of GOMP_parallel,
   omp_get_thread_num and omp_get_num_threads): the addresses are 0 where there is no OpenMP. */
static PyObject *use(PyObject *module, PyObject *arguments) {
    PyObject *capsule;
    unsigned long long parallel, thread, threads;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOOKKK:use", &tensor_type, &parameter_type, &capsule, &empty_like,
                          &empty_strided, &fp32_on_cpu, &has_memory_in_python, &get_num_threads, &defaults, &parallel,
                          &thread, &threads)) return NULL;
    dlpack = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (dlpack == NULL) return NULL;
    if (dlpack->header.version.major != DLPACK_MAJOR_VERSION || dlpack->dltensor_from_py_object_no_sync == NULL)
        return PyErr_Format(PyExc_RuntimeError, "this version of DLPack is not known");
    omp_parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))(uintptr_t)parallel;
    omp_thread = (int (*)(void))(uintptr_t)thread;
    omp_threads = (int (*)(void))(uintptr_t)threads;
    Py_INCREF(arguments); /* owns every object, as long as the process lives */
    Py_RETURN_NONE;
}

/* use_allocator(``allocator`` of node.cpp, or None): tensors are allocated by it, or by the functions in Python. */
static PyObject *use_allocator(PyObject *module, PyObject *capsule) {
    void *function = capsule == Py_None ? NULL : PyCapsule_GetPointer(capsule, "rownorm_node.allocator");
    if (PyErr_Occurred()) return NULL;
    memcpy(&new_tensor, &function, sizeof new_tensor);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"use", use, METH_VARARGS, "Take the functions and types of PyTorch."},
    {"use_allocator", use_allocator, METH_O, "Take the allocator in C++."},
    {"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL, "execute.forward, or None"},
    {"backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL, "execute.backward, or None"},
    {NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "rownorm_cpu", NULL, -1, methods};

PyMODINIT_FUNC PyInit_rownorm_cpu(void) { return PyModule_Create(&definition); }

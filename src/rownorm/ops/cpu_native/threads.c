/* Work divided among the threads of PyTorch: the OpenMP that PyTorch loaded is called, so there is no second pool. */

enum { GRAIN = 1 << 14 }; /* elements that are worth a thread, and releasing the GIL */

static PyObject *get_num_threads;
/* NULL: every call runs in one thread. */
static void (*omp_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*omp_thread)(void), (*omp_threads)(void);

typedef struct {
    void (*body)(void *context, int64_t begin, int64_t end, int thread);
    void *context;
    int64_t n_items, n_elements; /* items are divided; all of them together have so many elements */
    int n_threads;
} Work;

/* Set n_threads. -1 with an exception. */
static int choose_threads(Work *work) {
    int64_t useful = work->n_elements / GRAIN;
    if (useful > work->n_items) useful = work->n_items;
    if (omp_parallel == NULL || useful < 2) return 0;
    PyObject *number = PyObject_CallNoArgs(get_num_threads);
    long available = number == NULL ? -1 : PyLong_AsLong(number);
    Py_XDECREF(number);
    if (PyErr_Occurred()) return -1;
    work->n_threads = available < useful ? (int)available : (int)useful;
    return 0;
}

static void run_in_team(void *data) {
    const Work *work = data;
    int64_t thread = omp_thread(), n_threads = omp_threads(), n = work->n_items;
    work->body(work->context, n * thread / n_threads, n * (thread + 1) / n_threads, (int)thread);
}

static void run(Work *work) {
    if (work->n_elements < GRAIN) {
        work->body(work->context, 0, work->n_items, 0);
        return;
    }
    Py_BEGIN_ALLOW_THREADS;
    if (work->n_threads < 2) work->body(work->context, 0, work->n_items, 0);
    else omp_parallel(run_in_team, work, (unsigned)work->n_threads, 0);
    Py_END_ALLOW_THREADS;
}

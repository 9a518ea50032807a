/* What the C files and node.cpp share: includes, limits, and the description of a call that is ready to start.

   Valid C and C++. Both extensions have it as their first file. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <ATen/dlpack.h>
#include <cuda.h>
#include <stdint.h>
#include <string.h>

enum {
    MAX_TENSORS = 32,         /* of one prepared call: inputs and allocated tensors */
    MAX_PARAMETERS = 64,      /* of one kernel */
    MAX_RETURNED = 12,        /* tensors that one prepared call returns */
    MAX_DIMENSIONS = 8,       /* of a tensor in a cache key */
    MAX_PREPARED_CALLS = 4096, /* of forward; when there are more, all of them are dropped */
    MAX_BACKWARD_CALLS = 4,   /* that one forward call remembers */
};

/* The compiler gets these as flags, from the description of the row program (program.c_definitions):
     N_INPUTS, INPUT_X, ...   the tensors of a call, and the index of each
     N_ROWS_OF_H              how many of them, from the first on, are rows that h is the sum of
     TERMS_OF_H               bit i: h depends on input i
     N_SAVED                  what autograd saves: h, the inputs after the rows of h, x beside a residual_gate, mu, rstd */

typedef struct {
    int index;      /* among the addresses of a call; -1: ``value`` is passed */
    uint64_t value; /* the kernel reads as many of its bytes as the parameter has */
} Parameter;

typedef struct {
    CUfunction function;
    CUlaunchConfig config; /* without the stream, which is asked for at every call */
    CUlaunchAttribute attributes[3];
    Py_ssize_t n_parameters;
    Parameter parameters[MAX_PARAMETERS];
} Kernel;

/* What a backward call depends on, beside the forward call. ``bits``, from the lowest: which of the N_INPUTS inputs need
   a gradient, the last input first; then 6 for dh and 6 for dy:

     5        4          3 to 0
     is there strided    its address & 15 */
typedef struct {
    uint64_t bits; /* as wide as a stride, so that the struct has no padding and can be compared as bytes */
    int64_t strides[2][MAX_DIMENSIONS]; /* of dy and dh where they are strided, which is not contiguous; else 0 */
} BackwardKey;

/* A backward call that was found for a forward call. */
typedef struct {
    BackwardKey key;
    unsigned generation;
    PyObject *call; /* a PreparedCall; None where backward has to run in Python; NULL: empty */
} BackwardCall;

typedef struct {
    PyObject_HEAD
    PyObject *arguments; /* of PreparedCall(...). It owns every object below, except those in ``backward_calls``. */
    PyObject *device, *fallback;
    int n_inputs, checks_device;
    Py_ssize_t n_allocated, n_returned, n_kernels;
    PyObject *allocators[MAX_TENSORS], *allocator_arguments[MAX_TENSORS];
    int returned[MAX_RETURNED];   /* indices among the allocated tensors; -1: None */
    BackwardCall backward_calls[MAX_BACKWARD_CALLS]; /* of a forward call */
    Kernel *kernels;
    void *allocations; /* of node.cpp: what the allocators do, read from their arguments */
    void (*free_allocations)(void *);
} PreparedCall;

/* The functions of the C extension that node.cpp calls, all of them with the GIL. launch.c, keys.c, eager.c and backward.c
   say what they do. */
typedef struct {
    size_t size, prepared_call_size; /* of these structs: node.cpp may be compiled much later, from another version */
    PyTypeObject *prepared_call_type;
    PreparedCall *(*find_forward)(PyObject *const *inputs, PyObject *options, int want_statistics, uint64_t *addresses);
    PyObject *(*known_backward_call)(PreparedCall *forward_call, const BackwardKey *key);
    PyObject *(*ask_for_backward_call)(PreparedCall *forward_call, const BackwardKey *key, PyObject *ctx, PyObject *dy,
                                       PyObject *dh, PyObject *saved);
    int (*needs_python)(PreparedCall *call);
    int (*launch_kernels)(PreparedCall *call, uint64_t *addresses);
    int (*left_to_python)(void);
} Interface;

#define INTERFACE "rownorm_native.interface" /* the name of the capsule that holds it */

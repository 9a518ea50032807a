/* Backward of the row program:

     x_hat = (h - mu) * rstd, g = dy [* weight]
     dx = (g - x_hat * mean(g * x_hat) [- mean(g)]) * rstd [+ dh]
     dpre_bias, dweight, dbias = sums over all rows of dx, dy * x_hat, dy

   The rows are divided into parts. Their number does not depend on the number of threads, so the gradients do not
   either. The sums of a part are added in groups of GROUP_ROWS rows, and then those of the parts in their order. */

enum { GROUP_ROWS = 64, MAX_PARTS = 64 };
enum { PART_ROWS = 16, PART_ELEMENTS = 1 << 14 }; /* at least, so that adding up the parts takes little time */
enum { DPRE_BIAS, DWEIGHT, DBIAS, N_SUMS };
enum { BACKWARD_SCRATCH = 4 + N_SUMS }; /* rows for each thread */

typedef struct {
    int64_t n_rows, n_cols, n_parts;
    int center, rounds_x_hat; /* rounds_x_hat: to the dtype of dy, for dweight */
    DType dy_dtype, h_dtype;
    void *dy, *dh, *h; /* dh has the dtype of h; NULL: none */
    const float *pre_bias; /* NULL: none */
    const float *weight;   /* ones: none */
    const float *mu, *rstd;
    void *dx, *dresidual; /* in the dtypes of dy and of h; NULL: not wanted */
    int wanted[N_SUMS];
    float *sums; /* N_SUMS rows for each part */
    float *scratch;
} Backward;

static int64_t number_of_parts(int64_t n_rows, int64_t n_cols) {
    int64_t n = n_rows * n_cols / PART_ELEMENTS;
    if (n > n_rows / PART_ROWS) n = n_rows / PART_ROWS;
    if (n > MAX_PARTS) n = MAX_PARTS;
    return n < 1 ? 1 : n;
}

static void add_to(const float *restrict from, float *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

typedef struct { float *restrict dpre_bias, *restrict dweight, *restrict dbias; } ColumnSums;

/* dx = (dy * weight - x_hat * along - mean) * rstd, and with_sums the terms of dweight and dbias. */
INLINE void finish_row(const float *dy, const float *h, Moments m, const float *weight, float along, float mean,
                       float *restrict dx, ColumnSums to, int with_sums, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float x_hat = (h[i] - m.mu) * m.rstd;
        dx[i] = (dy[i] * weight[i] - x_hat * along - mean) * m.rstd;
        if (with_sums) {
            to.dweight[i] += dy[i] * x_hat;
            to.dbias[i] += dy[i];
        }
    }
}

/* The terms of dweight and dbias where x_hat is rounded. */
static void add_rounded(const Backward *b, const float *dy, const float *h, Moments m, ColumnSums to, float *x_hat,
                        void *rounded) {
    int64_t n = b->n_cols;
    normalize(h, m, NULL, NULL, x_hat, n);
    store(b->dy_dtype, x_hat, rounded, n);
    load(b->dy_dtype, rounded, x_hat, n);
    for (int64_t i = 0; i < n; i++) to.dweight[i] += dy[i] * x_hat[i];
    add_to(dy, to.dbias, n);
}

static void backward_row(const Backward *b, int64_t row, float *scratch, ColumnSums to) {
    int64_t n = b->n_cols;
    float *first = scratch, *second = scratch + n, *third = scratch + 2 * n, *fourth = scratch + 3 * n;
    const float *dy = in_fp32(b->dy_dtype, row_of(b->dy, b->dy_dtype, row, n), first, n);
    const float *h = in_fp32(b->h_dtype, row_of(b->h, b->h_dtype, row, n), second, n);
    Moments m = {b->center ? b->mu[row] : 0, b->rstd[row]};
    if (b->pre_bias != NULL) {
        add(h, b->pre_bias, second, n);
        h = second;
    }
    Sums g = sums((Term){.value = dy, .factor = b->weight}, 1, (Term){h, NULL, m.mu, m.rstd}, n);
    float along = (float)(g.product / (double)n), mean = b->center ? (float)(g.first / (double)n) : 0;
    void *stored_dx = b->dx == NULL ? NULL : row_of(b->dx, b->dy_dtype, row, n);
    float *dx = stored_dx != NULL && b->dy_dtype == FP32 ? stored_dx : third;
    int has_sums = b->wanted[DWEIGHT] || b->wanted[DBIAS];
    if (has_sums && !b->rounds_x_hat) finish_row(dy, h, m, b->weight, along, mean, dx, to, 1, n);
    else finish_row(dy, h, m, b->weight, along, mean, dx, to, 0, n);
    if (has_sums && b->rounds_x_hat) add_rounded(b, dy, h, m, to, fourth, second);
    if (b->dh != NULL) add_to(in_fp32(b->h_dtype, row_of(b->dh, b->h_dtype, row, n), fourth, n), dx, n);
    if (stored_dx != NULL && stored_dx != dx) store(b->dy_dtype, dx, stored_dx, n);
    if (b->dresidual != NULL) store(b->h_dtype, dx, row_of(b->dresidual, b->h_dtype, row, n), n);
    if (b->wanted[DPRE_BIAS]) add_to(dx, to.dpre_bias, n);
}

static void backward_parts(void *context, int64_t begin, int64_t end, int thread) {
    const Backward *b = context;
    int64_t n = b->n_cols, n_sums = N_SUMS * n;
    float *scratch = b->scratch + thread * BACKWARD_SCRATCH * n, *group = scratch + 4 * n;
    ColumnSums to = {group + DPRE_BIAS * n, group + DWEIGHT * n, group + DBIAS * n};
    for (int64_t part = begin; part < end; part++) {
        float *total = b->sums + part * n_sums;
        int64_t row = b->n_rows * part / b->n_parts, last = b->n_rows * (part + 1) / b->n_parts;
        memset(total, 0, n_sums * sizeof *total);
        while (row < last) {
            int64_t stop = last - row < GROUP_ROWS ? last : row + GROUP_ROWS;
            memset(group, 0, n_sums * sizeof *group);
            for (; row < stop; row++) backward_row(b, row, scratch, to);
            add_to(group, total, n_sums);
        }
    }
}

/* Add the sums of all parts to those of the first. */
static void add_parts(const Backward *b) {
    int64_t n_sums = N_SUMS * b->n_cols;
    for (int64_t part = 1; part < b->n_parts; part++) add_to(b->sums + part * n_sums, b->sums, n_sums);
}

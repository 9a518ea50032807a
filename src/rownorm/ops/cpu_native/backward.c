/* Backward of the row program:

     x_hat = (h - mu) * rstd, g = dy [* weight]
     dx = (g - x_hat * mean(g * x_hat) [- mean(g)]) * rstd [+ dh]
     dpre_bias, dweight, dbias = sums over all rows of dx, dy * x_hat, dy

   The rows are divided into parts. Their number does not depend on the number of threads, so the gradients do not
   either. The sums of a part are added in groups of GROUP_ROWS rows, and then those of the parts in their order. */

enum { GROUP_ROWS = 64, MAX_PARTS = 64 };
enum { PART_ROWS = 16, PART_ELEMENTS = 1 << 14 }; /* at least, so that adding up the parts takes little time */
enum { DPRE_BIAS, DWEIGHT, DBIAS, N_SUMS };
enum { BACKWARD_SCRATCH = 2 + N_SUMS }; /* rows for each thread */

typedef struct {
    int64_t n_rows, n_cols, n_parts;
    int center, rounds_x_hat; /* rounds_x_hat: to the dtype of dy, for dweight */
    DType dy_dtype, h_dtype;
    void *dy, *dh, *h; /* dh has the dtype of h; NULL: none */
    const float *pre_bias; /* NULL: none */
    const float *weight;   /* ones: none */
    const float *mu, *rstd;
    void *dx, *dresidual; /* in the dtypes of dy and of h; NULL: not wanted */
    int wanted[N_SUMS]; /* DWEIGHT and DBIAS together */
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

/* The wanted ones of N_SUMS rows of sums. */
static void clear_sums(const Backward *b, float *sums) {
    for (int i = 0; i < N_SUMS; i++)
        if (b->wanted[i]) memset(sums + i * b->n_cols, 0, b->n_cols * sizeof *sums);
}

static void add_sums(const Backward *b, const float *from, float *to) {
    for (int i = 0; i < N_SUMS; i++)
        if (b->wanted[i]) add_to(from + i * b->n_cols, to + i * b->n_cols, b->n_cols);
}

/* Some columns, in fp32. */
typedef struct {
    const float *dy, *h, *weight;
    float *dx, *dpre_bias, *dweight, *dbias;
    int64_t n;
} Columns;

/* dx = (dy * weight - x_hat * along - mean) * rstd, and with_sums, a constant, the terms of dweight and dbias. */
INLINE void finish(Columns c, Moments m, float along, float mean, int with_sums) {
#pragma omp simd
    for (int64_t i = 0; i < c.n; i++) {
        float x_hat = (c.h[i] - m.mu) * m.rstd;
        c.dx[i] = (c.dy[i] * c.weight[i] - x_hat * along - mean) * m.rstd;
        if (with_sums) {
            c.dweight[i] += c.dy[i] * x_hat;
            c.dbias[i] += c.dy[i];
        }
    }
}

/* The terms of dweight and dbias where x_hat is rounded. */
static void add_rounded(Columns c, Moments m, DType dtype) {
    float x_hat[GROUP];
    uint16_t rounded[GROUP];
    normalize(c.h, m, NULL, NULL, x_hat, c.n);
    store(dtype, x_hat, rounded, c.n);
    load(dtype, rounded, x_hat, c.n);
#pragma omp simd
    for (int64_t i = 0; i < c.n; i++) c.dweight[i] += c.dy[i] * x_hat[i];
    add_to(c.dy, c.dbias, c.n);
}

/* The gradients of a row, and its terms of the sums at ``to``. */
static void backward_row(const Backward *b, int64_t row, float *scratch, float *to) {
    int64_t n = b->n_cols, first = row * n;
    const float *dy = in_fp32(b->dy_dtype, at(b->dy, b->dy_dtype, first), scratch, n);
    const float *h = in_fp32(b->h_dtype, at(b->h, b->h_dtype, first), scratch + n, n);
    Moments m = {b->center ? b->mu[row] : 0, b->rstd[row]};
    if (b->pre_bias != NULL) {
        add(h, b->pre_bias, scratch + n, n);
        h = scratch + n;
    }
    Sums g = sums((Term){.value = dy, .factor = b->weight}, 1, (Term){h, NULL, m.mu, m.rstd}, n);
    float along = (float)(g.product / (double)n), mean = b->center ? (float)(g.first / (double)n) : 0;
    float dx_buffer[GROUP], dh_buffer[GROUP];
    for (int64_t start = 0; start < n; start += GROUP, first += GROUP) {
        void *dx = at(b->dx, b->dy_dtype, first), *dresidual = at(b->dresidual, b->h_dtype, first);
        const void *dh = at(b->dh, b->h_dtype, first);
        Columns c = {.dy = dy + start, .h = h + start, .weight = b->weight + start,
                     .dx = dx != NULL && b->dy_dtype == FP32 ? dx : dx_buffer,
                     .dpre_bias = to + DPRE_BIAS * n + start, .dweight = to + DWEIGHT * n + start,
                     .dbias = to + DBIAS * n + start, .n = n - start < GROUP ? n - start : GROUP};
        if (b->wanted[DWEIGHT] && !b->rounds_x_hat) finish(c, m, along, mean, 1);
        else finish(c, m, along, mean, 0);
        if (b->wanted[DWEIGHT] && b->rounds_x_hat) add_rounded(c, m, b->dy_dtype);
        if (dh != NULL) add_to(in_fp32(b->h_dtype, dh, dh_buffer, c.n), c.dx, c.n);
        if (dx != NULL && dx != c.dx) store(b->dy_dtype, c.dx, dx, c.n);
        if (dresidual != NULL) store(b->h_dtype, c.dx, dresidual, c.n);
        if (b->wanted[DPRE_BIAS]) add_to(c.dx, c.dpre_bias, c.n);
    }
}

static void backward_parts(void *context, int64_t begin, int64_t end, int thread) {
    const Backward *b = context;
    int64_t n = b->n_cols;
    float *scratch = b->scratch + thread * BACKWARD_SCRATCH * n;
    for (int64_t part = begin; part < end; part++) {
        int64_t row = b->n_rows * part / b->n_parts, last = b->n_rows * (part + 1) / b->n_parts;
        float *total = b->sums + part * N_SUMS * n, *group = last - row > GROUP_ROWS ? scratch + 2 * n : total;
        clear_sums(b, total);
        while (row < last) {
            int64_t stop = last - row < GROUP_ROWS ? last : row + GROUP_ROWS;
            if (group != total) clear_sums(b, group);
            for (; row < stop; row++) backward_row(b, row, scratch, group);
            if (group != total) add_sums(b, group, total);
        }
    }
}

/* Add the sums of all parts to those of the first. */
static void add_parts(const Backward *b) {
    for (int64_t part = 1; part < b->n_parts; part++) add_sums(b, b->sums + part * N_SUMS * b->n_cols, b->sums);
}

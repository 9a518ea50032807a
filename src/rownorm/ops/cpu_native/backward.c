/* Backward of the row program:

     x_hat = (h - mu) * rstd, g = dy [* weight]
     dx = (g - x_hat * mean(g * x_hat) [- mean(g)]) * rstd [+ dh]
     dpre_bias, dweight, dbias = sums over all rows of dx, dy * x_hat, dy

   The rows are divided into parts. Their number does not depend on the number of threads, so the gradients do not
   either. The sums of a part are added in groups of GROUP_ROWS rows, and then those of the parts in their order. */

enum { GROUP_ROWS = 64, MAX_PARTS = 64 };
enum { PART_ROWS = 32, PART_ELEMENTS = 1 << 14 }; /* at least, so that adding up the parts takes little time */
enum { DPRE_BIAS, DWEIGHT, DBIAS, N_SUMS };
enum { ROWS = 4 }; /* computed together, so that weight, dweight and dbias are read and written once for all of them */
enum { BACKWARD_SCRATCH = 2 * ROWS + N_SUMS }; /* rows for each thread */

typedef struct {
    int64_t n_rows, n_cols, n_parts;
    int center, rounds_x_hat; /* rounds_x_hat: to the dtype of dy, for dweight */
    int one_by_one; /* the same code for every row, whatever its place: the compiler may contract ROWS rows differently */
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

/* A row in fp32, and the means of g * x_hat and of g. */
typedef struct {
    const float *dy, *h;
    Moments m;
    float along, mean;
} Row;

static Row read_row(const Backward *b, int64_t row, float *scratch) {
    int64_t n = b->n_cols, first = row * n;
    Row r = {.dy = in_fp32(b->dy_dtype, at(b->dy, b->dy_dtype, first), scratch, n),
             .h = in_fp32(b->h_dtype, at(b->h, b->h_dtype, first), scratch + n, n),
             .m = {b->center ? b->mu[row] : 0, b->rstd[row]}};
    if (b->pre_bias != NULL) {
        add(r.h, b->pre_bias, scratch + n, n);
        r.h = scratch + n;
    }
    Sums g = sums((Term){.value = r.dy, .factor = b->weight}, 1, (Term){r.h, NULL, r.m.mu, r.m.rstd}, n);
    r.along = (float)(g.product / (double)n);
    r.mean = b->center ? (float)(g.first / (double)n) : 0;
    return r;
}

/* The columns that are computed together: from ``start``, ``n`` of them. The sums and the weight begin there, too. */
typedef struct {
    int64_t start, n;
    const float *weight;
    float *dx[ROWS], *dpre_bias, *dweight, *dbias;
} Columns;

/* dx = (g - x_hat * along - mean) * rstd, and with_sums the terms of dweight and dbias. n_rows and with_sums are
   constants. */
INLINE void finish(const Row *rows, int n_rows, Columns c, int with_sums) {
#pragma omp simd
    for (int64_t i = 0; i < c.n; i++) {
        float dweight = with_sums ? c.dweight[i] : 0, dbias = with_sums ? c.dbias[i] : 0;
#pragma GCC unroll 4
        for (int k = 0; k < n_rows; k++) {
            Row r = rows[k];
            float dy = r.dy[c.start + i], x_hat = (r.h[c.start + i] - r.m.mu) * r.m.rstd;
            c.dx[k][i] = (dy * c.weight[i] - x_hat * r.along - r.mean) * r.m.rstd;
            dweight += dy * x_hat;
            dbias += dy;
        }
        if (with_sums) {
            c.dweight[i] = dweight;
            c.dbias[i] = dbias;
        }
    }
}

/* The terms of dweight and dbias where x_hat is rounded. */
static void add_rounded(Row r, Columns c, DType dtype) {
    float x_hat[GROUP];
    uint16_t rounded[GROUP];
    const float *dy = r.dy + c.start;
    normalize(r.h + c.start, r.m, NULL, NULL, x_hat, c.n);
    store(dtype, x_hat, rounded, c.n);
    load(dtype, rounded, x_hat, c.n);
#pragma omp simd
    for (int64_t i = 0; i < c.n; i++) c.dweight[i] += dy[i] * x_hat[i];
    add_to(dy, c.dbias, c.n);
}

/* The gradients of n_rows rows, a constant, and their terms of the sums at ``to``. */
INLINE void backward_rows(const Backward *b, int64_t row, int n_rows, float *scratch, float *to) {
    int64_t n = b->n_cols;
    float dx_buffers[ROWS][GROUP], dh_buffer[GROUP];
    Row rows[ROWS];
    for (int k = 0; k < n_rows; k++) rows[k] = read_row(b, row + k, scratch + 2 * k * n);
    for (int64_t start = 0; start < n; start += GROUP) {
        Columns c = {start, n - start < GROUP ? n - start : GROUP, b->weight + start,
                     .dpre_bias = to + DPRE_BIAS * n + start, .dweight = to + DWEIGHT * n + start,
                     .dbias = to + DBIAS * n + start};
        for (int k = 0; k < n_rows; k++)
            c.dx[k] = b->dx != NULL && b->dy_dtype == FP32 ? at(b->dx, FP32, (row + k) * n + start) : dx_buffers[k];
        if (b->wanted[DWEIGHT] && !b->rounds_x_hat) finish(rows, n_rows, c, 1);
        else finish(rows, n_rows, c, 0);
        for (int k = 0; k < n_rows; k++) {
            int64_t first = (row + k) * n + start;
            if (b->wanted[DWEIGHT] && b->rounds_x_hat) add_rounded(rows[k], c, b->dy_dtype);
            if (b->dh != NULL) add_to(in_fp32(b->h_dtype, at(b->dh, b->h_dtype, first), dh_buffer, c.n), c.dx[k], c.n);
            if (b->dx != NULL && b->dy_dtype != FP32) store(b->dy_dtype, c.dx[k], at(b->dx, b->dy_dtype, first), c.n);
            if (b->dresidual != NULL) store(b->h_dtype, c.dx[k], at(b->dresidual, b->h_dtype, first), c.n);
            if (b->wanted[DPRE_BIAS]) add_to(c.dx[k], c.dpre_bias, c.n);
        }
    }
}

static void backward_parts(void *context, int64_t begin, int64_t end, int thread) {
    const Backward *b = context;
    int64_t n = b->n_cols;
    float *scratch = b->scratch + thread * BACKWARD_SCRATCH * n;
    for (int64_t part = begin; part < end; part++) {
        int64_t row = b->n_rows * part / b->n_parts, last = b->n_rows * (part + 1) / b->n_parts;
        float *total = b->sums + part * N_SUMS * n, *group = last - row > GROUP_ROWS ? scratch + 2 * ROWS * n : total;
        clear_sums(b, total);
        while (row < last) {
            int64_t stop = last - row < GROUP_ROWS ? last : row + GROUP_ROWS;
            if (group != total) clear_sums(b, group);
            for (; !b->one_by_one && row + ROWS <= stop; row += ROWS) backward_rows(b, row, ROWS, scratch, group);
            for (; row < stop; row++) backward_rows(b, row, 1, scratch, group);
            if (group != total) add_sums(b, group, total);
        }
    }
}

/* Add the sums of all parts to those of the first. */
static void add_parts(const Backward *b) {
    for (int64_t part = 1; part < b->n_parts; part++) add_sums(b, b->sums + part * N_SUMS * b->n_cols, b->sums);
}

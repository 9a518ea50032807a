/* Backward of the row program:

     x_hat = (h - mu) * rstd,  g = dy [* weight]
     dx = (g - x_hat * mean(g * x_hat) [- mean(g)]) * rstd [+ dh]
     dpre_bias, dweight, dbias = sums over all rows of dx, dy * x_hat, dy

   The rows are divided into parts. Their number does not depend on the number of threads, so the gradients do not
   either. The sums of a part are added in groups of GROUP_ROWS rows, and then those of the parts in their order. */

enum { GROUP_ROWS = 64, MAX_PARTS = 64, PART_ELEMENTS = 1 << 14 };
enum { DPRE_BIAS_SUM, DWEIGHT_SUM, DBIAS_SUM, N_SUMS };
enum { BACKWARD_SCRATCH = 4 + N_SUMS }; /* rows for each thread */

typedef struct {
    int64_t n_rows, n_cols, n_parts;
    int center, rounds_x_hat; /* rounds_x_hat: to the dtype of dy, for dweight */
    DType dy_dtype, h_dtype;
    void *dy, *dh, *h; /* dh has the dtype of h; NULL: none */
    const float *pre_bias, *weight; /* NULL: none */
    const float *mu, *rstd;
    void *dx, *dresidual; /* in the dtypes of dy and of h; NULL: not wanted */
    int wanted[N_SUMS];
    float *sums; /* N_SUMS rows for each part */
    float *scratch;
} Backward;

static int64_t number_of_parts(int64_t n_rows, int64_t n_cols) {
    int64_t n = 1 + (n_rows * n_cols - 1) / PART_ELEMENTS;
    if (n > MAX_PARTS) n = MAX_PARTS;
    return n < n_rows ? n : n_rows;
}

static void add_to(const float *restrict from, float *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

static void add_product_to(const float *restrict u, const float *restrict v, float *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += u[i] * v[i];
}

static void backward_row(const Backward *b, int64_t row, float *scratch, float *column_sums) {
    int64_t n = b->n_cols;
    float *restrict x_hat = scratch, *restrict g = scratch + n, *temporary = scratch + 2 * n;
    const float *restrict weight = b->weight;
    const float *dy = in_fp32(b->dy_dtype, row_of(b->dy, b->dy_dtype, row, n), scratch + 3 * n, n);
    const float *h = in_fp32(b->h_dtype, row_of(b->h, b->h_dtype, row, n), temporary, n);
    Moments m = {b->center ? b->mu[row] : 0, b->rstd[row]};
    if (b->pre_bias != NULL) {
        add(h, b->pre_bias, temporary, n);
        h = temporary;
    }
    normalize(h, m, NULL, NULL, x_hat, n);
    if (weight == NULL) memcpy(g, dy, n * sizeof *g);
    else for (int64_t i = 0; i < n; i++) g[i] = dy[i] * weight[i];
    Sums total = sums(g, x_hat, 0, 1, n);
    float along = (float)(total.product / (double)n), mean = b->center ? (float)(total.first / (double)n) : 0;
    for (int64_t i = 0; i < n; i++) g[i] = (g[i] - x_hat[i] * along - mean) * m.rstd;
    if (b->dh != NULL) add_to(in_fp32(b->h_dtype, row_of(b->dh, b->h_dtype, row, n), temporary, n), g, n);
    if (b->dx != NULL) store(b->dy_dtype, g, row_of(b->dx, b->dy_dtype, row, n), n);
    if (b->dresidual != NULL) store(b->h_dtype, g, row_of(b->dresidual, b->h_dtype, row, n), n);
    if (b->wanted[DPRE_BIAS_SUM]) add_to(g, column_sums + DPRE_BIAS_SUM * n, n);
    if (b->wanted[DBIAS_SUM]) add_to(dy, column_sums + DBIAS_SUM * n, n);
    if (!b->wanted[DWEIGHT_SUM]) return;
    if (b->rounds_x_hat) {
        store(b->dy_dtype, x_hat, temporary, n);
        load(b->dy_dtype, temporary, x_hat, n);
    }
    add_product_to(dy, x_hat, column_sums + DWEIGHT_SUM * n, n);
}

static void backward_parts(void *context, int64_t begin, int64_t end, int thread) {
    const Backward *b = context;
    int64_t n = b->n_cols, n_sums = N_SUMS * n;
    float *scratch = b->scratch + thread * BACKWARD_SCRATCH * n, *group = scratch + 4 * n;
    for (int64_t part = begin; part < end; part++) {
        float *total = b->sums + part * n_sums;
        int64_t row = b->n_rows * part / b->n_parts, last = b->n_rows * (part + 1) / b->n_parts;
        memset(total, 0, n_sums * sizeof *total);
        while (row < last) {
            int64_t stop = last - row < GROUP_ROWS ? last : row + GROUP_ROWS;
            memset(group, 0, n_sums * sizeof *group);
            for (; row < stop; row++) backward_row(b, row, scratch, group);
            add_to(group, total, n_sums);
        }
    }
}

/* Add the sums of all parts to those of the first. */
static void add_parts(const Backward *b) {
    int64_t n_sums = N_SUMS * b->n_cols;
    for (int64_t part = 1; part < b->n_parts; part++) add_to(b->sums + part * n_sums, b->sums, n_sums);
}

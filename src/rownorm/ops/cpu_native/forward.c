/* Forward of the row program: h = x [+ pre_bias] [+ residual], y = (h - mu) * rstd [* weight] [+ bias]. */

enum { FORWARD_SCRATCH = 1 }; /* rows for each thread */

typedef struct {
    int64_t n_cols;
    int center, rounds_x_hat; /* rounds_x_hat: to the dtype of x, before the weight */
    double eps;
    DType x_dtype, h_dtype; /* of x and y; of residual and h */
    void *x, *residual;
    const float *pre_bias, *weight, *bias; /* NULL: none */
    void *y, *h;
    float *mu, *rstd; /* NULL: not wanted */
    float *scratch;
} Forward;

static void add(const float *u, const float *v, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = u[i] + v[i];
}

/* to = (h - mu) * rstd [* weight] [+ bias] */
static void normalize(const float *h, Moments m, const float *weight, const float *bias, float *to, int64_t n) {
    float mu = m.mu, rstd = m.rstd;
    if (weight != NULL && bias != NULL)
        for (int64_t i = 0; i < n; i++) to[i] = (h[i] - mu) * rstd * weight[i] + bias[i];
    else if (weight != NULL)
        for (int64_t i = 0; i < n; i++) to[i] = (h[i] - mu) * rstd * weight[i];
    else if (bias != NULL)
        for (int64_t i = 0; i < n; i++) to[i] = (h[i] - mu) * rstd + bias[i];
    else
        for (int64_t i = 0; i < n; i++) to[i] = (h[i] - mu) * rstd;
}

/* h of a row in fp32: x itself, the stored h, or a copy at ``scratch``. */
static const float *sum_row(const Forward *f, int64_t row, float *scratch) {
    int64_t n = f->n_cols, first = row * n;
    if (f->x_dtype == FP32 && f->pre_bias == NULL && f->residual == NULL) return at(f->x, FP32, first);
    float *h = f->residual != NULL && f->h_dtype == FP32 ? at(f->h, FP32, first) : scratch, residual[GROUP];
    for (int64_t start = 0; start < n; start += GROUP) {
        int64_t size = n - start < GROUP ? n - start : GROUP;
        float *sum = h + start;
        const float *terms = in_fp32(f->x_dtype, at(f->x, f->x_dtype, first + start), sum, size);
        if (f->pre_bias != NULL) {
            add(terms, f->pre_bias + start, sum, size);
            terms = sum;
        }
        if (f->residual == NULL) continue;
        add(terms, in_fp32(f->h_dtype, at(f->residual, f->h_dtype, first + start), residual, size), sum, size);
        if (f->h_dtype != FP32) store(f->h_dtype, sum, at(f->h, f->h_dtype, first + start), size);
    }
    return h;
}

/* y of a row. */
static void normalize_row(const Forward *f, int64_t row, const float *h, Moments m) {
    int64_t n = f->n_cols;
    float buffer[GROUP];
    for (int64_t start = 0; start < n; start += GROUP) {
        int64_t size = n - start < GROUP ? n - start : GROUP;
        const float *terms = h + start, *weight = at(f->weight, FP32, start), *bias = at(f->bias, FP32, start);
        void *y = at(f->y, f->x_dtype, row * n + start);
        float *z = f->x_dtype == FP32 ? y : buffer;
        Moments of_terms = m;
        if (f->rounds_x_hat) {
            normalize(terms, m, NULL, NULL, z, size);
            store(f->x_dtype, z, y, size);
            load(f->x_dtype, y, z, size);
            terms = z;
            of_terms = (Moments){0, 1};
        }
        normalize(terms, of_terms, weight, bias, z, size);
        if (z != y) store(f->x_dtype, z, y, size);
    }
}

/* The moments for backward: those of the stored h for a row whose mean is further from 0 than its standard deviation.
   reference.stored_h_moments gives the reason. */
static Moments backward_moments(const Forward *f, int64_t row, Moments m, float *scratch) {
    if (!f->center || f->residual == NULL || f->h_dtype == FP32 || !(fabsf(m.mu * m.rstd) > 1)) return m;
    load(f->h_dtype, at(f->h, f->h_dtype, row * f->n_cols), scratch, f->n_cols);
    return moments(scratch, f->n_cols, 1, f->eps);
}

static void forward_rows(void *context, int64_t begin, int64_t end, int thread) {
    const Forward *f = context;
    float *scratch = f->scratch + thread * FORWARD_SCRATCH * f->n_cols;
    for (int64_t row = begin; row < end; row++) {
        const float *h = sum_row(f, row, scratch);
        Moments m = moments(h, f->n_cols, f->center, f->eps);
        normalize_row(f, row, h, m);
        if (f->rstd == NULL) continue;
        m = backward_moments(f, row, m, scratch);
        f->rstd[row] = m.rstd;
        if (f->mu != NULL) f->mu[row] = m.mu;
    }
}

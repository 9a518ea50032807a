/* Forward of the row program: h = x [+ pre_bias] [+ residual], y = (h - mu) * rstd [* weight] [+ bias]. */

enum { FORWARD_SCRATCH = 2 }; /* rows for each thread */

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

/* The moments for backward: those of the stored h for a row whose mean is further from 0 than its standard deviation.
   reference.stored_h_moments gives the reason. */
static Moments backward_moments(const Forward *f, const void *stored_h, Moments m, float *scratch) {
    if (!f->center || f->residual == NULL || f->h_dtype == FP32 || !(fabsf(m.mu * m.rstd) > 1)) return m;
    load(f->h_dtype, stored_h, scratch, f->n_cols);
    return moments(scratch, f->n_cols, 1, f->eps);
}

static void forward_row(const Forward *f, int64_t row, float *first, float *second) {
    int64_t n = f->n_cols;
    void *y = row_of(f->y, f->x_dtype, row, n), *stored_h = NULL;
    const float *h = in_fp32(f->x_dtype, row_of(f->x, f->x_dtype, row, n), first, n);
    if (f->pre_bias != NULL) {
        add(h, f->pre_bias, first, n);
        h = first;
    }
    if (f->residual != NULL) {
        stored_h = row_of(f->h, f->h_dtype, row, n);
        const float *residual = in_fp32(f->h_dtype, row_of(f->residual, f->h_dtype, row, n), second, n);
        float *sum = f->h_dtype == FP32 ? stored_h : first;
        add(h, residual, sum, n);
        if (sum != stored_h) store(f->h_dtype, sum, stored_h, n);
        h = sum;
    }
    Moments m = moments(h, n, f->center, f->eps);
    float *z = f->x_dtype == FP32 ? y : second;
    if (f->rounds_x_hat) {
        normalize(h, m, NULL, NULL, z, n);
        store(f->x_dtype, z, y, n);
        load(f->x_dtype, y, z, n);
        normalize(z, (Moments){0, 1}, f->weight, f->bias, z, n);
    } else {
        normalize(h, m, f->weight, f->bias, z, n);
    }
    if (z != y) store(f->x_dtype, z, y, n);
    if (f->rstd == NULL) return;
    m = backward_moments(f, stored_h, m, second);
    f->rstd[row] = m.rstd;
    if (f->mu != NULL) f->mu[row] = m.mu;
}

static void forward_rows(void *context, int64_t begin, int64_t end, int thread) {
    const Forward *f = context;
    float *scratch = f->scratch + thread * FORWARD_SCRATCH * f->n_cols;
    for (int64_t row = begin; row < end; row++) forward_row(f, row, scratch, scratch + f->n_cols);
}

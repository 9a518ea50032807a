/* Rows in fp32, and their moments. Compiled first.

   Arithmetic is fp32. A row of another dtype is converted when it is loaded and stored, in loops of their own: every
   loop is simple enough to be vectorized. Where several loops follow each other they take GROUP columns at a time:
   those stay in the L1 cache. Sums over a row are added up in fp64 for every GROUP columns, so that their error does not
   grow with the width. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <ATen/dlpack.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef enum { FP32, FP16, BF16, OTHER } DType;

enum { GROUP = 1024, LANES = 16 };

static const int ITEM_SIZE[] = {4, 2, 2};

INLINE float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float from_bf16(uint16_t bits) { return as_float((uint32_t)bits << 16); }

/* To nearest, ties to even. Every NaN becomes the one NaN that PyTorch returns. */
INLINE uint16_t to_bf16(float value) {
    uint32_t bits = as_bits(value), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

/* Compilers do not vectorize conversions of fp16. Without these instructions PyTorch computes such rows. */
#if defined(__aarch64__)
#include <arm_neon.h>
enum { HAS_FP16 = 1, FP16_WIDTH = 4 };
INLINE void from_fp16(const void *from, float *to) { vst1q_f32(to, vcvt_f32_f16(vld1_f16(from))); }
INLINE void to_fp16(const float *from, void *to) { vst1_f16(to, vcvt_f16_f32(vld1q_f32(from))); }
#elif defined(__F16C__)
#include <immintrin.h>
enum { HAS_FP16 = 1, FP16_WIDTH = 8 };
INLINE void from_fp16(const void *from, float *to) { _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128(from))); }
INLINE void to_fp16(const float *from, void *to) { _mm_storeu_si128(to, _mm256_cvtps_ph(_mm256_loadu_ps(from), 0)); }
#else
enum { HAS_FP16 = 0, FP16_WIDTH = 1 };
INLINE void from_fp16(const void *from, float *to) {}
INLINE void to_fp16(const float *from, void *to) {}
#endif

static void load_fp16(const uint16_t *from, float *to, int64_t n) {
    float last[FP16_WIDTH];
    uint16_t last_bits[FP16_WIDTH] = {0};
    int64_t i = 0;
    for (; i + FP16_WIDTH <= n; i += FP16_WIDTH) from_fp16(from + i, to + i);
    memcpy(last_bits, from + i, (n - i) * sizeof *from);
    from_fp16(last_bits, last);
    memcpy(to + i, last, (n - i) * sizeof *to);
}

static void store_fp16(const float *from, uint16_t *to, int64_t n) {
    float last[FP16_WIDTH] = {0};
    uint16_t last_bits[FP16_WIDTH];
    int64_t i = 0;
    for (; i + FP16_WIDTH <= n; i += FP16_WIDTH) to_fp16(from + i, to + i);
    memcpy(last, from + i, (n - i) * sizeof *from);
    to_fp16(last, last_bits);
    memcpy(to + i, last_bits, (n - i) * sizeof *to);
}

static void load(DType dtype, const void *from, float *restrict to, int64_t n) {
    const uint16_t *restrict bits = from;
    if (dtype == FP32) memcpy(to, from, n * sizeof *to);
    else if (dtype == FP16) load_fp16(from, to, n);
    else for (int64_t i = 0; i < n; i++) to[i] = from_bf16(bits[i]);
}

static void store(DType dtype, const float *restrict from, void *to, int64_t n) {
    uint16_t *restrict bits = to;
    if (dtype == FP32) memcpy(to, from, n * sizeof *from);
    else if (dtype == FP16) store_fp16(from, to, n);
    else for (int64_t i = 0; i < n; i++) bits[i] = to_bf16(from[i]);
}

/* The row in fp32: its own data, or a copy at ``copy``. */
static const float *in_fp32(DType dtype, const void *row, float *copy, int64_t n) {
    if (dtype == FP32) return row;
    load(dtype, row, copy, n);
    return copy;
}

static const float *fill(float *row, float value, int64_t n) {
    for (int64_t i = 0; i < n; i++) row[i] = value;
    return row;
}

/* The address of element ``i``; NULL of NULL. */
static void *at(const void *data, DType dtype, int64_t i) {
    return data == NULL ? NULL : (char *)data + i * ITEM_SIZE[dtype];
}

typedef struct { double first, product; } Sums;

/* A term of ``sums``: (value - shift) * scale, or value * factor. */
typedef struct { const float *value, *factor; float shift, scale; } Term;

/* The sum of all lanes, in fp32 down to four of them. */
INLINE double sum_of_lanes(float *lanes) {
    for (int half = LANES / 2; half >= 4; half /= 2)
        for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
    return ((double)lanes[0] + lanes[1]) + ((double)lanes[2] + lanes[3]);
}

/* The sums of a and of a * b, over the columns of a group. has_factor, of a, is a constant: the compiler removes what a
   caller does not need. LANES independent sums can be vectorized, and hide the latency of an addition. */
INLINE Sums sums_of_group(Term a, int has_factor, Term b, int64_t start, int64_t stop) {
    float first[LANES] = {0}, product[LANES] = {0}, last_first = 0, last_product = 0;
#define ADD(i, first, product)                                                                          \
    {                                                                                                   \
        float term = has_factor ? a.value[i] * a.factor[i] : (a.value[i] - a.shift) * a.scale;          \
        first += term;                                                                                  \
        product += term * ((b.value[i] - b.shift) * b.scale);                                           \
    }
    for (; start + LANES <= stop; start += LANES) {
#pragma omp simd
        for (int lane = 0; lane < LANES; lane++) ADD(start + lane, first[lane], product[lane])
    }
    for (; start < stop; start++) ADD(start, last_first, last_product)
#undef ADD
    return (Sums){sum_of_lanes(first) + last_first, sum_of_lanes(product) + last_product};
}

INLINE Sums sums(Term a, int has_factor, Term b, int64_t n) {
    Sums total = {0, 0};
    for (int64_t start = 0; start < n; start += GROUP) {
        Sums group = sums_of_group(a, has_factor, b, start, n - start < GROUP ? n : start + GROUP);
        total.first += group.first;
        total.product += group.product;
    }
    return total;
}

typedef struct { float mu, rstd; } Moments;

/* The means of h - shift and of its square. */
INLINE Sums deviations_from(float shift, const float *h, int64_t n) {
    Sums total = sums((Term){h, NULL, shift, 1}, 0, (Term){h, NULL, shift, 1}, n);
    return (Sums){total.first / (double)n, total.product / (double)n};
}

/* The moments, given the deviations from any number near the mean. */
INLINE Moments moments_around(float shift, Sums deviations, double eps) {
    double correction = deviations.first;
    if (!isfinite(correction)) correction = 0; /* the sum overflowed; mu is NaN or infinite where a number is */
    double variance = deviations.product - correction * correction;
    if (variance < 0) variance = 0;
    return (Moments){(float)(shift + correction), (float)(1 / sqrt(variance + eps))};
}

/* The mean of the first 16 columns, or the first of fewer. It is exact where they are equal, as the fp64 sums are. */
static float mean_of_first(const float *h, int64_t n) {
    double sum[4];
    if (n < 16) return h[0];
    for (int i = 0; i < 4; i++) sum[i] = ((double)h[i] + h[i + 4]) + ((double)h[i + 8] + h[i + 12]);
    return (float)(((sum[0] + sum[1]) + (sum[2] + sum[3])) / 16);
}

/* The moments of a row. Most rows are read once: the mean of the first columns is near enough to that of the row.

   With d = h - shift, D = mean(d) and Q = mean(d^2): mu = shift + D and variance = Q - D^2. If the sums have a relative
   error of e (of sum(|d|) and of sum(d^2)), mu has an error of at most e * sqrt(Q), and the variance one of about
   e * (Q + 2 * |D| * sqrt(Q)). Around the mean itself Q is the variance and D is 0: e * sqrt(variance) and
   e * variance. 2 * D^2 <= Q means that D^2 <= variance and Q <= 2 * variance, so the error of mu grows by a factor of
   at most 1.42, and that of the variance, of which rstd has half, by less than 5. Of rows of independent normal columns
   one in 16000 is outside. Such a row is read twice more: once for the mean, and once around it. So is a row with an
   infinity or a NaN, and one whose squares overflow. */
static Moments moments(const float *h, int64_t n, int center, double eps) {
    if (!center) return moments_around(0, (Sums){0, deviations_from(0, h, n).product}, eps);
    float shift = mean_of_first(h, n);
    Sums d = deviations_from(shift, h, n);
    if (isfinite(d.product) && 2 * d.first * d.first <= d.product) return moments_around(shift, d, eps);
    /* The sum of h / n does not overflow where that of h would. The deviations correct its rounding error. */
    float mu = (float)sums((Term){h, NULL, 0, 1.0f / (float)n}, 0, (Term){h, NULL, 0, 1}, n).first;
    return moments_around(mu, deviations_from(mu, h, n), eps);
}

/* Decayed linear attention whose heads share one q and one k (Mamba-2), in chunks: the CPU form of `shared.py`.
 *
 * The states of all heads of a stream, side by side, are one matrix [K, N], N = heads * V. The chunks of a stream
 * follow each other, so this matrix stays in the second-level cache, and what a chunk does to it are products that run
 * near the core's peak. Everything else happens between them, while its numbers are in the first-level cache.
 *
 * Compiled for each set of sizes. Macros, beside those of vectors.h:
 *   K, V   key and value dim; multiples of PANEL
 *   ROWS   rows of a product that are worked on together; PANEL is a multiple
 *   CHUNK  tokens in a chunk, a multiple of PANEL
 *
 * A matrix is kept by rows, or in panels: PANEL columns at a time, all rows of one panel before the next. The factor a
 * of a product a b is read number by number, so it may lie any way; b is read, and the product written, PANEL columns
 * of a row at a time, so they may be rows of a tensor or a panel.
 */
#include "vectors.h"

#define PANEL (2 * LANES)
#define TOKEN_PANELS (CHUNK / PANEL)
/* One copy each: wherever they are used, they would take a kilobyte. */
#define PRODUCT static __attribute__((noinline)) void

/* Mirrored by Job in native_shared.py. Numbers of a gate: [chunks, B or 1, heads, CHUNK]; `gates` strides its B. */
typedef struct {
    int64_t heads, length, gates;
    strided q, k, v, o;
    strided dq, dk, dv, dout;                /* gradients */
    real *sum, *rest, *start, *end;          /* see frame.py; null without a gate */
    real *first, *last, *dfirst, *dlast;     /* states [B, heads, K, V] */
    real **saved;                            /* by stream: states entering chunks [chunks, N / PANEL, K, PANEL] */
    real *products;                          /* q k^T of chunks [B, chunks, CHUNK, CHUNK] */
    real *crossing, *leaving, *through;      /* for frame.py's gate_gradient; [B, chunks, CHUNK or 1, heads] */
} job;

/* A chunk of a stream. */
typedef struct {
    const job *j;
    int64_t b, n, width;                     /* width: N */
    int rows;                                /* tokens */
} place;

INLINE int smaller(int x, int y) { return x < y ? x : y; }

/* e^x for x <= 0: 2^n times the Taylor series at 0 of what is left, at most ln 2 / 2 in size. */
#define WIDE (sizeof(real) == 8)
#define TERMS (WIDE ? 14 : 8) /* As many as reach the precision. */
INLINE vec exponential(vec x) {
    const real least = WIDE ? -708 : -87; /* About the smallest normal number's. */
    const real high = WIDE ? 0x1.62e42feep-1 : 0x1.62e4p-1; /* The two parts of ln 2. */
    const real low = WIDE ? 0x1.a39ef35793c76p-33 : 0x1.7f7d1cp-20;
    lanes gone = x < least;
    x = (vec)((lanes)x & ~gone);
    lanes n = __builtin_convertvector(x * (real)1.44269504088896340736 - (real).5, lanes); /* To the nearest. */
    vec whole = __builtin_convertvector(n, vec);
    x = (x - whole * high) - whole * low;
    vec y = all(1);
    EACH(i, TERMS - 1) y = 1 + y * x * (real)(1. / (TERMS - 1 - i));
    y *= (vec)((n + (WIDE ? 1023 : 127)) << (WIDE ? 52 : 23));
    return (vec)((lanes)y & ~gone);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* After every `span` columns comes a jump by `skip`; no jumps where span is 0. */
typedef struct {
    const real *data;
    int64_t row, column;                     /* strides */
    int span;
    int64_t skip;
} factor;

typedef struct {
    real *data;
    int64_t row, panel;                      /* strides */
} panels;
#define NONE ((panels){0, 0, 0})

INLINE real *of(panels x, int64_t row, int64_t panel) { return x.data + row * x.row + panel * x.panel; }

/* Rows `from` to from + count - 1 of c = base + a b, in one panel; a's columns and b's rows
 * `start` to stop - 1. A base without data is 0; `scale` has a vector of base's factors for each of c's, or is null. */
INLINE void tile(int count, factor a, panels b, panels c, panels base, const real *scale, int from,
                 int panel, int start, int stop) {
    vec sums[ROWS][2];
    EACH(i, count) EACH(x, 2) sums[i][x] = (vec){0};
    const real *left = a.data + from * a.row + start * a.column, *right = of(b, start, panel);
    for (int k = start; k < stop; left += a.skip) {
        int until = a.span ? smaller(k + a.span, stop) : stop;
        for (; k < until; k++, left += a.column, right += b.row) {
            vec y[2];
            EACH(x, 2) y[x] = load(right + x * LANES);
            EACH(i, count) {
                vec one = all(left[i * a.row]);
                EACH(x, 2) sums[i][x] += one * y[x];
            }
        }
    }
    EACH(i, count) EACH(x, 2) {
        vec y = sums[i][x];
        if (base.data) {
            vec old = load(of(base, from + i, panel) + x * LANES);
            if (scale) old *= scale[panel * 2 + x];
            y += old;
        }
        store(of(c, from + i, panel) + x * LANES, y);
    }
}

/* A panel of c = base + a b, by rows. Under a mask, row i sees b's rows up to i (LOWER) or from i on (UPPER). */
enum { FULL, LOWER, UPPER };
INLINE void panel_product(int mask, int rows, int depth, factor a, panels b, panels c, panels base,
                          const real *scale, int panel) {
    int from = 0;
    for (; from + ROWS <= rows; from += ROWS)
        tile(ROWS, a, b, c, base, scale, from, panel, mask == UPPER ? from : 0,
             mask == LOWER ? smaller(from + ROWS, depth) : depth);
    for (; from < rows; from++)
        tile(1, a, b, c, base, scale, from, panel, mask == UPPER ? from : 0, mask == LOWER ? from + 1 : depth);
}

/* c = base + a b for c [rows, count panels]. */
PRODUCT product(int rows, int count, int depth, factor a, panels b, panels c, panels base, const real *scale) {
    for (int p = 0; p < count; p++) panel_product(FULL, rows, depth, a, b, c, base, scale, p);
}

/* The same for an `a` whose rows lie side by side, as in a^T b. */
PRODUCT turned_product(int rows, int count, int depth, const real *a, int64_t column, panels b, panels c, panels base,
                       const real *scale) {
    factor left = {a, 1, column, 0, 0};
    for (int p = 0; p < count; p++) panel_product(FULL, rows, depth, left, b, c, base, scale, p);
}

/* c = a b, and only what is on the diagonal or below, or little more: c [rows, rows] is a chunk's pairs. */
PRODUCT pair_product(int rows, int depth, factor a, panels b, real *c) {
    for (int p = 0; p * PANEL < rows; p++) {
        int above = p * PANEL; /* Rows that see nothing of this panel. */
        factor left = {a.data + above * a.row, a.row, a.column, 0, 0};
        panel_product(FULL, rows - above, depth, left, b, (panels){c + above * CHUNK, CHUNK, PANEL}, NONE, 0, p);
    }
}

/* c += a b with a chunk's pairs as a, zero above the diagonal; or a^T b. c and b [rows, V] or [rows, K]. */
PRODUCT lower_product(int rows, int count, const real *a, panels b, panels c) {
    for (int p = 0; p < count; p++) panel_product(LOWER, rows, rows, (factor){a, CHUNK, 1, 0, 0}, b, c, c, 0, p);
}

PRODUCT upper_product(int rows, int count, const real *a, panels b, panels c) {
    for (int p = 0; p < count; p++) panel_product(UPPER, rows, rows, (factor){a, 1, CHUNK, 0, 0}, b, c, c, 0, p);
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

/* Swaps groups of `width` numbers across the diagonals of blocks of twice that size. */
INLINE void turn_groups(vec *x, int width) {
    if (width >= LANES) return;
    EACH(i, LANES) if (!(i & width)) {
        vec a = x[i], b = x[i | width];
        x[i] = interleave(a, b, width, 0);
        x[i | width] = interleave(a, b, width, 1);
    }
}

/* LANES x LANES numbers turned. Rows of `from` beyond `there` are zeros, rows of `to` beyond `wanted` stay. */
INLINE void turn(const real *from, int64_t row, int there, real *to, int64_t to_row, int wanted) {
    vec x[LANES];
    EACH(i, LANES) x[i] = i < there ? load(from + i * row) : (vec){0};
    turn_groups(x, 1), turn_groups(x, 2), turn_groups(x, 4), turn_groups(x, 8); /* Each shuffle with a constant. */
    EACH(i, LANES) if (i < wanted) store(to + i * to_row, x[i]);
}

/* Tokens [rows, width] to panels of tokens [TOKEN_PANELS, all, PANEL]. */
static void turn_tokens(const real *from, int64_t token, int rows, int width, real *to, int64_t all) {
    for (int t = 0; t < CHUNK; t += LANES)
        for (int i = 0; i < width; i += LANES)
            turn(from + t * token + i, token, rows - t, to + (t / PANEL * all + i) * PANEL + t % PANEL, PANEL, LANES);
}

/* And back. */
static void turn_back(const real *from, int rows, int width, real *to, int64_t token) {
    for (int t = 0; t < rows; t += LANES)
        for (int i = 0; i < width; i += LANES)
            turn(from + (t / PANEL * width + i) * PANEL + t % PANEL, PANEL, LANES, to + t * token + i, token, rows - t);
}

/* A state [heads, K, V] to panels, or back. */
INLINE void move_state(real *state, real *by_panels, int64_t heads, int back) {
    for (int64_t h = 0; h < heads; h++)
        for (int i = 0; i < K; i++)
            for (int x = 0; x < V; x += LANES) {
                int64_t column = h * V + x;
                real *there = by_panels + (column / PANEL * K + i) * PANEL + column % PANEL;
                real *here = state + (h * K + i) * V + x;
                if (back) store(here, load(there));
                else store(there, load(here));
            }
}

/* ---- a chunk ----------------------------------------------------------------------------------------------------- */

INLINE real *at(strided x, const place *p, int64_t h) {
    return x.data + p->b * x.batch + p->n * CHUNK * x.token + h * x.head;
}

INLINE const real *gate(const real *x, const place *p, int64_t h) {
    const job *j = p->j;
    return x + ((p->n * j->gates + (j->gates > 1 ? p->b : 0)) * j->heads + h) * CHUNK;
}

/* How much of token j is left when token i reads it: [rows, CHUNK], zero above the diagonal. `sum` and `rest` together
 * are the log decays up to a token, more exactly than one number can say it. */
static void weigh(const place *p, int64_t h, real *weights) {
    const job *j = p->j;
    lanes number;
    EACH(l, LANES) number[l] = l;
    for (int i = 0; i < p->rows; i++)
        for (int from = 0; from < CHUNK; from += LANES) {
            vec weight = all(from <= i);
            if (from <= i && j->sum) {
                const real *c = gate(j->sum, p, h), *rest = gate(j->rest, p, h);
                vec lost = (c[i] - load(c + from)) + (rest[i] - load(rest + from));
                weight = exponential((vec)((lanes)lost & (lost < 0)));
            }
            store(weights + i * CHUNK + from, (vec)((lanes)weight & (number + from <= i)));
        }
}

/* Pairs [rows, CHUNK] times their weights, written to `out` or added to it. */
INLINE void weighed(int rows, const real *x, const real *weights, real *out, int add) {
    for (int i = 0; i < rows * CHUNK; i += LANES) {
        vec y = load(x + i) * load(weights + i);
        if (add) y += load(out + i);
        store(out + i, y);
    }
}

/* A head's values [rows, V] times a number for each token (no numbers: 1); to rows, or into panels. */
INLINE void scale_values(const place *p, const real *x, int64_t token, const real *by, int64_t h, real *to,
                         int64_t to_token, int64_t to_panel) {
    const real *factors = by ? gate(by, p, h) : 0;
    for (int i = 0; i < p->rows; i++)
        for (int from = 0; from < V; from += LANES) {
            vec y = load(x + i * token + from);
            int64_t column = h * V + from;
            if (by) y *= factors[i];
            store(to + i * to_token + column / PANEL * to_panel + column % PANEL, y);
        }
}

/* A head's values as turned tokens, times the same. */
static void turn_values(const place *p, strided x, const real *by, real *to) {
    for (int64_t h = 0; h < p->j->heads; h++) {
        real *there = to + h * V * PANEL;
        turn_tokens(at(x, p, h), x.token, p->rows, V, there, p->width);
        for (int from = 0; by && from < CHUNK; from += LANES) {
            vec factors = load(gate(by, p, h) + from);
            for (int i = 0; i < V; i++) {
                real *y = there + (from / PANEL * p->width + i) * PANEL + from % PANEL;
                store(y, load(y) * factors);
            }
        }
    }
}

/* What is left of each vector of columns after the chunk: what its last token reads, since tokens that are missing have
 * no decay. Null without a gate. */
static const real *left_over(const place *p, real *scale) {
    if (!p->j->start) return 0;
    for (int64_t x = 0; x < p->width / LANES; x++) scale[x] = gate(p->j->start, p, x * LANES / V)[CHUNK - 1];
    return scale;
}

typedef struct {
    real *state, *turned, *result, *share, *queries, *scaled, *products, *weights, *pairs, *grads, *total, *scale;
} scratch;

/* One allocation, which starts at s->state. */
static int make_scratch(scratch *s, int64_t width) {
    const int64_t pairs = CHUNK * CHUNK;
    struct {
        real **place;
        int64_t size;
    } parts[] = {{&s->state, K * width}, {&s->turned, CHUNK * (width > K ? width : K)},
                 {&s->result, CHUNK * K}, {&s->share, CHUNK * K}, {&s->queries, CHUNK * K}, {&s->scaled, CHUNK * width},
                 {&s->products, pairs}, {&s->weights, pairs}, {&s->pairs, pairs}, {&s->grads, pairs},
                 {&s->total, pairs}, {&s->scale, width}};
    const int count = sizeof parts / sizeof *parts;
    int64_t total = 0;
    for (int i = 0; i < count; i++) total += parts[i].size = (parts[i].size + 15) / 16 * 16;
    real *memory = aligned_alloc(64, total * sizeof(real));
    if (!memory) return 1;
    for (int i = 0; i < count; memory += parts[i++].size) *parts[i].place = memory;
    return 0;
}

INLINE panels by_panel(real *x, int64_t rows) { return (panels){x, PANEL, rows * PANEL}; }
INLINE panels by_row(real *x, int64_t row) { return (panels){x, row, PANEL}; }

static void forward_chunk(const place *p, const scratch *s, real *entering, real *leaving, real *products) {
    const job *j = p->j;
    int rows = p->rows, count = p->width / PANEL;
    real *q = at(j->q, p, 0), *k = at(j->k, p, 0), *o = at(j->o, p, 0);
    factor left = {q, j->q.token, 1, 0, 0};

    product(rows, count, K, left, by_panel(entering, K), by_row(o, j->o.token), NONE, 0);
    turn_tokens(k, j->k.token, rows, K, s->turned, K);
    pair_product(rows, K, left, by_panel(s->turned, K), products);
    for (int64_t h = 0; h < j->heads; h++) {
        real *v = at(j->v, p, h);
        if (j->start) scale_values(p, o + h * V, j->o.token, j->start, h, o, j->o.token, PANEL);
        weigh(p, h, s->weights);
        weighed(rows, products, s->weights, s->pairs, 0);
        lower_product(rows, V / PANEL, s->pairs, by_row(v, j->v.token), by_row(o + h * V, j->o.token));
        scale_values(p, v, j->v.token, j->end, h, s->scaled, PANEL, CHUNK * PANEL);
    }
    turned_product(K, count, rows, k, j->k.token, by_panel(s->scaled, CHUNK), by_panel(leaving, K),
                   by_panel(entering, K), left_over(p, s->scale));
}

/* Gradients of a head's log decays, before `frame.gate_gradient`: what scaling rows and columns would do within the
 * chunk, and columns through the state that leaves. */
static void gate_gradients(const place *p, const scratch *s, int64_t h, int64_t number) {
    const job *j = p->j;
    const real *v = at(j->v, p, h), *dv = at(j->dv, p, h);
    real *crossing = j->crossing + number * CHUNK * j->heads + h, *leaving = j->leaving + number * CHUNK * j->heads + h;
    real columns[CHUNK] = {0};
    for (int i = p->rows; i--;) {
        vec row = {0}, writes = {0};
        for (int x = 0; x < V; x += LANES) writes += load(v + i * j->v.token + x) * load(dv + i * j->dv.token + x);
        real *pairs = s->pairs + i * CHUNK, own = pairs[i];
        pairs[i] = 0; /* A token with itself cancels; under a strong decay its rounding would be all that is left. */
        for (int from = 0; from < i; from += LANES) {
            vec both = load(pairs + from) * load(s->grads + i * CHUNK + from);
            row += both;
            store(columns + from, load(columns + from) + both);
        }
        pairs[i] = own;
        leaving[i * j->heads] = sum(writes);
        crossing[i * j->heads] = sum(row) - columns[i];
    }
}

/* And what scaling the state that entered would do through the one that leaves. */
static void through_gradients(const place *p, const real *entering, const real *grad, int64_t number) {
    const job *j = p->j;
    for (int64_t h = 0; h < j->heads; h++) {
        vec total[2] = {{0}, {0}};
        for (int64_t column = h * V; column < (h + 1) * V; column += LANES)
            for (int i = 0; i < K; i++) {
                int64_t where = (column / PANEL * K + i) * PANEL + column % PANEL;
                total[i % 2] += load(entering + where) * load(grad + where);
            }
        j->through[number * j->heads + h] = sum(total[0] + total[1]) * gate(j->start, p, h)[CHUNK - 1];
    }
}

/* Token panels of x y, x a state [K, N] by panels and y the turned values, for `heads` heads from h on. */
static void state_product(const place *p, const scratch *s, const real *state, int64_t h, int64_t heads, real *to) {
    factor left = {state + h * V * K, PANEL, 1, PANEL, (K - 1) * PANEL};
    panels right = by_panel(s->turned, p->width);
    right.data += h * V * PANEL;
    product(K, (p->rows + PANEL - 1) / PANEL, heads * V, left, right, by_panel(to, K), NONE, 0);
}

/* The gradients of q through the state that entered, as token panels in s->result, head by head: times q, a head's
 * share is what scaling its rows would do. */
static void read_gradients(const place *p, const scratch *s, const real *entering, int64_t number) {
    const job *j = p->j;
    turn_tokens(at(j->q, p, 0), j->q.token, p->rows, K, s->queries, K);
    for (int64_t h = 0; h < j->heads; h++) {
        real *share = h ? s->share : s->result;
        state_product(p, s, entering, h, 1, share);
        for (int t = 0; t < p->rows; t += LANES) {
            vec reads = {0};
            for (int i = 0; i < K; i++) {
                int64_t where = (t / PANEL * K + i) * PANEL + t % PANEL;
                reads += load(share + where) * load(s->queries + where);
                if (h) store(s->result + where, load(s->result + where) + load(share + where));
            }
            real *crossing = j->crossing + (number * CHUNK + t) * j->heads + h;
            for (int l = 0; l < LANES && t + l < p->rows; l++) crossing[l * j->heads] += reads[l];
        }
    }
}

/* `number`: of the chunk, among those of all streams. s->state is the gradient of the state that leaves. */
static void backward_chunk(const place *p, const scratch *s, real *entering, const real *products, int64_t number) {
    const job *j = p->j;
    int rows = p->rows, count = p->width / PANEL;
    real *q = at(j->q, p, 0), *k = at(j->k, p, 0);
    real *dq = at(j->dq, p, 0), *dk = at(j->dk, p, 0), *dv = at(j->dv, p, 0), *grad = s->state;

    factor left = {k, j->k.token, 1, 0, 0};
    product(rows, count, K, left, by_panel(grad, K), by_row(dv, j->dv.token), NONE, 0);
    turn_values(p, j->v, 0, s->turned);
    memset(s->total, 0, CHUNK * CHUNK * sizeof(real));
    for (int64_t h = 0; h < j->heads; h++) {
        real *dout = at(j->dout, p, h);
        if (j->end) scale_values(p, dv + h * V, j->dv.token, j->end, h, dv, j->dv.token, PANEL);
        weigh(p, h, s->weights);
        weighed(rows, products, s->weights, s->pairs, 0);
        pair_product(rows, V, (factor){dout, j->dout.token, 1, 0, 0},
                     (panels){s->turned + h * V * PANEL, PANEL, p->width * PANEL}, s->grads);
        if (j->crossing) gate_gradients(p, s, h, number);
        upper_product(rows, V / PANEL, s->pairs, by_row(dout, j->dout.token), by_row(dv + h * V, j->dv.token));
        weighed(rows, s->grads, s->weights, s->total, 1);
        scale_values(p, dout, j->dout.token, j->start, h, s->scaled, PANEL, CHUNK * PANEL);
    }
    turn_values(p, j->v, j->end, s->turned);
    state_product(p, s, grad, 0, j->heads, s->result);
    turn_back(s->result, rows, K, dk, j->dk.token);
    upper_product(rows, K / PANEL, s->total, by_row(q, j->q.token), by_row(dk, j->dk.token));

    turn_values(p, j->dout, j->start, s->turned);
    if (j->crossing) read_gradients(p, s, entering, number);
    else state_product(p, s, entering, 0, j->heads, s->result);
    turn_back(s->result, rows, K, dq, j->dq.token);
    lower_product(rows, K / PANEL, s->total, by_row(k, j->k.token), by_row(dq, j->dq.token));

    if (j->crossing) through_gradients(p, entering, grad, number);
    turned_product(K, count, rows, q, j->q.token, by_panel(s->scaled, CHUNK), by_panel(grad, K), by_panel(grad, K),
                   left_over(p, s->scale));
}

INLINE int left_of(const job *j, int64_t n) {
    return j->length - n * CHUNK < CHUNK ? j->length - n * CHUNK : CHUNK;
}

/* Both return 0, or 1 if there was no memory for scratch space. They work on streams start to stop - 1. */
int forward(const job *j, int64_t start, int64_t stop) {
    int64_t width = j->heads * V, chunks = (j->length + CHUNK - 1) / CHUNK;
    scratch s;
    if (make_scratch(&s, width)) return 1;
    for (int64_t b = start; b < stop; b++) {
        real *entering = j->saved ? j->saved[b] : s.state;
        move_state(j->first + b * K * width, entering, j->heads, 0);
        for (int64_t n = 0; n < chunks; n++) {
            place p = {j, b, n, width, left_of(j, n)};
            real *leaving = j->saved && n + 1 < chunks ? j->saved[b] + (n + 1) * K * width : s.state;
            forward_chunk(&p, &s, entering, leaving,
                          j->products ? j->products + (b * chunks + n) * CHUNK * CHUNK : s.products);
            entering = leaving;
        }
        move_state(j->last + b * K * width, entering, j->heads, 1);
    }
    free(s.state);
    return 0;
}

int backward(const job *j, int64_t start, int64_t stop) {
    int64_t width = j->heads * V, chunks = (j->length + CHUNK - 1) / CHUNK;
    scratch s;
    if (make_scratch(&s, width)) return 1;
    for (int64_t b = stop; b-- > start;) { /* In reverse: what the forward pass saved last may still be in a cache. */
        move_state(j->dlast + b * K * width, s.state, j->heads, 0);
        for (int64_t n = chunks; n--;) {
            place p = {j, b, n, width, left_of(j, n)};
            int64_t number = b * chunks + n;
            backward_chunk(&p, &s, j->saved[b] + n * K * width, j->products + number * CHUNK * CHUNK, number);
        }
        move_state(j->dfirst + b * K * width, s.state, j->heads, 1);
    }
    free(s.state);
    return 0;
}

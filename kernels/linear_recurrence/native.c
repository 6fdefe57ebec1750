/* The recurrence, token by token, with the state of one head in registers: the CPU form for small states.
 *
 * Compiled for each set of sizes. Macros, beside those of vectors.h:
 *   K, V   key and value dim; LANES divides V
 *   GATE   0 none, 1 one decay per token and head, 2 one per channel
 *   ERASE  0 none, 1 delta rule, 2 low rank
 *   SPAN   tokens between two states that the forward pass saves for the backward pass
 *
 * Columns of a state do not see each other: column i depends on number i of every value, and on the keys. So a state is
 * worked on LANES columns at a time, K vectors in all, through all tokens (forward) or the tokens of a span (backward).
 * Gradients of what the columns share (q, k, the gate, the erase) are summed over these blocks of columns.
 */
#include "vectors.h"

/* Mirrored by Job in native.py. */
typedef struct {
    int64_t heads, length;
    strided q, k, v, decay, a, b, o;                      /* a is beta under the delta rule */
    strided dq, dk, dv, ddecay, da, db, dout;             /* gradients */
    real *first, *last, *saved, *dfirst, *dlast;          /* states [B, H, K, V]; saved [B, H, ceil(L / SPAN), K, V] */
} job;

/* LANES columns, from `block` on, of one head of one stream; that is state number `item` of [B H]. */
typedef struct {
    const job *j;
    int64_t item, b, h;
    int block;
} place;

static inline real *at(strided x, const place *p, int64_t t) {
    return x.data ? x.data + p->b * x.batch + t * x.token + p->h * x.head : 0;
}

static inline real *state_of(real *states, const place *p) { return states + p->item * K * V + p->block; }

static inline real *saved_of(const place *p, int64_t span) {
    int64_t spans = (p->j->length + SPAN - 1) / SPAN;
    return p->j->saved + (p->item * spans + span) * K * V + p->block;
}

static inline void load_state(vec *S, const real *x) { EACH(i, K) S[i] = load(x + i * V); }
static inline void store_state(real *x, const vec *S) { EACH(i, K) store(x + i * V, S[i]); }

/* x^T S, in four sums so that one addition need not wait for the last. */
static inline vec combine(const real *x, const vec *S) {
    vec part[4] = {{0}, {0}, {0}, {0}};
    EACH(i, K) part[i % 4] += x[i] * S[i];
    return (part[0] + part[1]) + (part[2] + part[3]);
}

/* Blocks of columns add up; the first one starts the sum. */
static inline void collect(real *out, real x, const place *p) { *out = p->block ? *out + x : x; }

/* Halves the number of vectors: each becomes the sums of neighbouring groups of `width` lanes of two. */
INLINE void fold(vec *x, int width) {
    if (width >= LANES) return;
    EACH(i, LANES / (2 * width))
        x[i] = interleave(x[2 * i], x[2 * i + 1], width, 0) + interleave(x[2 * i], x[2 * i + 1], width, 1);
}

/* The sum of each of K rows, LANES rows at a time: folded together they cost a third of one after the other, which is
 * what GCC makes of the loop above. */
static inline void collect_rows(real *out, const vec *rows, const place *p) {
    for (int from = 0; from < K; from += LANES) {
        vec x[LANES];
        EACH(i, LANES) x[i] = from + i < K ? rows[from + i] : (vec){0};
        fold(x, 1), fold(x, 2), fold(x, 4), fold(x, 8); /* Spelt out, so that each shuffle is a constant. */
        if (from + LANES <= K) {
            if (p->block) x[0] += load(out + from);
            store(out + from, x[0]);
        } else {
            EACH(i, K % LANES) collect(out + from + i, x[0][i], p);
        }
    }
}
static inline void scale(vec *S, const real *decay) {
#if GATE == 1
    EACH(i, K) S[i] *= *decay;
#elif GATE == 2
    EACH(i, K) S[i] *= decay[i];
#endif
}

/* Write token t into S. Returns what the backward pass wants again: the delta rule's error, or b^T S. */
static inline vec write_token(vec *S, const place *p, int64_t t) {
    const job *j = p->j;
    const real *k = at(j->k, p, t), *decay = at(j->decay, p, t);
    vec v = load(at(j->v, p, t) + p->block), seen = v;
#if ERASE == 2
    const real *a = at(j->a, p, t);
    seen = combine(at(j->b, p, t), S);
#endif
    scale(S, decay);
#if ERASE == 0
    EACH(i, K) S[i] += k[i] * v;
#elif ERASE == 1
    seen = v - combine(k, S);
    vec u = *at(j->a, p, t) * seen;
    EACH(i, K) S[i] += k[i] * u;
#else
    EACH(i, K) S[i] += a[i] * seen + k[i] * v;
#endif
    return seen;
}

/* G is the gradient of the state after token t, `before` and `after` the states around it. Fills the gradients of the
 * token's inputs and turns G into the gradient of the state before. */
static inline void unwrite_token(vec *G, const vec *before, const vec *after, vec seen, const place *p, int64_t t) {
    const job *j = p->j;
    const real *k = at(j->k, p, t), *decay = at(j->decay, p, t);
    vec rows[K];
    if (j->q.data) {
        const real *q = at(j->q, p, t);
        vec dout = load(at(j->dout, p, t) + p->block);
        EACH(i, K) rows[i] = after[i] * dout;
        collect_rows(at(j->dq, p, t), rows, p);
        EACH(i, K) G[i] += q[i] * dout;
    }
    vec dv = combine(k, G);
#if ERASE == 1
    real beta = *at(j->a, p, t);
    vec u = beta * seen;
    collect(at(j->da, p, t), sum(dv * seen), p);
    dv *= beta;
    EACH(i, K) rows[i] = before[i] * dv;
    scale(rows, decay);
    EACH(i, K) rows[i] = G[i] * u - rows[i];
    EACH(i, K) G[i] -= k[i] * dv;
#else
    vec v = load(at(j->v, p, t) + p->block);
    EACH(i, K) rows[i] = G[i] * v;
#endif
    collect_rows(at(j->dk, p, t), rows, p);
    store(at(j->dv, p, t) + p->block, dv);
#if ERASE == 2
    const real *b = at(j->b, p, t);
    vec dseen = combine(at(j->a, p, t), G);
    EACH(i, K) rows[i] = G[i] * seen;
    collect_rows(at(j->da, p, t), rows, p);
    EACH(i, K) rows[i] = before[i] * dseen;
    collect_rows(at(j->db, p, t), rows, p);
#endif
    if (j->ddecay.data) {
#if GATE == 1
        vec total = {0};
        EACH(i, K) total += G[i] * before[i];
        collect(at(j->ddecay, p, t), sum(total), p);
#elif GATE == 2
        EACH(i, K) rows[i] = G[i] * before[i];
        collect_rows(at(j->ddecay, p, t), rows, p);
#endif
    }
    scale(G, decay);
#if ERASE == 2
    EACH(i, K) G[i] += b[i] * dseen;
#endif
}

/* Both return 0, or 1 if there was no memory for scratch space. They work on states start to stop - 1 of [B H]. */
int forward(const job *j, int64_t start, int64_t stop) {
    for (int64_t item = start; item < stop; item++) {
        for (int block = 0; block < V; block += LANES) {
            place p = {j, item, item / j->heads, item % j->heads, block};
            vec S[K];
            load_state(S, state_of(j->first, &p));
            for (int64_t t = 0; t < j->length; t++) {
                if (j->saved && t % SPAN == 0) store_state(saved_of(&p, t / SPAN), S);
                write_token(S, &p, t);
                if (j->q.data) store(at(j->o, &p, t) + block, combine(at(j->q, &p, t), S));
            }
            store_state(state_of(j->last, &p), S);
        }
    }
    return 0;
}

/* Span by span from the end: the states of a span are made again from the saved one, then walked backwards. */
int backward(const job *j, int64_t start, int64_t stop) {
    vec(*states)[K] = malloc((SPAN + 1) * sizeof *states), *seen = malloc(SPAN * sizeof *seen);
    int failed = !states || !seen;
    for (int64_t item = start; item < stop && !failed; item++) {
        memcpy(j->dfirst + item * K * V, j->dlast + item * K * V, K * V * sizeof(real));
        for (int64_t from = (j->length - 1) / SPAN * SPAN; from >= 0; from -= SPAN) {
            int64_t size = j->length - from < SPAN ? j->length - from : SPAN;
            for (int block = 0; block < V; block += LANES) {
                place p = {j, item, item / j->heads, item % j->heads, block};
                vec S[K];
                load_state(S, saved_of(&p, from / SPAN));
                for (int64_t i = 0; i < size; i++) {
                    EACH(x, K) states[i][x] = S[x];
                    seen[i] = write_token(S, &p, from + i);
                }
                EACH(x, K) states[size][x] = S[x];
                load_state(S, state_of(j->dfirst, &p));
                for (int64_t i = size; i--;) unwrite_token(S, states[i], states[i + 1], seen[i], &p, from + i);
                store_state(state_of(j->dfirst, &p), S);
            }
        }
    }
    free(states);
    free(seen);
    return failed;
}

/* Vectors for the C that native.py compiles: LANES numbers of type REAL each, with INDEX an integer of the same size.
 *
 * GCC's and Clang's vector extensions, so that one source serves every CPU.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef REAL real;
/* Aligned as a number, not as a vector: tensors may start anywhere. */
typedef real vec __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real)), may_alias));
typedef INDEX lanes __attribute__((vector_size(LANES * sizeof(real)), aligned(sizeof(real)), may_alias));

#define INLINE static inline __attribute__((always_inline, unused))

/* A loop that is written out, so that arrays of vectors become registers. */
#ifdef __clang__
#define EACH(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#define EACH(i, n) _Pragma("GCC unroll 64") for (int i = 0; i < (n); i++)
#endif

/* Mirrored by Strided in native.py: a tensor [B, L, H, ..], or [B, L, H]; strides in numbers. */
typedef struct {
    real *data;
    int64_t batch, token, head;
} strided;

INLINE vec load(const real *x) { return *(const vec *)x; }
INLINE void store(real *x, vec y) { *(vec *)x = y; }
INLINE vec all(real x) { return x - (vec){0}; }

/* Of two vectors, seen as groups of `width` numbers, the even groups in turn or the odd ones. `width` must be a
 * constant for this to be one instruction. */
INLINE vec interleave(vec a, vec b, int width, int odd) {
#ifdef __clang__
    vec found;
    EACH(l, LANES) found[l] = l & width ? b[l - width + odd * width] : a[l + odd * width];
    return found;
#else
    lanes from;
    EACH(l, LANES) from[l] = (l & width ? LANES + l - width : l) + odd * width;
    return __builtin_shuffle(a, b, from);
#endif
}

/* Folded in halves: a chain of additions would wait for each of them. */
INLINE real sum(vec x) {
    EACH(i, 4) if (1 << i < LANES) x = interleave(x, x, 1 << i, 0) + interleave(x, x, 1 << i, 1);
    return x[0];
}

/* Scaled dot-product attention, softmax(Q K^T / sqrt(d_k)) V, for the vectors of `mha vectors write DIR`, in plain C99.

     mha vectors write DIR && cc -std=c99 -O2 attention.c -o attention -lm && ./attention DIR
     mha vectors check DIR --name attention.c --claims attention.toml

   It reads DIR/index.txt, whose grammar is in DIR/INTERPRETING.md, and answers the calls of target `attention`, not those of
   `layer` and `merge`. The clause behind each step is named beside it. It needs a little-endian machine. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK = 8, ARRAYS = 24 };
typedef struct { char name[24], dtype[12]; int rank; long shape[RANK], size; double *x; } Array;

static Array all[ARRAYS]; /* what a line of the index gives and wants, `count` in all; an option is an array too */
static int count;
static const char KNOWN[] = "query key value mask bias is_causal query_offset window key_lengths query_segments key_segments "
                            "scale softcap sink_logits return_weights return_lse want";

static void fail(const char *why, const char *what) { fprintf(stderr, "%s: %s\n", why, what); exit(1); }

static Array *find(const char *name) { /* NULL: not given */
    for (int a = 0; a < count; a++) if (!strcmp(all[a].name, name)) return &all[a];
    return NULL;
}
static double number(const char *text) { return *text == 'n' ? INFINITY : strtod(text, NULL); } /* "none": an open side */
static double of_item(const Array *a, long b) { return a->x[a->size > 1 ? b : 0]; } /* one for all items, or one for each */

static Array *add(const char *name, const char *shape) { /* "2,3,5,4"; an empty shape is a single number */
    if (count == ARRAYS) fail("too many arrays", name);
    Array *a = &all[count++];
    *a = (Array){.size = 1};
    snprintf(a->name, sizeof a->name, "%s", name);
    for (char *end; *shape && a->rank < RANK; shape = end + (*end == ','))
        a->size *= a->shape[a->rank++] = strtol(shape, &end, 10);
    a->x = calloc(a->size + 1, sizeof *a->x);
    return a;
}

static void read_npy(Array *a, const char *folder) { /* 10 bytes, a header of that length, then the numbers in C order */
    unsigned char head[10], raw[8];
    char path[600];
    int wide = !strcmp(a->dtype, "float64"), whole = !strcmp(a->dtype, "int64"), single = !strcmp(a->dtype, "float32");
    snprintf(path, sizeof path, "%s/%.23s.npy", folder, a->name);
    if (!wide && !whole && !single && strcmp(a->dtype, "bool")) fail("a dtype that is not read here", a->dtype);
    FILE *f = fopen(path, "rb");
    if (!f || fread(head, 1, 10, f) != 10 || fseek(f, 10 + head[8] + 256 * head[9], SEEK_SET)) fail("cannot read", path);
    for (long i = 0; i < a->size; i++) {
        float f32; double f64; int64_t i64;
        if (fread(raw, wide || whole ? 8 : single ? 4 : 1, 1, f) != 1) fail("ends too early", path);
        memcpy(&f32, raw, 4), memcpy(&f64, raw, 8), memcpy(&i64, raw, 8);
        a->x[i] = wide ? f64 : whole ? (double)i64 : single ? f32 : raw[0];
    }
    fclose(f);
}

static void write_npy(const Array *a, const char *folder) {
    char path[600], header[256] = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
    for (int k = 0; k < a->rank; k++) sprintf(header + strlen(header), "%ld,", a->shape[k]);
    snprintf(path, sizeof path, "%s/%.23s.npy", folder, a->name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite("\x93NUMPY\1\0\x76\0", 1, 10, f) != 10) fail("cannot write", path); /* 0x76: the header has 118 bytes */
    fprintf(f, "%s)}%*s\n", header, (int)(115 - strlen(header)), "");
    for (long i = 0; i < a->size; i++) { float x = (float)a->x[i]; fwrite(&x, sizeof x, 1, f); }
    if (fclose(f)) fail("cannot write", path);
}

/* A mask or bias for item b, head g, query i, key j: axes count from the right, one of size 1 is broadcast (MHA-MASK-4). */
static double at(const Array *a, const Array *query, long b, long g, long i, long j) {
    long index[RANK], place = 0;
    int batch = query->rank - 3, skip = query->rank - a->rank;
    for (int k = batch; k-- > 0; b /= query->shape[k]) index[k] = b % query->shape[k];
    index[batch] = g, index[batch + 1] = i, index[batch + 2] = j;
    for (int k = 0; k < a->rank; k++) place = place * a->shape[k] + (a->shape[k] == 1 ? 0 : index[k + skip]);
    return a->x[place];
}

static int visible(const Array *query, long b, long g, long i, long j, long n, long m) { /* all allow it: MHA-MASK-1 */
    Array *mask = find("mask"), *bias = find("bias"), *length = find("key_lengths"), *offset = find("query_offset");
    Array *window = find("window"), *mine = find("query_segments"), *theirs = find("key_segments"), *causal = find("is_causal");
    double position = (offset ? of_item(offset, b) : 0) + i;                           /* MHA-MASK-8 */
    if (mask && !at(mask, query, b, g, i, j)) return 0;                                /* MHA-MASK-2 */
    if (bias && at(bias, query, b, g, i, j) == -INFINITY) return 0;                    /* MHA-MASK-5 */
    if (causal && causal->x[0] && j > position) return 0;                              /* MHA-MASK-7 */
    if (window && (j < position - window->x[0] || j > position + window->x[1])) return 0; /* MHA-MASK-10 */
    if (length && j >= of_item(length, b)) return 0;                                   /* MHA-MASK-12 */
    return !mine || mine->x[b * n + i] == theirs->x[b * m + j];                        /* MHA-MASK-13 */
}

static void attention(Array *output, Array *weights, Array *lse) {
    Array *query = find("query"), *key = find("key"), *value = find("value");
    Array *bias = find("bias"), *sink = find("sink_logits"), *scale = find("scale"), *cap = find("softcap");
    const long *q = query->shape + query->rank - 3, *k = key->shape + key->rank - 3;
    long h = q[0], n = q[1], d = q[2], h_kv = k[0], m = k[1], d_v = value->shape[value->rank - 1], rows = 1;
    double sigma = scale ? scale->x[0] : d ? 1 / sqrt((double)d) : 1;                  /* MHA-ATTN-2, MHA-ATTN-3 */
    double *a = calloc(m + 1, sizeof *a);
    char *see = calloc(m + 1, sizeof *see);
    for (int axis = 0; axis < query->rank - 1; axis++) rows *= query->shape[axis];
    for (long row = 0; row < rows; row++) { /* one query of one head of one batch item */
        long i = row % n, g = row / n % h, b = row / n / h, head = b * h_kv + g / (h / h_kv); /* MHA-HEAD-2 */
        double top = sink ? sink->x[g] : -INFINITY, total = 0;
        for (long j = 0; j < m; j++) {
            if (!(see[j] = (char)visible(query, b, g, i, j, n, m))) continue;          /* not even read: MHA-MASK-19 */
            a[j] = 0;
            for (long c = 0; c < d; c++) a[j] += query->x[row * d + c] * key->x[(head * m + j) * d + c];
            a[j] *= sigma;                                                             /* MHA-ATTN-1 */
            if (cap) a[j] = cap->x[0] * tanh(a[j] / cap->x[0]);                        /* MHA-ATTN-10 */
            if (bias) a[j] += at(bias, query, b, g, i, j);                             /* MHA-ATTN-11 */
            if (a[j] > top) top = a[j];
        }
        double shift = top == -INFINITY ? 0 : top;                                     /* MHA-ATTN-13 */
        for (long j = 0; j < m; j++) if (see[j]) total += a[j] = exp(a[j] - shift);
        if (sink) total += exp(sink->x[g] - shift);                                    /* MHA-ATTN-12 */
        for (long j = 0; j < m; j++) {
            if (!see[j]) continue;                                                     /* an empty row stays 0: MHA-MASK-15 */
            double A = a[j] / total;                                                   /* MHA-ATTN-5 */
            if (weights) weights->x[row * m + j] = A;                                  /* MHA-AUX-1 */
            for (long c = 0; c < d_v; c++) output->x[row * d_v + c] += A * value->x[(head * m + j) * d_v + c]; /* MHA-ATTN-6 */
        }
        if (lse) lse->x[row] = shift + log(total);                                     /* MHA-AUX-4, MHA-AUX-6 */
    }
    free(a), free(see);
}

int main(int argc, char **argv) {
    char line[4096], path[600], folder[512], *word;
    snprintf(path, sizeof path, "%s/index.txt", argc == 2 ? argv[1] : "DIR");
    FILE *index = fopen(path, "r");
    if (!index) fail("usage: attention DIR; cannot read", path);
    for (; fgets(line, sizeof line, index); count = 0) { /* folder target name=dtype:shape name=value want=name:shape */
        if (*line == '#') continue;
        snprintf(folder, sizeof folder, "%.300s/%.200s", argv[1], strtok(line, " \n"));
        if (strcmp(strtok(NULL, " \n"), "attention")) continue;
        while ((word = strtok(NULL, " \n"))) {
            char *text = strchr(word, '='), *shape = strchr(word, ':'), *comma = strchr(word, ',');
            *text++ = 0;
            if (shape) *shape++ = 0;
            if (!strstr(KNOWN, word)) fail("an option that is not known here", word);
            Array *a = add(strcmp(word, "want") ? word : text, shape ? shape : comma ? "2" : "");
            if (!shape) a->x[0] = number(text), a->x[a->size - 1] = number(comma ? comma + 1 : text);
            else if (strcmp(word, "want")) snprintf(a->dtype, sizeof a->dtype, "%s", text), read_npy(a, folder);
        }
        attention(find("output"), find("weights"), find("lse"));
        for (int w = 0; w < count; free(all[w++].x)) if (strstr("output weights lse", all[w].name)) write_npy(&all[w], folder);
    }
    return fclose(index);
}

/* checkpoint -- pieces of the parameter table, and loading: choice of a checkpoint, its model, its
 * boxes */
#include "checkpoint.h"
#include "config_table.h"
#include "half.h"
#include "memory_copies.h"
#include "source.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MASTER ".master"

/* ---- pieces */

/* Elements of t in this array that go into a list: to load, all that is held; else this rank's share. */
static void range_of(const Params *p, const Param *t, const Flat *flat, PieceUse use, int64_t *from,
                     int64_t *to)
{
    if (use == PIECES_LOAD) {
        param_held(p, t, flat, from, to);
        return;
    }
    param_own(p, t, from, to);
    *to = *to < t->counted ? *to : t->counted;
    if (data_groups(&p->data, t->bucket)->copies->rank)  /* hybrid sharding: only the first copy saves */
        *to = *from;
}

/* Makes p, a piece of a tensor's moment k from element `from` on, one of numbers with scales. A box begins
 * with a block: a rank's rows are whole blocks. The values of FP8 fit BF16, of FP16 they fit F32. */
static void set_scales(TensorPiece *p, const Params *params, const Param *t, int k, int64_t from)
{
    const Data *d = &params->data;
    p->moment = d->stored[k];
    p->second = k;
    p->scale = param_at(params, t, &d->scale[k], from);
    p->type = p->moment == MOMENT_FP8 ? BF16 : F32;
}

static void add_pieces(TensorPiece **list, int *n, const Params *p, const char *suffix, const Flat *flat,
                       int optim, PieceUse use)
{
    const Data *d = &p->data;
    int halves = d->halves && flat == &d->master, k = flat == &d->moment[1],
        scaled = (k || flat == &d->moment[0]) && moment_scaled(d->stored[k]);
    for (int i = 0; i < p->nparam; i++) {
        Box box[MAX_BOXES];
        const Param *t = &p->param[i];
        int64_t from, to;
        range_of(p, t, flat, use, &from, &to);
        int boxes = param_boxes(p, t, from, to, box);
        for (int b = 0; b < boxes; b++) {
            void *at = param_at(p, t, flat, box[b].at - t->offset);
            TensorPiece piece = {
                .name = xasprintf("%s%s", t->name, suffix), .type = halves ? p->real : flat->type,
                .ndim = t->ndim, .shape = {t->rows, t->cols}, .row0 = box[b].row0, .col0 = box[b].col0,
                .rows = box[b].rows, .cols = box[b].cols, .ld = box[b].ld, .optim = optim, .dev = d->dev,
                .data = halves ? param_at(p, t, &d->weight, box[b].at - t->offset) : at,
                .rest = halves ? at : NULL};
            if (scaled)
                set_scales(&piece, p, t, k, box[b].at - t->offset);
            pieces_add(list, n, piece);
        }
    }
}

TensorPiece *pieces_open(const Params *p, PieceUse use, int *n)
{
    static const char *const moment[2] = {".exp_avg", ".exp_avg_sq"};
    const Data *d = &p->data;
    TensorPiece *list = xgrow(NULL, 0, sizeof *list);
    *n = 0;
    if (use == PIECES_GRADIENT) {
        add_pieces(&list, n, p, "", &d->grad, 0, use);
        return list;
    }
    if (use == PIECES_SAVE || !d->halves)
        add_pieces(&list, n, p, "", &d->weight, 0, use);
    if (d->gradients && p->type != p->real)
        add_pieces(&list, n, p, MASTER, &d->master, 1, use);
    for (int i = 0; i < d->moments; i++)
        add_pieces(&list, n, p, moment[i], &d->moment[i], 1, use);
    return list;
}

void pieces_loaded(Params *p)
{
    if (p->data.halves)
        data_gather_all(&p->data, 0);
}

static void get_moments(const TensorPiece *p, int64_t at, int64_t n, char *dst)
{
    float x[4096];
    for (int64_t i = 0, part; i < n; i += part) {
        part = n - i < 4096 ? n - i : 4096;
        device_get_moments(p->dev, x, p->data, p->scale, p->moment, p->second, at + i, part);
        for (int64_t k = 0; k < part && p->type == BF16; k++) {
            uint16_t half = f32_to_bf16(x[k]);
            memcpy(dst + (i + k) * 2, &half, sizeof half);
        }
        if (p->type == F32)
            memcpy(dst + i * 4, x, (size_t)part * sizeof *x);
    }
}

void piece_get(const TensorPiece *p, int64_t at, int64_t n, void *dst)
{
    size_t size = p->rest ? sizeof(uint16_t) : dtype_size(p->type);
    char *from = (char *)p->data + (size_t)at * size;
    if (p->scale)
        get_moments(p, at, n, dst);
    else if (p->rest)
        device_get_masters(p->dev, dst, (uint16_t *)from, p->rest + at, n);
    else
        device_get(p->dev, dst, from, (size_t)n * size);
}

void pieces_add(TensorPiece **list, int *n, TensorPiece p)
{
    *list = xgrow(*list, *n, sizeof **list);
    (*list)[(*n)++] = p;
}

void pieces_close(TensorPiece *p, int n)
{
    for (int i = 0; i < n; i++)
        free((char *)p[i].name);
    free(p);
}

/* ---- is it this model's? */

/* Differences between the stored model and this one, "; " between entries, cut at the length of a
 * message. */
typedef struct { char text[1400]; int entries, left_out; } Diff;

__attribute__((format(printf, 2, 3))) static void differs(Diff *d, const char *fmt, ...)
{
    char entry[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(entry, sizeof entry, fmt, ap);
    va_end(ap);
    size_t used = strlen(d->text);
    if (used + strlen(entry) + 3 > sizeof d->text)
        d->left_out++;
    else
        snprintf(d->text + used, sizeof d->text - used, "%s%s", d->entries ? "; " : "", entry);
    d->entries++;
}

const Config *checkpoint_config(const json_t *state, const char *dir)
{
    const char *text = json_string_value(json_object_get(state, "config")), *skipped = "";
    const char *build = json_string_value(json_object_get(state, "build"));
    const Config *cfg = text ? config_read_saved(text, strlen(text), &skipped) : NULL;
    if (cfg && dir && *skipped)
        warn("%s was written by another build (%s), with settings that this one cannot read: %s; change: "
             "nothing if the model does not depend on them, else take that build", dir,
             build ? build : "unknown", skipped);
    return cfg;
}

/* Whether the checkpoint is of a dense model, from which this run's model with experts is made. */
static int upcycles(const Config *cfg, const json_t *state)
{
    const Config *saved = cfg->moe_use_upcycling ? checkpoint_config(state, NULL) : NULL;
    return saved && cfg->num_moe_experts != CFG_ABSENT && saved->num_moe_experts == CFG_ABSENT;
}

/* Experts that are copies of an mlp compute what the mlp did if their weights add up to 1. */
static void warn_of_sum(const Config *cfg, const char *dir)
{
    double sum = config_router_sum(cfg), factor = cfg->moe_router_topk_scaling_factor;
    double scaled = isnan(factor) ? sum : sum * factor;
    if (fabs(scaled - 1) > 0.01)
        warn("%s: the experts are copies of its mlps, but the weights of a token's experts add up to about "
             "%.3g while the router is new: this is another function than the dense model; change: "
             "moe_router_topk_scaling_factor=%.6g", dir, scaled, 1 / sum);
}

static int of_experts(int option) { return !strcmp(options[option].section, "moe"); }

/* upcycle, bool: experts are compared by their tensors alone. */
static void compare_keys(Diff *d, const Config *cfg, const json_t *state, int upcycle)
{
    const Config *saved = checkpoint_config(state, NULL);
    for (int i = 0; saved && i < OPTIONS; i++) {
        if (!config_is_shape(i) || (upcycle && of_experts(i)))
            continue;
        char *then = config_text(saved, i), *now = config_text(cfg, i);
        if (saved->given[i] && config_differs(saved, cfg, i))
            differs(d, "%s is %s there, %s here", options[i].key, then, now);
        free(then);
        free(now);
    }
}

/* Warns when weights alone are loaded into another function. run_load compares all keys of a whole
 * resume. */
static void warn_of_function(const Config *cfg, const json_t *state, const char *dir)
{
    const Config *saved = checkpoint_config(state, NULL);
    for (int i = 0; saved && i < OPTIONS; i++) {
        if (!config_is_function(i) || (upcycles(cfg, state) && of_experts(i)))
            continue;
        char *then = config_text(saved, i), *now = config_text(cfg, i);
        if (saved->given[i] && config_differs(saved, cfg, i))
            warn("%s: %s was %s for these weights and is %s here", dir, options[i].key, then, now);
        free(then);
        free(now);
    }
}

static int is_master(const char *name)
{
    size_t n = strlen(name), m = strlen(MASTER);
    return n > m && !strcmp(name + n - m, MASTER);
}

/* The name of the dense layer's tensor that stands for an expert's, from malloc; NULL: of no expert. For
 * "decoder.layers.3.mlp.experts.linear_fc1.weight5.master" it is
 * "decoder.layers.3.mlp.linear_fc1.weight.master". */
static char *dense_name(const char *name)
{
    static const char of_expert[] = ".mlp.experts.";
    const char *at = strstr(name, of_expert), *rest = at ? at + strlen(of_expert) : NULL, *number;
    if (!at)
        return NULL;
    number = rest + strcspn(rest, ".") + 1;
    number += strcspn(number, "0123456789");
    return xasprintf("%.*s.mlp.%.*s%s", (int)(at - name), name, (int)(number - rest), rest,
                     number + strspn(number, "0123456789"));
}

/* The stored tensor that a piece is read from; NULL when the checkpoint has none. */
static const StoredTensor *stored_as(const Manifest *m, const TensorPiece *p)
{
    const StoredTensor *t = manifest_find(m, p->name), *master = NULL;
    char *name;
    if (!t && is_master(p->name)) {
        name = xstrdup(p->name);
        name[strlen(name) - strlen(MASTER)] = 0;
        t = manifest_find(m, name);
        free(name);
    } else if (t && !p->optim && t->type != p->type) {
        name = xasprintf("%s" MASTER, p->name);
        master = manifest_find(m, name);
        free(name);
    }
    return master ? master : t;
}

/* The same; upcycle, bool: of a dense model, whose layer each expert is a copy of. */
static const StoredTensor *stored(const Manifest *m, const TensorPiece *p, int upcycle)
{
    TensorPiece from = *p;
    char *dense = upcycle ? dense_name(p->name) : NULL;
    from.name = dense ? dense : p->name;
    const StoredTensor *t = stored_as(m, &from);
    free(dense);
    return t;
}

/* Whether the checkpoint may lack a piece, which then keeps its value. A dense model has no router. */
static int may_lack(const TensorPiece *p, int upcycle)
{
    return p->may_lack || (upcycle && strstr(p->name, ".mlp.router."));
}

static int skipped(const TensorPiece *p, int weights_only)
{
    return weights_only && p->optim && !is_master(p->name);
}

static void compare_tensors(Diff *d, const Manifest *m, const TensorPiece *p, int n, int weights_only,
                            int upcycle)
{
    for (int i = 0; i < n; i++) {
        const StoredTensor *t = stored(m, &p[i], upcycle);
        int64_t cols = p[i].ndim == 2 ? p[i].shape[1] : 1;
        if (skipped(&p[i], weights_only) || (i && !strcmp(p[i].name, p[i - 1].name)))
            continue;
        if (!t && may_lack(&p[i], upcycle))
            continue;
        if (!t)
            differs(d, "%s is not there", p[i].name);
        else if (t->ndim != p[i].ndim || t->shape[0] != p[i].shape[0] || t->shape[1] != cols)
            differs(d, "%s is [%" PRId64 ", %" PRId64 "] there, [%" PRId64 ", %" PRId64 "] here", p[i].name,
                    t->shape[0], t->shape[1], p[i].shape[0], cols);
        else if ((t->type > F16) != (p[i].type > F16))
            differs(d, "%s is %s there, %s here", p[i].name, dtype_name(t->type), dtype_name(p[i].type));
    }
}

/* ---- loading */

int checkpoint_exists(const char *path)
{
    int n;
    char **list = source_list(path, &n);
    source_list_free(list, n);
    return n > 0;
}

static int64_t iteration_of(const char *dir)
{
    int64_t iteration = -1;
    source_iteration(strrchr(dir, '/') + 1, &iteration);
    return iteration;
}

int64_t checkpoint_newest(const char *path, int64_t most)
{
    int n;
    char **list = source_list(path, &n);
    int64_t newest = -1;
    for (int i = 0; i < n && newest < 0; i++)
        newest = iteration_of(list[i]) <= most ? iteration_of(list[i]) : -1;
    source_list_free(list, n);
    return newest;
}

/* Broadcasts what rank 0 sees: list[0] is the id of the folder's run, "" where none is known; then come
 * the n candidates, newest first. */
static char **agree_on_list(Comm *c, const char *path, int *n)
{
    char **list = NULL, *all = NULL;
    int64_t size[2] = {0, 0};       /* number of candidates; 4-byte words of all texts */
    if (c->rank == 0) {
        char *id = source_run_id(path);
        list = source_list(path, n);
        size_t bytes = 0;
        for (int i = -1; i < *n; i++) {
            const char *text = i >= 0 ? list[i] : id ? id : "";
            size_t add = strlen(text) + 1;
            all = xrealloc(all, bytes + add + 4);
            memcpy(all + bytes, text, add);
            bytes += add;
        }
        source_list_free(list, *n);
        free(id);
        size[0] = *n, size[1] = (int64_t)(bytes + 3) / 4;
    }
    c->wait(c, c->broadcast(c, size, 2, I64, 0));
    all = c->rank == 0 ? all : xcalloc((size_t)size[1], 4);
    c->wait(c, c->broadcast(c, all, size[1], I32, 0));
    *n = (int)size[0];
    list = xcalloc((size_t)*n + 1, sizeof *list);
    char *at = all;
    for (int i = 0; i <= *n; at += strlen(at) + 1)
        list[i++] = xstrdup(at);
    free(all);
    return list;
}

/* Adds the copies in memory to the candidates of the disk, each before those that are not newer. */
static char **add_copies(char **list, int *n, Comm *all)
{
    int64_t copy[MEMORY_LISTED];
    int copies = memory_list(copy, all), at = 1, i = 1, k = 0;
    char **both = xcalloc((size_t)(*n + copies) + 1, sizeof *both);
    both[0] = list[0];
    while (i <= *n || k < copies) {
        int newer = k < copies && (i > *n || copy[k] >= iteration_of(list[i]));
        both[at++] = newer ? memory_copy(copy[k++]) : list[i++];
    }
    free(list);
    *n += copies;
    return both;
}

static int64_t reduce(Comm *c, int64_t v, ReduceOp op)
{
    c->wait(c, c->all_reduce(c, &v, 1, I64, op));
    return v;
}

/* Opens one candidate; 0 when this rank finds it damaged. */
static int open_candidate(Source *s, const char *dir, Comm *c, char why[WHY])
{
    int ok = source_open(s, dir, why) && (c->rank != 0 || memory_holds(dir) || source_check_files(s, why));
    if (!ok)
        source_check_host(dir);
    /* the manifests of all ranks must be equal: folders local to a host may differ */
    int64_t mine = ok ? (int64_t)(s->m.hash >> 1) : 0;
    int64_t low = reduce(c, ok ? mine : INT64_MAX, OP_MIN), high = reduce(c, mine, OP_MAX);
    if (ok && low != high)
        ok = file_why(why, "its manifest is not the same on every rank");
    return ok;
}

/* Bytes of a piece that go through the host at a time: several blocks, so that few blocks are read
 * twice. */
#define ROOM (8 * HASH_BLOCK) /* whole blocks of moments, of vectors too */

/* Copies n neighbouring elements to a piece, from data's element `at` on.
 *   src   in  [n]  of type `type`: the piece's, or F32 where the piece is BF16 or has scales */
static void piece_put(const TensorPiece *p, int64_t at, int64_t n, void *src, Dtype type)
{
    size_t size = p->rest ? sizeof(uint16_t) : dtype_size(p->type);
    char *to = (char *)p->data + (size_t)at * size;
    uint16_t *weight = src;
    if (p->scale) {
        device_put_moments(p->dev, p->data, p->scale, p->moment, p->second, at, src, n);
        return;
    }
    for (int64_t i = 0; i < n && type != p->type; i++) {
        float x;
        memcpy(&x, (char *)src + (size_t)i * sizeof x, sizeof x);
        weight[i] = master_weight(x);
    }
    if (p->rest)
        device_put_masters(p->dev, (uint16_t *)to, p->rest + at, src, n);
    else
        device_put(p->dev, to, src, (size_t)n * size);
}

/* Reads a piece of the stored tensor t, as many rows at a time as `room` holds. */
static int read_piece(Source *s, const StoredTensor *t, const TensorPiece *p, void *room, char why[WHY])
{
    Dtype type = p->scale || (p->type == BF16 && t->type != BF16) ? F32 : p->type;
    int64_t line = p->cols * (int64_t)dtype_size(type), most = ROOM / line > 1 ? ROOM / line : 1;
    for (int64_t r = 0; r < p->rows; r += most) {
        int64_t rows = p->rows - r < most ? p->rows - r : most;
        if (!source_read(s, t, p->row0 + r, p->col0, rows, p->cols, room, p->cols, type, why))
            return 0;
        if (p->ld == p->cols)
            piece_put(p, r * p->ld, rows * p->cols, room, type);
        for (int64_t k = 0; k < rows && p->ld != p->cols; k++)
            piece_put(p, (r + k) * p->ld, p->cols, (char *)room + k * line, type);
    }
    return 1;
}

static int read_pieces(Source *s, const TensorPiece *p, int n, int weights_only, int upcycle,
                       char why[WHY])
{
    int64_t longest = ROOM;
    Arena room;
    int ok = 1;
    for (int i = 0; i < n; i++)
        longest = p[i].cols * 8 > longest ? p[i].cols * 8 : longest;
    arena_open(&room, "a checkpoint's tensors", (size_t)longest);
    errno = 0;                         /* source_check_host asks it where a piece cannot be read */
    for (int i = 0; ok && i < n; i++) {
        const StoredTensor *t = stored(&s->m, &p[i], upcycle);
        if (!skipped(&p[i], weights_only) && p[i].rows && p[i].cols && t)
            ok = read_piece(s, t, &p[i], room.base, why);
    }
    arena_close(&room);
    return ok;
}

/* What became of a candidate, the same on every rank. */
typedef enum { LOADED, DAMAGED, FOREIGN, GONE } Tried;

typedef struct {
    const LoadFrom *from;
    const Config *cfg;
    Comm *all;
    const TensorPiece *p;
    int n, weights_only;
    json_t *state;                  /* of the checkpoint that was loaded */
    int64_t speaker;                /* lowest rank that found the candidate damaged */
    char why[WHY];                  /* what this rank found */
} Loading;

/* Tries to load a candidate, the same folder on every rank. Dies when it holds another model. */
static Tried try_candidate(Loading *l, const char *dir, const char *id)
{
    Comm *all = l->all;
    Source s;
    Diff diff = {0};
    Tried tried = LOADED;
    int there = !memory_holds(dir) || peers_fetch(iteration_of(dir), all, l->why);
    int ok = open_candidate(&s, dir, all, l->why) && there, whole = (int)reduce(all, ok, OP_MIN);
    if (whole && source_is_foreign(&s, *id ? id : NULL)) {
        tried = FOREIGN;
    } else if (whole) {
        int upcycle = upcycles(l->cfg, s.m.state);
        if (upcycle)
            json_object_set_new(s.m.state, "weights_only", json_true());
        l->weights_only = l->weights_only || json_is_true(json_object_get(s.m.state, "weights_only"));
        compare_keys(&diff, l->cfg, s.m.state, upcycle);
        compare_tensors(&diff, &s.m, l->p, l->n, l->weights_only, upcycle);
        all_ok(all, !diff.entries, EXIT_CHECKPOINT, "checkpoint-model",
               "%s holds another model: %s%s; change: set these keys as they were, or load another "
               "checkpoint", dir, diff.text, diff.left_out ? "; and more" : "");
        ok = read_pieces(&s, l->p, l->n, l->weights_only, upcycle, l->why);
        if (!ok)
            source_check_host(dir);
        whole = (int)reduce(all, ok, OP_MIN);
    }
    if (!whole) {
        tried = reduce(all, !ok && source_gone(&s, dir), OP_MAX) ? GONE : DAMAGED;
        l->speaker = reduce(all, ok ? INT64_MAX : all->rank, OP_MIN);
    } else if (tried == LOADED) {
        l->state = json_incref(s.m.state);
        if (all->rank == 0)
            checkpoint_config(l->state, dir);
        if (l->weights_only && all->rank == 0)
            warn_of_function(l->cfg, l->state, dir);
        if (upcycles(l->cfg, l->state) && all->rank == 0)
            warn_of_sum(l->cfg, dir);
    }
    source_close(&s);
    return tried;
}

/* Every rank is about to die because nothing can be loaded. */
static void say_lost(const Loading *l)
{
    if (l->from->lost)
        l->from->lost(l->from->ctx);
}

/* Tries the candidates until one is loaded. GONE: a live run has deleted one; list them again. */
static Tried try_list(Loading *l, char **list, int count, char **found_dir)
{
    Tried tried = FOREIGN;
    for (int i = 1; i <= count && tried != LOADED && tried != GONE; i++) {
        tried = try_candidate(l, list[i], list[0]);
        int copy = memory_holds(list[i]);
        int first = l->all->rank == 0, speaks = tried == DAMAGED && l->all->rank == l->speaker;
        if (tried == LOADED && found_dir)
            *found_dir = xstrdup(list[i]);
        if (tried == FOREIGN && first)
            warn("%s is of another run; passed over", list[i]);
        if (tried != DAMAGED)
            continue;
        int last = (!copy && l->cfg->on_corrupt != ON_CORRUPT_PREVIOUS) || i == count;
        if (last)
            say_lost(l);
        all_ok(l->all, !speaks || !last, EXIT_CHECKPOINT, "checkpoint-damaged",
               "%s: %s; change: %sload=DIR, another checkpoint", list[i], l->why,
               i < count ? "on_corrupt=previous to take the one before it, or " : "");
        if (speaks)
            warn("%s: %s; taking the %s before it", list[i], l->why, copy ? "newest state" : "checkpoint");
    }
    return tried;
}

json_t *checkpoint_load(const LoadFrom *from, const Config *cfg, Comm *all, const TensorPiece *p, int n,
                        int weights_only, char **found_dir)
{
    Loading l = {.from = from, .cfg = cfg, .all = all, .p = p, .n = n, .weights_only = weights_only};
    const char *path = from->path;
    Tried tried = GONE;
    for (int tries = 0; tried == GONE && tries < SOURCE_TRIES; tries++) {
        int count;
        char **list = agree_on_list(all, path, &count);
        if (from->memory)
            list = add_copies(list, &count, all);
        if (!count)
            say_lost(&l);
        const char *instead = count ? "" : source_instead(path);
        all_ok(all, count > 0, EXIT_CHECKPOINT, "checkpoint-missing",
               "%s holds no checkpoint%s; change: load=DIR, a checkpoint or a run directory", path,
               *instead ? instead : ": neither a manifest.json nor checkpoints/iter_N with one");
        tried = try_list(&l, list, count, found_dir);
        source_list_free(list, count + 1);
    }
    if (tried != LOADED)
        say_lost(&l);
    all_ok(all, tried == LOADED, EXIT_CHECKPOINT, "checkpoint-missing",
           tried == GONE ? "each newest checkpoint of %s was deleted while it was read; change: load=DIR, a "
                           "checkpoint that its run keeps, or a larger save_keep_last there"
                         : "%s holds no checkpoint of its own run; change: load=DIR, the checkpoint itself",
           path);
    return l.state;
}

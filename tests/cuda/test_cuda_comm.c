/* test_cuda_comm -- every operation of groups over device memory against the same one over host memory
 *
 *   test_cuda_comm staged|nccl [ROUNDS]     under a launcher
 *
 * An op writes each buffer just before it is sent, another op reads each received buffer at once, and then
 * both buffers are overwritten. A missing wait for an event, or a call in another order on one rank, thus
 * gives a wrong number or ends the job. With nccl, rank 0 has a grid of one rank open during the first
 * half of the rounds, too, on a device of its own, as in `train verify`. */
#include "comm_device.h"
#include "grid.h"
#include "half.h"
#include "job.h"
#include "test.h"

enum { MOST = 3000, FLYING = 4, MANY = 150 };

static Device dev;
static Grid grid;
static uint64_t key, at;

static int64_t draw(int64_t n) { return (int64_t)(philox(key, at++, 0).v[0] % (uint64_t)n); }

typedef struct {
    Comm *c;
    int kind, root;
    int64_t n;
    Dtype type;
    ReduceOp op;
    char *in, *out, /* device: input and output of the operation */
        *seen,      /* device: copy of the output, made right after the operation */
        *source;    /* device: numbers that an op copies to the input right before the operation */
    void *want,     /* host: output of the same operation over host memory */
        *mine;      /* host: this rank's input */
    Token token[2];
} Case;

static size_t bytes_of(const Case *k, int64_t n) { return (size_t)n * dtype_size(k->type); }
static int64_t ins(const Case *k)
{
    return k->kind == COMM_REDUCE_SCATTER || k->kind == COMM_ALL_TO_ALL ? k->n * k->c->size : k->n;
}
static int64_t outs(const Case *k)
{
    return k->kind == COMM_ALL_GATHER || k->kind == COMM_ALL_TO_ALL ? k->n * k->c->size : k->n;
}
static int in_place(const Case *k) { return k->kind == COMM_ALL_REDUCE || k->kind == COMM_BROADCAST; }

/* Fills k->mine with integers of rank `who`, exact in every type, and so are their sums. */
static void fill(Case *k, int who)
{
    for (int64_t i = 0; i < ins(k); i++) {
        int v =
            (int)(((uint64_t)(who + 1) * 40503u + (uint64_t)i * 2654435761u + (uint64_t)k->n) >> 7 & 15) - 7;
        switch (k->type) {
        case F32: ((float *)k->mine)[i] = (float)v; break;
        case BF16: ((uint16_t *)k->mine)[i] = f32_to_bf16((float)v); break;
        case F16: ((uint16_t *)k->mine)[i] = f32_to_f16((float)v); break;
        case F64: ((double *)k->mine)[i] = v; break;
        case I32: ((int32_t *)k->mine)[i] = v; break;
        default: ((int64_t *)k->mine)[i] = v;
        }
    }
}

static Token start(Case *k, void *out, void *in)
{
    Comm *c = k->c;
    switch (k->kind) {
    case COMM_ALL_REDUCE:     return c->all_reduce(c, out, k->n, k->type, k->op);
    case COMM_REDUCE_SCATTER: return c->reduce_scatter(c, out, in, k->n, k->type, k->op);
    case COMM_ALL_GATHER:     return c->all_gather(c, out, in, k->n, k->type);
    case COMM_ALL_TO_ALL:     return c->all_to_all(c, out, in, k->n, k->type);
    default:                  return c->broadcast(c, out, k->n, k->type, k->root);
    }
}

/* Ring: in one group call every rank sends to the next rank and receives from the one before. */
static void start_ring(Case *k, void *out, void *in, Token token[2])
{
    Comm *c = k->c;
    comm_together(c, 1);
    token[0] = c->send(c, in, k->n, k->type, (c->rank + 1) % c->size);
    token[1] = c->recv(c, out, k->n, k->type, (c->rank + c->size - 1) % c->size);
    comm_together(c, 0);
}

static void wait(Case *k)
{
    k->c->wait(k->c, k->token[0]);
    k->c->wait(k->c, k->token[1]);
}

static void begin(Case *k)
{
    static const Dtype types[] = {F32, BF16, F16, F64, I32, I64};
    Comm *groups[] = {&grid.all, &grid.axis[AXIS_TP], &grid.axis[AXIS_DP], &grid.data, &grid.model};
    char *room[4] = {k->in, k->out, k->seen, k->source};
    void *host[2] = {k->want, k->mine};
    do
        *k = (Case){.c = groups[draw(5)]};
    while (k->c->size == 1);
    k->in = room[0], k->out = room[1], k->seen = room[2], k->source = room[3];
    k->want = host[0], k->mine = host[1];
    k->kind = (int)(int[]){COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER,
                           COMM_ALL_TO_ALL, COMM_BROADCAST,      COMM_SEND}[draw(6)];
    k->type = types[draw(6)];
    k->n = 1 + draw(draw(2) ? 8 : MOST / 8);
    k->op = (ReduceOp)draw(3);
    k->root = (int)draw(k->c->size);
    fill(k, grid.rank);
    dev.put(&dev, k->source, k->mine, bytes_of(k, ins(k)));
    dev.zero(&dev, k->out, bytes_of(k, outs(k)));
    /* an op writes the operation's input on the compute stream */
    char *from = in_place(k) ? k->out : k->in;
    dev.copy(&dev, mat(from, 1, ins(k), k->type), mat(k->source, 1, ins(k), k->type));
    if (k->kind == COMM_SEND)
        start_ring(k, k->out, k->in, k->token);
    else
        k->token[0] = start(k, k->out, k->in);
}

static void end(Case *k, int number)
{
    Token t[2] = {0};
    wait(k);
    dev.copy(&dev, mat(k->seen, 1, outs(k), k->type), mat(k->out, 1, outs(k), k->type));
    dev.zero(&dev, k->in, bytes_of(k, ins(k)));
    dev.zero(&dev, k->out, bytes_of(k, outs(k)));
    if (in_place(k))
        memcpy(k->want, k->mine, bytes_of(k, ins(k)));
    if (k->kind == COMM_SEND)
        start_ring(k, k->want, k->mine, t);
    else
        t[0] = start(k, k->want, k->mine);
    k->c->wait(k->c, t[0]);
    k->c->wait(k->c, t[1]);
    char *got = malloc(bytes_of(k, outs(k)));
    dev.get(&dev, got, k->seen, bytes_of(k, outs(k)));
    CHECK(!memcmp(got, k->want, bytes_of(k, outs(k))), "rank %d, number %d: %s over %s (%d of %d), %lld %s",
          grid.rank, number, k->kind == COMM_SEND ? "ring" : comm_kind_name[k->kind], k->c->name, k->c->rank,
          k->c->size, (long long)k->n, dtype_name(k->type));
    free(got);
}

/* A message between two ranks of all: the others make no call. Operations of all ranks may follow. */
static void send_alone(Case *k)
{
    Comm *c = &grid.all;
    k->type = I32, k->n = 1;
    if (c->rank == 0)
        c->wait(c, c->send(c, k->in, k->n, k->type, 1));
    if (c->rank == 1)
        c->wait(c, c->recv(c, k->in, k->n, k->type, 0));
}

/* A backward of many layers starts the reductions of all their buckets, and a dispatch its messages to all
 * ranks, before the first wait. in, out [MANY] float: on the device. */
static void start_many(float *in, float *out)
{
    Comm *c = &grid.all;
    float v[MANY], got[MANY];
    Token token[2 * MANY];
    int next = (c->rank + 1) % c->size, last = (c->rank + c->size - 1) % c->size;
    for (int i = 0; i < MANY; i++)
        v[i] = (float)(1000 * c->rank + i);
    dev.put(&dev, in, v, sizeof v);
    comm_together(c, 1);
    for (int i = 0; i < MANY; i++) {
        token[2 * i] = c->send(c, in + i, 1, F32, next);
        token[2 * i + 1] = c->recv(c, out + i, 1, F32, last);
    }
    comm_together(c, 0);
    for (int i = 0; i < 2 * MANY; i++)
        c->wait(c, token[i]);
    dev.get(&dev, got, out, sizeof got);
    for (int i = 0; i < MANY; i++)
        CHECK(got[i] == (float)(1000 * last + i), "message %d of %d: %g", i, MANY, got[i]);
    for (int i = 0; i < MANY; i++)
        token[i] = c->all_reduce(c, in + i, 1, F32, OP_MAX);
    for (int i = 0; i < MANY; i++)
        c->wait(c, token[i]);
    dev.get(&dev, got, in, sizeof got);
    for (int i = 0; i < MANY; i++)
        CHECK(got[i] == (float)(1000 * (c->size - 1) + i), "reduction %d of %d: %g", i, MANY, got[i]);
}

/* Bytes are counted once, on the device and on the host. at [1] float: on the device. */
static void count(float *at)
{
    Comm *c = &grid.all;
    float here = 1;
    int64_t bytes = c->bytes, ops = c->ops, each = comm_payload(c, COMM_ALL_REDUCE, 1, F32, 0);
    for (int i = 0; i < 3; i++) {
        c->wait(c, c->all_reduce(c, at, 1, F32, OP_MAX));
        c->wait(c, c->all_reduce(c, &here, 1, F32, OP_MAX));
    }
    CHECK(c->bytes - bytes == 6 * each && c->ops - ops == 6, "%ld operations of %ld bytes, not 6 of %ld",
          (long)(c->ops - ops), (long)(c->bytes - bytes), (long)each);
}

/* A grid of one rank, with a device and registered memory of its own. */
static struct { Grid grid; Device dev; void *p; } alone;

static void open_alone(void)
{
    GridSpec spec = {.size = {1, 1, 1, 1, 1}};
    BUG_ON(!grid_parse_order("tp-cp-ep-dp-pp", spec.order));
    grid_open(&alone.grid, &spec, 1, 0);
    cuda_open(&alone.dev, F32, grid.rank % cuda_count());
    grid_device(&alone.grid, &alone.dev);
    grid_nccl(&alone.grid, &alone.dev, 60);
    alone.p = alone.dev.take(&alone.dev, MOST);
    comm_nccl_register(&alone.dev, alone.p, MOST);
}

static void close_alone(void)
{
    grid_close(&alone.grid);
    alone.dev.give(&alone.dev, alone.p, MOST);
    cuda_close(&alone.dev);
}

int main(int argc, char **argv)
{
    static Case flying[FLYING];
    int rank, world = job_launched(&rank), rounds = argc > 2 ? atoi(argv[2]) : 40, tp = world % 2 ? 1 : 2;
    GridSpec spec = {
        .size = {[AXIS_TP] = tp, [AXIS_CP] = 1, [AXIS_EP] = 1, [AXIS_DP] = world / tp, [AXIS_PP] = 1}};
    int nccl = argc > 1 && !strcmp(argv[1], "nccl");
    BUG_ON(argc < 2 || world < 2);
    BUG_ON(!grid_parse_order("tp-cp-ep-dp-pp", spec.order));
    key = rng_key(11, "cuda_comm");
    grid_open(&grid, &spec, world, rank);
    cuda_open(&dev, F32, rank % cuda_count());
    grid_device(&grid, &dev);
    if (nccl)
        grid_nccl(&grid, &dev, 60);
    else
        grid_staged(&grid, &dev);
    for (int i = 0; i < FLYING; i++) {
        char **room[] = {&flying[i].in, &flying[i].out, &flying[i].seen, &flying[i].source};
        for (int r = 0; r < 4; r++)
            *room[r] = dev.take(&dev, MOST * 8);
        flying[i].want = xcalloc(MOST, 8);
        flying[i].mine = xcalloc(MOST, 8);
    }
    if (nccl)
        comm_nccl_register(&dev, flying[0].in, MOST * 8);
    if (nccl && rank == 0)
        open_alone();
    send_alone(&flying[0]);
    start_many((float *)flying[0].in, (float *)flying[0].out);
    count((float *)flying[0].in);
    for (int i = 0; i < rounds; i++) {
        if (nccl && rank == 0 && i == rounds / 2)
            close_alone();
        int n = 1 + (int)draw(FLYING);
        for (int k = 0; k < n; k++)
            begin(&flying[k]);
        for (int k = 0; k < n; k++)
            end(&flying[k], i);
    }
    int64_t failed = test_failures;
    grid.all.wait(&grid.all, grid.all.all_reduce(&grid.all, &failed, 1, I64, OP_SUM));
    grid_close(&grid);
    cuda_close(&dev);
    return rank ? failed > 0 : test_end() || failed > 0;
}

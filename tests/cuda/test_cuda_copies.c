/* test_cuda_copies -- snapshots, offload, prefetch and the side stream of a GPU
 *
 * Ops launched after a snapshot run during its copy; ops behind wait_snapshots do not change what
 * is copied. Offloads and prefetches do not wait for each other, except for the ticket that they
 * are given. */
#include "device.h"
#include "test.h"
#include <pthread.h>
#include <string.h>

/* A copy of N floats takes a GPU about 300 us; an op and the read of its result take a tenth of that. */
enum { N = 1 << 22, TRIES = 40 };

typedef struct { Device d; float *src, *other, *host, *mapped, *said; } Bench;

static void fill(Bench *b, float *p, int64_t n, float x)
{
    for (int64_t i = 0; i < n; i += N / 4) {
        int64_t k = n - i < N / 4 ? n - i : N / 4;
        static float room[N / 4];
        for (int64_t j = 0; j < k; j++)
            room[j] = x;
        b->d.put(&b->d, p + i, room, (size_t)k * sizeof *p);
    }
}

/* Enqueues an op that changes memory: p = 2 p. */
static void twice(Bench *b, float *p, int64_t n)
{
    Mat m = mat(p, 1, n, F32);
    b->d.add(&b->d, m, m, m);
}

static int64_t snapshot(Bench *b, const float *from)
{
    memset(b->host, 0, N * sizeof *b->host);
    return b->d.snapshot(&b->d, b->host, from, N * sizeof *b->host);
}

static int all_are(const Bench *b, float x)
{
    for (int64_t i = 0; i < N; i++)
        if (b->host[i] != x)
            return 0;
    return 1;
}

/* Value of b->other after the ops before, read in a way that does not wait for other copies to the host. */
static float answer(Bench *b)
{
    *b->said = NAN;
    b->d.read_wait(&b->d, b->d.read_async(&b->d, b->said, b->other, sizeof *b->said));
    return *b->said;
}

/* An op launched after a snapshot runs while the snapshot is copied. One of TRIES tries has to show it:
 * a device may also copy first. */
static void check_beside(Bench *b, const float *from)
{
    int beside = 0;
    for (int i = 0; i < TRIES && !beside; i++) {
        int64_t ticket = snapshot(b, from);
        twice(b, b->other, 1);
        answer(b);
        beside = ((volatile float *)b->host)[N - 1] == 0;
        b->d.read_wait(&b->d, ticket);
        CHECK(b->host[N - 1] != 0, "read_wait returned before the snapshot was copied");
    }
    CHECK(beside, "ops wait for the snapshot before them");
}

/* A snapshot starts after the ops before it and ends before the ops after wait_snapshots. It is complete
 * when read_wait returns. */
static void check_order(Bench *b, float *from)
{
    for (int i = 0; i < 6; i++) {
        fill(b, from, N, 1);
        twice(b, from, N);
        int64_t ticket = snapshot(b, from);
        twice(b, b->other, 1);
        b->d.wait_snapshots(&b->d);
        twice(b, from, N);
        if (i % 2)
            b->d.sync(&b->d);
        else
            b->d.read_wait(&b->d, ticket);
        CHECK(all_are(b, 2), "%g and %g instead of 2", (double)b->host[0], (double)b->host[N - 1]);
    }
}

typedef struct { Bench *b; int64_t ticket; int there; } Writer;
static void *write_out(void *arg)
{
    Writer *w = arg;
    w->b->d.read_wait(&w->b->d, w->ticket);
    w->there = all_are(w->b, 2);
    return NULL;
}

/* Any thread may wait for a snapshot: the thread that writes a checkpoint does, while another launches
 * ops. */
static void check_thread(Bench *b)
{
    for (int i = 0; i < 4; i++) {
        Writer w = {.b = b};
        pthread_t t;
        fill(b, b->src, N, 1);
        twice(b, b->src, N);
        w.ticket = snapshot(b, b->src);
        if (pthread_create(&t, NULL, write_out, &w))
            die(EXIT_RESOURCE, "thread", "no thread");
        twice(b, b->other, 1);
        pthread_join(t, NULL);
        b->d.wait_snapshots(&b->d);
        CHECK(w.there, "read_wait in another thread returned before the snapshot was copied");
    }
}

/* A prefetch of one number ends while an offload is still copying. */
static void check_ways(Bench *b)
{
    int beside = 0;
    for (int i = 0; i < TRIES && !beside; i++) {
        float x;
        b->d.sync(&b->d);
        memset(b->mapped, 0, N * sizeof *b->mapped);
        b->mapped[N] = 3;
        b->d.offload(&b->d, b->mapped, b->src, N * sizeof *b->mapped);
        b->d.stream_wait(&b->d, b->d.prefetch(&b->d, b->other, b->mapped + N, sizeof *b->other, 0));
        x = answer(b);
        beside = ((volatile float *)b->mapped)[N - 1] == 0;
        CHECK(x == 3, "%g instead of 3 has come back", (double)x);
    }
    CHECK(beside, "the prefetch waits for the offload before it");
}

/* An offload copies the results of the ops before it. The prefetched bytes are complete for the ops after
 * stream_wait. */
static void check_return(Bench *b)
{
    for (int i = 0; i < 6; i++) {
        float x[2];
        int64_t left;
        fill(b, b->src, N, 1);
        twice(b, b->src, N);
        left = b->d.offload(&b->d, b->mapped, b->src, N * sizeof *b->mapped);
        if (i % 2) {                   /* the same memory is changed after the offload */
            b->d.stream_wait(&b->d, left);
            twice(b, b->src, N);
            b->d.stream_wait(&b->d, b->d.prefetch(&b->d, b->src, b->mapped, N * sizeof *b->mapped, 0));
        } else
            b->d.stream_wait(&b->d, b->d.prefetch(&b->d, b->src, b->mapped, N * sizeof *b->mapped, left));
        twice(b, b->src, N);
        b->d.get(&b->d, &x[0], b->src, sizeof x[0]);
        b->d.get(&b->d, &x[1], b->src + N - 1, sizeof x[1]);
        CHECK(x[0] == 4 && x[1] == 4, "%g and %g instead of 4", (double)x[0], (double)x[1]);
        b->d.sync(&b->d);
        CHECK(b->mapped[0] == 2 && b->mapped[N - 1] == 2, "%g and %g outside instead of 2",
              (double)b->mapped[0], (double)b->mapped[N - 1]);
    }
}

/* Mapped memory is copied whole and alone, whatever the number of bytes and wherever they start: scales of
 * moments are one byte for 32 elements, and lie behind the moments. */
static void check_bytes(Bench *b)
{
    static const int sizes[] = {0, 1, 2, 3, 4, 50, 64, 1001, 6001};
    uint8_t *from = (uint8_t *)b->mapped, *to = (uint8_t *)b->host;
    b->d.sync(&b->d);
    for (int i = 0; i < 6200; i++)
        from[i] = (uint8_t)(i * 7 % 251 + 1);
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes) * 2 * 4 * 4; i++) {
        int n = sizes[i / 32], snap = i / 16 % 2, src = 16 + i / 4 % 4, dst = 16 + i % 4;
        memset(to, 0, (size_t)n + 64);
        b->d.read_wait(&b->d, snap ? b->d.snapshot(&b->d, to + dst, from + src, (size_t)n)
                                   : b->d.read_async(&b->d, to + dst, from + src, (size_t)n));
        CHECK(!memcmp(to + dst, from + src, (size_t)n) && !to[dst - 1] && !to[dst + n],
              "%s of %d bytes from %d to %d", snap ? "snapshot" : "read_async", n, src, dst);
    }
}

/* Ops between side_begin and side_end run in order, after the ops before side_begin. Ops after a
 * stream_wait on their ticket wait for them; ops after side_end alone do not. The side ops update mapped
 * memory, which takes the GPU long enough for the test to see the difference. */
static void check_side(Bench *b)
{
    int beside = 0;
    Verdict *v = b->d.take(&b->d, sizeof *v);
    b->d.put(&b->d, v, &(Verdict){.multiplier = 1, .go = 1}, sizeof *v);
    for (int i = 0; i < TRIES; i++) {
        float x;
        Updated all = {.n = N, .w = b->mapped, .g = b->src};
        Update u = {.list = &all, .count = 1, .out_type = F32, .verdict = v, .lr = 1};
        fill(b, b->src, N, 1);
        b->d.sync(&b->d);
        for (int64_t k = 0; k < N; k++)
            b->mapped[k] = 10;
        twice(b, b->src, N);
        b->d.side_begin(&b->d);
        b->d.sgd(&b->d, &u);           /* 10 - 2 */
        b->d.zero(&b->d, b->src, N * sizeof *b->src);
        int64_t ticket = b->d.side_end(&b->d);
        if (i % 2) {
            b->d.stream_wait(&b->d, ticket);
            b->d.get(&b->d, &x, b->src + N - 1, sizeof x);
            CHECK(x == 0 && b->mapped[0] == 8 && b->mapped[N - 1] == 8,
                  "%g, and outside %g and %g instead of 8", (double)x, (double)b->mapped[0],
                  (double)b->mapped[N - 1]);
            if (beside)
                break;
            continue;
        }
        twice(b, b->other, 1);
        b->d.get(&b->d, &x, b->other, sizeof x);
        beside |= ((volatile float *)b->mapped)[N - 1] == 10;
        b->d.stream_wait(&b->d, ticket);
    }
    CHECK(beside, "ops after side_end wait for the side stream");
    b->d.sync(&b->d);
    b->d.give(&b->d, v, sizeof *v);
}

int main(void)
{
    Bench b;
    size_t bytes = N * sizeof *b.src;
    cuda_open(&b.d, F32, 0);
    b.src = b.d.take(&b.d, bytes);
    b.other = b.d.take(&b.d, sizeof *b.other);
    b.host = b.d.host_take(&b.d, bytes);
    b.said = b.d.host_take(&b.d, sizeof *b.said);
    b.mapped = b.d.mapped_take(&b.d, bytes + sizeof *b.mapped);
    fill(&b, b.src, N, 1);
    fill(&b, b.mapped, N, 1);
    fill(&b, b.other, 1, 1);
    b.d.sync(&b.d);
    check_beside(&b, b.src);
    check_beside(&b, b.mapped);
    check_order(&b, b.src);
    check_order(&b, b.mapped);
    check_thread(&b);
    check_ways(&b);
    check_return(&b);
    check_bytes(&b);
    check_side(&b);
    b.d.mapped_give(&b.d, b.mapped, bytes + sizeof *b.mapped);
    b.d.host_give(&b.d, b.said, sizeof *b.said);
    b.d.host_give(&b.d, b.host, bytes);
    b.d.give(&b.d, b.other, sizeof *b.other);
    b.d.give(&b.d, b.src, bytes);
    cuda_close(&b.d);
    return test_end();
}

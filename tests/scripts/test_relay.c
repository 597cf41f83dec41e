/* test_relay -- passes frames between two network cards of its own, with faults: tests/scripts/network.sh
 *
 * test_relay NEAR FAR COMMANDS SEED: makes the cards NEAR and FAR and passes every frame of one to the
 * other. It reads lines from the pipe COMMANDS, and prints its counts after each:
 *     delay MS        every frame waits so long
 *     loss N          N of 1,000 frames are lost, drawn from SEED
 *     cut MASK        1: frames from NEAR are lost, 2: from FAR, 3: both, 0: none
 *     ports FROM TO   TCP to these ports is lost, but not ssh's answers; 0 0: none
 *     reset FROM TO   the next TCP connection of these ports that carries data is reset: that frame and each
 *                     later one with data become resets (one alone may come out of order and be ignored)
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST = 2048, FRAMES = 16384, ETHERNET = 14, SSH = 22 };

typedef struct {
    double due; /* s: when it is passed on */
    int to;     /* card */
    int n;      /* bytes */
    unsigned char bytes[LONGEST];
} Frame;

static Frame queue[FRAMES];
static unsigned first, past; /* queued frames: [first, past) modulo FRAMES */
static int card[2];
static int loss, cut, from_port, to_port;
static int from_reset, to_reset, ends[2]; /* ends: ports of the connection that is reset */
static double delay; /* s */
static uint64_t drawn;
static long passed, lost, stopped, dropped, reset, full; /* counts of frames */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* splitmix64 */
static uint64_t draw(void)
{
    uint64_t x = drawn += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static int open_card(const char *name)
{
    struct ifreq r = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r)) {
        perror(name);
        exit(77);
    }
    return fd;
}

static unsigned get16(const unsigned char *p)
{
    return (unsigned)p[0] << 8 | p[1];
}

static unsigned sum16(const unsigned char *p, int n, unsigned sum)
{
    for (int i = 0; i + 1 < n; i += 2)
        sum += get16(p + i);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static void put16(unsigned char *p, unsigned x)
{
    p[0] = (unsigned char)(x >> 8);
    p[1] = (unsigned char)x;
}

/* Shortens a TCP frame to its two headers, without options, and makes it a reset. */
static void become_reset(Frame *f, unsigned char *ip, unsigned char *tcp)
{
    unsigned head = (unsigned)(tcp - ip);
    put16(ip + 2, head + 20);
    put16(ip + 10, 0);
    put16(ip + 10, ~sum16(ip, (int)head, 0) & 0xffff);
    tcp[12] = 5 << 4; /* words of the header */
    tcp[13] = 0x14;   /* RST, ACK */
    put16(tcp + 16, 0);
    put16(tcp + 16, ~sum16(tcp, 20, sum16(ip + 12, 8, 6 + 20)) & 0xffff);
    f->n = ETHERNET + (int)head + 20;
}

static int named(int port)
{
    return to_reset && port >= from_reset && port <= to_reset;
}

/* Whether the connection of two ports is, or now becomes, the one that is reset. */
static int resets(int source, int to)
{
    if (!ends[0] && (named(source) || named(to)))
        ends[0] = source, ends[1] = to;
    return (source == ends[0] && to == ends[1]) || (source == ends[1] && to == ends[0]);
}

/* Whether a frame is passed on; it may have become a reset. */
static int admit(Frame *f, int from)
{
    unsigned char *ip = f->bytes + ETHERNET, *tcp = ip + (ip[0] & 15) * 4;
    if (cut >> from & 1)
        return stopped++, 0;
    if (loss && (int)(draw() % 1000) < loss)
        return lost++, 0;
    if (f->n < ETHERNET + 40 || get16(f->bytes + 12) != 0x0800 || ip[9] != 6 ||
        tcp + 20 > f->bytes + f->n)
        return 1;
    int to = (int)get16(tcp + 2), source = (int)get16(tcp);
    int data = (int)get16(ip + 2) - (ip[0] & 15) * 4 - (tcp[12] >> 4) * 4;
    if (source != SSH && to >= from_port && to <= to_port)
        return dropped++, 0;
    if (data > 0 && resets(source, to)) {
        reset++;
        become_reset(f, ip, tcp);
    }
    return 1;
}

static void receive(int from)
{
    for (;;) {
        Frame *f = &queue[past % FRAMES];
        ssize_t n = read(card[from], f->bytes, LONGEST);
        if (n <= 0)
            return;
        f->n = (int)n;
        f->to = !from;
        f->due = now() + delay;
        if (!admit(f, from))
            continue;
        if (past - first == FRAMES - 1)
            full++;
        else
            past++;
    }
}

static void send_due(void)
{
    for (; first != past && queue[first % FRAMES].due <= now(); first++) {
        const Frame *f = &queue[first % FRAMES];
        passed += write(card[f->to], f->bytes, (size_t)f->n) == f->n;
    }
}

static void obey(FILE *commands)
{
    char line[128], word[16];
    while (fgets(line, sizeof line, commands)) {
        int a = 0, b = 0;
        if (sscanf(line, "%15s %d %d", word, &a, &b) < 2) {
            fprintf(stderr, "not a command: %s", line);
            exit(2);
        }
        if (!strcmp(word, "delay"))
            delay = 1e-3 * a;
        else if (!strcmp(word, "loss"))
            loss = a;
        else if (!strcmp(word, "cut"))
            cut = a;
        else if (!strcmp(word, "ports"))
            from_port = a, to_port = b;
        else if (!strcmp(word, "reset"))
            from_reset = a, to_reset = b, ends[0] = 0;
        printf("passed %ld lost %ld cut %ld ports %ld reset %ld full %ld before %s", passed, lost, stopped,
               dropped, reset, full, line);
        fflush(stdout);
    }
    clearerr(commands);
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "test_relay NEAR FAR COMMANDS SEED\n");
        return 2;
    }
    card[0] = open_card(argv[1]);
    card[1] = open_card(argv[2]);
    drawn = strtoull(argv[4], NULL, 10);
    int pipe = open(argv[3], O_RDWR | O_NONBLOCK | O_CLOEXEC);
    FILE *commands = pipe < 0 ? NULL : fdopen(pipe, "r");
    if (!commands) {
        perror(argv[3]);
        return 2;
    }
    struct pollfd ready[] = {{card[0], POLLIN, 0}, {card[1], POLLIN, 0}, {pipe, POLLIN, 0}};
    for (;;) {
        double wait = first == past ? 1 : queue[first % FRAMES].due - now();
        struct timespec t = {wait > 0 ? (time_t)wait : 0, wait > 0 ? (long)(1e9 * (wait - (long)wait)) : 0};
        ppoll(ready, 3, &t, NULL);
        receive(0);
        receive(1);
        obey(commands);
        send_due();
    }
}

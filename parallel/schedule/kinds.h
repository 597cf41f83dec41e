/* kinds -- the table of schedules, and the rules that a row alone decides. A property of a schedule is read
 * from its row; no code depends on the place of a row. */
#ifndef KINDS_H
#define KINDS_H
#include <stdint.h>

enum { MICROBATCHES_MOST = 65535 };    /* in a step: an instruction has 16 bits for its microbatch */
enum { RANKS_MOST = 4096, CHUNKS_MOST = 255 };     /* of a pipeline; of a rank */
enum { STAGES_MOST = 65536 };          /* of a pipeline */

/* X(id, name, chunks, most, place, backward, least, generator, closed form), in the order in which the option
 * pipeline_schedule lists them:
 *
 *   name         value of the option
 *   chunks, most a rank has `chunks` to `most` chunks
 *   place        LOOP: stage s lies on rank s mod p; VEE: chunk 1 in the reverse order of ranks;
 *                GIVEN: one of these, as PipeShape.vee says
 *   backward     JOINED: B; SPLIT: D and W; GIVEN: as the lists have it
 *   least        a step needs at least this many microbatches for each rank of the pipeline
 *   generator    generate_X (generators.h) writes the lists
 *   closed form  closed_X (closed_form.c) is the bubble of equal stages; none: no formula is known */
/* clang-format off */
#define SCHEDULES(X)                                                                                         \
    X(GPIPE,       "gpipe",       1, 1,   LOOP,  JOINED, 0, gpipe,       gpipe)                              \
        /* Huang et al. 2019, arXiv:1811.06965 */                                                            \
    X(1F1B,        "1f1b",        1, 1,   LOOP,  JOINED, 0, 1f1b,        1f1b)                               \
        /* Narayanan et al. 2021, arXiv:2104.04473, sec 2.2.1 */                                             \
    X(INTERLEAVED, "interleaved", 2, 255, LOOP,  JOINED, 0, interleaved, interleaved)                        \
        /* the same, sec 2.2.2, in Megatron-LM's order */                                                    \
    X(ZB_H1,       "zb-h1",       1, 1,   LOOP,  SPLIT,  0, zb_h1,       zb_h1)                              \
        /* Qi et al. 2023, arXiv:2401.10241, sec 2.1 */                                                      \
    X(ZB_H2,       "zb-h2",       1, 1,   LOOP,  SPLIT,  0, zb_h2,       none)                               \
        /* the same, sec 2.2 */                                                                              \
    X(ZB_V,        "zb-v",        2, 2,   VEE,   SPLIT,  0, zb_v,        zb_v)                               \
        /* Qi et al. 2024, arXiv:2405.15362 */                                                               \
    X(V_HALF,      "v-half",      2, 2,   VEE,   SPLIT,  0, v_half,      none)                               \
        /* the same, sec 3 */                                                                                \
    X(V_MIN,       "v-min",       2, 2,   VEE,   SPLIT,  0, v_min,       none)                               \
        /* the same, sec 3 */                                                                                \
    X(DUALPIPEV,   "dualpipev",   2, 2,   VEE,   SPLIT,  2, dualpipev,   none)                               \
        /* DeepSeek 2025: half of DualPipe in a V; the F and B of a pair run one after the other */          \
    X(ZB_AUTO,     "zb-auto",     1, 1,   LOOP,  SPLIT,  0, zb_auto,     none)                               \
        /* by search from the costs (search.c): Qi et al. 2023, sec 3 */                                     \
    X(CUSTOM,      "custom",      1, 255, GIVEN, GIVEN,  0, custom,      none)                               \
        /* lists from outside (custom.h) */

/* These, and the forward-only schedule of evaluation and generation, which the option does not offer. */
#define ALL_SCHEDULES(X)                                                                                     \
    SCHEDULES(X)                                                                                             \
    X(FORWARD,     "forward",     1, 255, GIVEN, JOINED, 0, forward,     none)
/* clang-format on */

typedef enum {
#define X(id, ...) SCHEDULE_##id,
    ALL_SCHEDULES(X)
#undef X
    SCHEDULE_KINDS,
    SCHEDULE_CHOICES = SCHEDULE_FORWARD
} ScheduleKind;

typedef struct {
    const char *name;
    int chunks, most;
    enum { PLACE_LOOP, PLACE_VEE, PLACE_GIVEN } place;
    enum { BACKWARD_JOINED, BACKWARD_SPLIT, BACKWARD_GIVEN } backward;
    int least;
} ScheduleInfo;
extern const ScheduleInfo schedule_info[SCHEDULE_KINDS];

/* The option's value: "1f1b". */
const char *schedule_name(ScheduleKind kind);
/* The schedule of that name; SCHEDULE_CHOICES: there is none. */
ScheduleKind schedule_find(const char *name);
/* The chunks of a rank where the row fixes them; else 0. */
int schedule_chunks(ScheduleKind kind);

/* The rules that a pipeline breaks, as bits below; 0: it is legal.
 *   p, v, m  in    ranks, chunks a rank, microbatches
 *   group    in    interleaved: microbatches in a row for one chunk; other schedules ignore it */
enum {
    BREAKS_CHUNKS = 1,     /* v is not what the row says */
    BREAKS_GROUP = 2,      /* a group has fewer than p microbatches, or more than m */
    BREAKS_REST = 4,       /* the last group has fewer than p */
    BREAKS_LEAST = 8       /* m is less than `least` for each rank */
};
unsigned schedule_breaks(ScheduleKind kind, int64_t p, int64_t v, int64_t m, int64_t group);
/* Whether m microbatches in groups of `group` leave a last group with fewer than p. */
int schedule_leaves(int64_t p, int64_t m, int64_t group);
/* The row's `least` as a word, for messages: "two". */
const char *schedule_least(const ScheduleInfo *row);
#endif

/* train -- the executable: main, and the training loop from top to bottom */
#define _GNU_SOURCE
#include "commands.h"
#include "config_table.h"
#include "hang.h"
#include "hints.h"
#include "job.h"
#include "memory_copies.h"
#include "save_time.h"
#include "source.h"
#include "start.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- signals: a handler notes them, the loop acts on them between steps ---- */

static volatile sig_atomic_t save_asked, stop_asked;
static volatile double stop_asked_at;  /* now() when stop_asked was set */

static void on_signal(int sig)
{
    sig =
        sig == SIGUSR2 ? SIGTERM : sig; /* as scripts/launch passes it on: mpirun keeps SIGTERM for itself */
    if (save_asked || stop_asked)      /* the second signal ends the process at once */
        _exit(sig == SIGUSR1 ? EXIT_REQUEUE : 128 + sig);
    if (sig == SIGUSR1)
        save_asked = 1;
    else
        stop_asked_at = now(), stop_asked = sig;
}

static void listen_to_signals(void)
{
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGUSR2, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    signal(SIGPIPE, SIG_IGN);          /* a closed pipe must not end a training run */
}

/* ---- the training loop ---- */

typedef struct {
    const Config *cfg;
    RunDirectory dir;
    Run run;
    Log *log;
    Loader *valid;
    int64_t total;                     /* iterations of the whole run */
    double started;                    /* seconds: time of the job's first start */
    int save_asked, stop_asked, late;  /* on any rank: SIGUSR1; signal to stop, 0: none; out of time */
    double saved_after, grace;         /* seconds from stop_asked to a save's end if begun now; to the kill */
    SaveTimes times;                   /* of this start */
    const char *why;                   /* how the run ended, for people */
    int64_t saved;                     /* iteration of the newest checkpoint in the log; -1: none */
    int owes_copy;                     /* bool: a copy in memory was due while a save was under way */
    int argc, nkeys;
    char **argv, **keys;               /* [argc] arguments of the command; [nkeys] those that are key=value */
} Training;

static int speaks(const Training *t) { return t->run.grid.rank == 0; }

/* Iteration of the newest checkpoint on the disk that is not later than the run is; -1: there is none. */
static int64_t newest_on_disk(Training *t)
{
    Comm *all = &t->run.grid.all;
    int64_t newest = checkpoint_newest(t->dir.path, t->run.progress.iteration);
    all->wait(all, all->broadcast(all, &newest, 1, I64, 0));
    return newest;
}

/* Dies when this run's own folder gave the weights of a dense model for one with experts: that would begin
 * another run in the folder. */
static void refuse_upcycling_here(Training *t, const char *found)
{
    Comm *all = &t->run.grid.all;
    const char *name = strrchr(found, '/');
    int64_t iteration;
    int trained = source_iteration(name ? name + 1 : found, &iteration) && iteration > 0;
    all_ok(all, !t->cfg->moe_use_upcycling || !trained || t->run.progress.iteration, EXIT_CONFIG,
           "run-directory", "%s holds a run of the dense model, and its model with experts would be another "
           "one; change: load=%s with save=DIR, another folder", t->dir.path, t->dir.path);
}

/* Loads weights and state from `load`, if it is set; the initial values are there already. */
static void start_from(Training *t)
{
    t->saved = -1;
    if (!t->dir.from)
        return;
    t->run.checkpoint.from_memory = (int)t->dir.memory;
    char *found = run_load(&t->run, t->dir.from);
    if (t->dir.goes_on) {
        refuse_upcycling_here(t, found);
        int memory = memory_holds(found);
        t->saved = memory ? newest_on_disk(t) : t->run.progress.iteration;
        saver_loaded(t->run.checkpoint.saver, t->saved, !memory);
    }
    if (speaks(t))
        printf("loaded %s: %s iteration %ld\n", found,
               t->run.progress.iteration ? "resuming after" : "weights only, starting at",
               t->run.progress.iteration);
    free(found);
}

/* Opens the validation corpus if the run evaluates. A split's own corpus that the run does not read is
 * opened and closed: an error in it shows now and not after the run. */
static void open_valid(Training *t)
{
    const Config *c = t->cfg;
    int evaluates = c->eval_interval != CFG_ABSENT && c->eval_iters;
    if (evaluates)
        t->valid = start_loader(c, &t->run, SPLIT_VALID, c->eval_iters * config_batch_most(c));
    else if (c->valid_data_path.n)
        loader_close(start_loader(c, &t->run, SPLIT_VALID, 1));
    if (c->test_data_path.n)
        loader_close(start_loader(c, &t->run, SPLIT_TEST, 1));
}

static void open_corpora(Training *t)
{
    const Config *c = t->cfg;
    int64_t left = t->total > t->run.progress.iteration ? t->total - t->run.progress.iteration : 0;
    t->run.loader = start_loader(c, &t->run, SPLIT_TRAIN,
                                 config_samples_wanted(c, t->run.progress.consumed_samples, left));
    int64_t trained = t->run.checkpoint.corpus;
    if (trained && trained != loader_fingerprint(t->run.loader) && speaks(t))
        warn("the training corpus holds other bytes than it did for the %ld iterations so far; change: "
             "nothing if it is meant so, else put the corpus back and load again",
             t->run.progress.iteration);
    int64_t passes = t->run.checkpoint.passes;
    if (passes && passes != loader_passes(t->run.loader) && speaks(t))
        warn("samples come in another order than in the %ld iterations so far, because the run now needs "
             "%ld epochs of its corpus: some come twice before others come; change: nothing if it is meant "
             "so, else the length that the run had", t->run.progress.iteration,
             loader_epochs(t->run.loader));
    open_valid(t);
}

/* Returns "BF16 on cpu (amx, 8 threads a rank)" or "BF16 on cuda (NVIDIA H200)". */
static char *arithmetic(const Run *r)
{
    const char *type = dtype_name(r->params.type);
    return r->cfg->device == DEVICE_CUDA ? xasprintf("%s on %s (%s)", type, r->dev.name, r->dev.isa)
                                         : xasprintf("%s on %s (%s, %d threads a rank)", type, r->dev.name,
                                                     r->dev.isa, pool_threads(r->dev.pool));
}

/* Returns "513220 tokens, 1 epoch". */
static const char *corpus_text(const Loader *l)
{
    int64_t epochs = loader_epochs(l);
    return textf("%ld tokens, %ld epoch%s", loader_tokens(l), epochs, epochs == 1 ? "" : "s");
}

static void print_start(const Training *t)
{
    const Run *r = &t->run;
    const Memory *m = &r->plan.memory;
    char *how = arithmetic(r);
    printf("%s: %.2f M parameters, %ld layers, %s\n", config_build_id(), (double)params_count(t->cfg) / 1e6,
           t->cfg->num_layers, how);
    free(how);
    if (*r->gpu.attention)
        printf("attention: %s\n", r->gpu.attention);
    if (t->cfg->device == DEVICE_CUDA)
        printf("logits: %s\n", run_logits_text(t->cfg, r->plan.logits_rows));
    if (run_fp8_text(t->cfg, r->plan.fp8_recast))
        printf("fp8: %s\n", run_fp8_text(t->cfg, r->plan.fp8_recast));
    start_print(stdout, r);
    start_warn(t->cfg, t->total);
    Hint hint[HINTS];
    int hinted = hints(hint, &(HintAsk){.path = t->cfg->path, .nargs = t->nkeys, .args = t->keys,
                                        .c = t->cfg, .world = t->cfg->world,
                                        .microbatches = r->plan.lists[t->cfg->batch_steps - 1].m,
                                        .bubble = r->plan.sim.rate});
    for (int i = 0; i < hinted; i++)
        printf("hint: %s\n", hint[i].text);
    printf("memory of rank 0: parameters %.1f MB, gradients %.1f, optimizer %.1f, activations %.1f, buffers "
           "%.1f: %.1f MB in all, %.1f of the host\n", (double)m->parameters / 1e6,
           (double)m->gradients / 1e6, (double)m->optimizer / 1e6, (double)m->activations / 1e6,
           (double)m->buffers / 1e6, (double)m->total / 1e6, (double)m->host / 1e6);
    printf("corpus: %s for %ld iterations\n", corpus_text(r->loader), t->total);
    if (t->valid)
        printf("validation: %ld tokens\n", loader_tokens(t->valid));
    fflush(stdout);
}

/* The planned memory of the fullest rank: memory_bytes is the most that a rank holds. Collective. */
static Memory fullest(Run *r)
{
    Comm *all = &r->grid.all;
    Memory m = r->plan.memory;
    int64_t most = m.total, rank;
    all->wait(all, all->all_reduce(all, &most, 1, I64, OP_MAX));
    rank = m.total == most ? all->rank : all->size;
    all->wait(all, all->all_reduce(all, &rank, 1, I64, OP_MIN));
    all->wait(all, all->broadcast(all, &m, sizeof m / sizeof(int64_t), I64, (int)rank));
    return m;
}

/* Writes what print_start prints to the log, for the report. m: the planned memory. */
static void record_start(const Training *t, const Memory *m)
{
    log_memory(t->log, "parameters", m->parameters, -1);
    log_memory(t->log, "gradients", m->gradients, -1);
    log_memory(t->log, "optimizer", m->optimizer, -1);
    log_memory(t->log, "activations", m->activations, -1);
    log_memory(t->log, "buffers", m->buffers, -1);
    log_memory(t->log, "total", m->total, -1);
    log_memory(t->log, "host", m->host, -1);
    log_fact(t->log, "corpus", corpus_text(t->run.loader));
    char *how = arithmetic(&t->run);
    log_fact(t->log, "arithmetic", how);
    if (*t->run.gpu.attention)
        log_fact(t->log, "attention", t->run.gpu.attention);
    if (t->cfg->device == DEVICE_CUDA)
        log_fact(t->log, "logits", run_logits_text(t->cfg, t->run.plan.logits_rows));
    if (run_fp8_text(t->cfg, t->run.plan.fp8_recast))
        log_fact(t->log, "fp8", run_fp8_text(t->cfg, t->run.plan.fp8_recast));
    free(how);
}

static void tick(void *log, int64_t done) { log_status(log, "evaluating, batch %ld", done); }

/* Evaluates at the end of an iteration; returns the time it took in ms. */
static double evaluate(Training *t)
{
    double start = now(), traced = trace_begin(&t->run.trace);
    account_phase(&t->run);
    flight_phase(PHASE_EVAL);
    double loss = run_evaluate(&t->run, t->valid, t->cfg->eval_iters, tick, t->log).loss;
    log_status(t->log, NULL);
    trace_end(&t->run.trace, SPAN_EVAL, traced);
    account_phase_end(&t->run, LOSS_EVALUATION);
    flight_phase(PHASE_STEP);
    log_eval(t->log, t->run.progress.iteration, loss);
    return (now() - start) * 1e3;
}

/* What the signals and clocks of all ranks ask for: a launcher does not reach all of them in the same
 * step. */
static void agree_on_signals(Training *t)
{
    const Config *c = t->cfg;
    double gone = stop_asked ? now() - stop_asked_at : 0;
    int64_t ask[5] = {save_asked, stop_asked,
                      !isnan(c->exit_duration_in_mins) && now() - t->started > c->exit_duration_in_mins * 60,
                      (int64_t)ceil((gone + saver_predict(t->run.checkpoint.saver)) * 1e6),
                      -(int64_t)(save_time_grace(c) * 1e6)};
    Comm *all = &t->run.grid.all;
    all->wait(all, all->all_reduce(all, ask, 5, I64, OP_MAX));
    t->save_asked = (int)ask[0];
    t->stop_asked = (int)ask[1];
    t->late = (int)ask[2];
    t->saved_after = (double)ask[3] * 1e-6;
    t->grace = (double)-ask[4] * 1e-6;
}

/* Saves to the disk or to memory; returns the time it took in ms. */
static double save(Training *t, Saver *to)
{
    double start = now(), traced = trace_begin(&t->run.trace);
    char text[64];
    GroupTotals sent;
    own_groups(&t->run.grid, &sent);
    own_begin(&t->run.own);
    account_phase(&t->run);
    snprintf(text, sizeof text, "%s of iteration %ld", to == t->run.checkpoint.memory ? "copy" : "save",
             t->run.progress.iteration);
    comm_note(text);
    flight_phase(PHASE_SAVE);
    run_check(&t->run);                /* what is wrong is never saved */
    json_t *state = run_state(&t->run);
    data_settle(&t->run.params.data);
    saver_save(to, t->run.progress.iteration, state);
    json_decref(state);
    trace_end(&t->run.trace, SPAN_SAVE, traced);
    account_phase_end(&t->run, LOSS_SAVE);
    own_end(&t->run.own, OWN_SAVE);
    run_leave_out(&t->run, &sent);
    flight_phase(PHASE_OTHER);
    return (now() - start) * 1e3;
}

/* Logs a line for a checkpoint once it is whole on the disk. */
static void tell_saved(Training *t)
{
    int64_t i = saver_committed(t->run.checkpoint.saver);
    if (i > t->saved)
        log_note(t->log, "saved iteration %ld: %s/checkpoints/iter_%07ld", i, t->dir.path, i);
    t->saved = i;                      /* lower than before: the newest one was read back and is damaged */
}

/* A signal ends the run, which saves first if the kill comes no sooner than the save ends. */
static int stopped(Training *t, int saves, int *wants_save)
{
    const char *stands = t->saved < 0 ? "" : "; the last checkpoint stands";
    *wants_save = saves && save_time_fits(t->saved_after, t->grace);
    t->why = *wants_save ? "stopped by a signal with a checkpoint"
             : saves     ? textf("stopped by a signal without a save, which would have ended %.3g s after "
                                 "it (sigterm_grace: %g s)%s", t->saved_after, t->grace, stands)
                         : textf("stopped by a signal%s", stands);
    return *wants_save ? EXIT_REQUEUE : 128 + t->stop_asked;
}

/* Whether save_interval asks for a save of the iteration that the run is at. */
static int save_due(const Training *t)
{
    return t->cfg->save_interval != CFG_ABSENT && t->run.progress.iteration % t->cfg->save_interval == 0;
}

/* Whether a copy in memory is made after this iteration. None is made while a save to the disk is under way:
 * after a death the run would go on from the copy without that save, and a rewind would go back further. The
 * copy is made once the save has ended; a save that is due now waits for that itself.
 *   saves  in  bool: a save to the disk is due */
static int copy_due(Training *t, int saves)
{
    const RunCheckpoint *c = &t->run.checkpoint;
    int due = c->memory && (t->owes_copy || t->run.progress.iteration % t->cfg->memory_save_interval == 0);
    t->owes_copy = due && !saves && saver_under_way(c->saver);
    return due && !t->owes_copy;
}

/* Whether the start lacks a save on the disk: a rewind needs a state to go back to from the first step on,
 * and a death may have cut off the save of the iteration whose copy in memory was loaded. */
static int owes_save(const Training *t)
{
    int cut_off = t->dir.memory && t->saved < t->run.progress.iteration && save_due(t);
    return cut_off || (t->cfg->on_spike == ON_SPIKE_REWIND && t->saved < 0);
}

/* Decides whether the run ends after this iteration. Returns its exit code, or -1: the run goes on. Sets
 * t->why; *wants_save: a checkpoint is due. */
static int ending(Training *t, int *wants_save)
{
    const Config *c = t->cfg;
    int64_t i = t->run.progress.iteration;
    int saves = c->save_at_end, due = save_due(t);
    agree_on_signals(t);
    if (t->save_asked || t->stop_asked)
        saver_hurry(t->run.checkpoint.saver);
    *wants_save = saves || due || t->save_asked;
    if (i >= t->total)
        return t->why = "finished", EXIT_DONE;
    if (t->save_asked)
        return t->why = "stopped by SIGUSR1 with a checkpoint", EXIT_REQUEUE;
    if (c->exit_interval != CFG_ABSENT && i % c->exit_interval == 0)
        return t->why =
                   *wants_save ? "stopped at exit_interval with a checkpoint" : "stopped at exit_interval",
               *wants_save ? EXIT_REQUEUE : EXIT_DONE;
    if (t->late)
        return t->why = *wants_save ? "stopped at exit_duration_in_mins with a checkpoint"
                                    : "stopped at exit_duration_in_mins",
               *wants_save ? EXIT_REQUEUE : EXIT_DONE;
    if (t->stop_asked)
        return stopped(t, saves || due, wants_save);
    *wants_save = due;
    return -1;
}

/* What is told of a spike: a line for people, and a line of metrics.jsonl. */
typedef struct { Log *log; char *text; json_t *record; } SpikeTold;

static SpikeTold tell_spike(const Training *t)
{
    return (SpikeTold){t->log, spikes_text(&t->run.spikes, t->cfg), spikes_record(&t->run.spikes, t->cfg)};
}

static void say_spike(void *told)
{
    SpikeTold *s = told;
    log_note(s->log, "%s", s->text);
    log_event(s->log, s->record);
    json_decref(s->record);
    free(s->text);
}

/* Goes back to the newest checkpoint. Where that is damaged or gone, on_corrupt says whether the one before
 * it is taken; if not, the job ends.
 *   told  in/out  said before the job ends: the spike as it is known before the rewind */
static void rewind_run(Training *t, SpikeTold *told)
{
    flight_phase(PHASE_OTHER);
    saver_wait(t->run.checkpoint.saver);
    tell_saved(t);
    char *dir = xasprintf("%s/checkpoints/iter_%07ld", t->dir.path, t->saved);
    int previous = t->cfg->on_corrupt == ON_CORRUPT_PREVIOUS;
    if (previous && newest_on_disk(t) < t->saved && speaks(t))
        warn("%s is gone; taking the checkpoint before it", dir);
    run_rewind(&t->run, &(LoadFrom){.path = previous ? t->dir.path : dir, .lost = say_spike, .ctx = told});
    free(dir);
    flight_phase(PHASE_STEP);
}

/* Records the spike that the step collected last was, if it was one, and goes back where that is asked. Ends
 * the run where steps are spikes on and on. */
static void act_on_spike(Training *t)
{
    if (!t->run.spikes.now.iteration)
        return;
    SpikeTold told = tell_spike(t);
    int stay = spikes_stay(&t->run.spikes, t->cfg);
    if (t->cfg->on_spike == ON_SPIKE_REWIND && !stay) {
        rewind_run(t, &told);
        json_decref(told.record);
        free(told.text);
        told = tell_spike(t);
    }
    say_spike(&told);
    if (stay) {                        /* the first rank that ends ends all: rank 0 has said it before */
        Comm *all = &t->run.grid.all;
        all->barrier(all);
        spikes_end(&t->run.spikes, t->cfg);
    }
}

/* Collects and logs the metrics of finished steps, oldest first, until at most `open` steps are
 * uncollected. */
static void settle(Training *t, int open)
{
    while (run_open_steps(&t->run) > open) {
        Metrics m;
        run_collect(&t->run, &m);
        run_reduce(&t->run, &m);
        log_routers(t->log, run_routers(&t->run));
        log_groups(t->log, t->run.own.group, t->run.own.groups);
        log_stragglers(t->log, t->run.straggler.judge.slow, t->run.straggler.judge.n);
        log_step(t->log, &m);
        t->times.steps++;
        t->times.stepping += m.elapsed_ms * 1e-3;
        act_on_spike(t);
    }
}

/* Writes trace.json when the iteration was recorded: a run that dies later keeps its timeline. */
static void keep_timeline(Training *t)
{
    char said[TRACE_SAID], why[WHY];
    Run *r = &t->run;
    if (!trace_due(&r->trace, r->progress.iteration))
        return;
    GroupTotals sent;
    flight_phase(PHASE_OTHER);
    own_groups(&r->grid, &sent);
    if (!trace_write(&r->trace, t->dir.path, &r->grid, &r->plan.shape, said, why))
        warn("no timeline: %s", why);
    run_leave_out(r, &sent);
}

static int train_loop(Training *t)
{
    const Config *c = t->cfg;
    Saver *memory = t->run.checkpoint.memory;
    int code = -1, wants_save = 0;
    double eval_ms = 0, checkpoint_ms = 0;     /* time spent before a step; logged with that step */
    own_groups(&t->run.grid, &t->run.own.before);      /* what the start sent belongs to no step */
    while (code < 0) {
        ReferenceTime speed, calm;
        run_reference(&t->run, &t->run.dev, &speed, &calm);
        run_step(&t->run, &(Metrics){.eval_ms = eval_ms, .checkpoint_ms = checkpoint_ms,
                                     .reference_product_ms = speed.product_ms,
                                     .reference_copy_ms = speed.copy_ms});
        int64_t launched = t->run.progress.iteration;
        int last = launched >= t->total && launched > c->eval_interval;
        int evaluates = t->valid && (launched % c->eval_interval == 0 || last);
        /* an asynchronous device: this step stays open */
        settle(t, t->run.dev.late && !evaluates && !c->log_reference);
        if (t->run.progress.iteration < launched)      /* a rewind has dropped this step: it comes again */
            continue;
        double polled = saver_poll(t->run.checkpoint.saver), copied = memory ? saver_poll(memory) * 1e3 : 0;
        tell_saved(t);
        eval_ms = evaluates ? evaluate(t) : 0;
        code = ending(t, &wants_save);
        int copies = code < 0 && copy_due(t, wants_save);
        if (wants_save || copies || code >= 0)     /* the log has every step that a checkpoint contains */
            settle(t, 0);
        if (code >= 0)
            log_last(t->log);
        copied += copies ? save(t, memory) : 0;    /* first: it goes on beside the other */
        checkpoint_ms = polled * 1e3 + (wants_save ? save(t, t->run.checkpoint.saver) : 0);
        t->times.saves += wants_save;
        t->times.lost += checkpoint_ms * 1e-3;
        checkpoint_ms += copied;
        tell_saved(t);
        account_end(&t->run);
        keep_timeline(t);
    }
    flight_phase(PHASE_OTHER);
    int64_t newest = saver_wait(t->run.checkpoint.saver);
    tell_saved(t);
    const char *lost =
        newest < t->run.progress.iteration && wants_save ? saver_lost(t->run.checkpoint.saver) : NULL;
    all_ok(&t->run.grid.all, !lost, EXIT_RESOURCE, "save", "the run ended (%s) at iteration %ld, but its "
           "last checkpoint could not be written: %s; change: free space, or allow larger files, where "
           "`save` points; load=latest goes on from the checkpoint before, if there is one", t->why,
           t->run.progress.iteration, lost);
    return code;
}

/* ---- messages at the end ---- */

static int is_given(const Training *t, const char *key)
{
    size_t n = strlen(key);
    for (int i = 0; i < t->argc; i++)
        if (!strncmp(t->argv[i], key, n) && t->argv[i][n] == '=')
            return 1;
    return 0;
}

/* Prints the command that continues this run, for twice as long if it is finished. It also resets
 * `overwrite` and `finetune` if the configuration file sets them.
 *   load  in  where it goes on from */
static void say_command(const Training *t, const char *load)
{
    const Config *c = t->cfg;
    const RunProgress *p = &t->run.progress;
    int finished = p->iteration >= t->total, samples = c->train_iters == CFG_ABSENT;
    int64_t length = samples ? c->train_samples : c->train_iters;
    int64_t done = samples ? p->consumed_samples : p->iteration;
    const char *kind = samples ? "train_samples" : "train_iters";
    const char *const without[] = {"load", "overwrite", "finetune", finished ? kind : NULL, NULL};
    char *longer = finished ? xasprintf(" %s=%ld", kind, 2 * (length > done ? length : done)) : xstrdup("");
    char *name = config_string(load), *from = xasprintf("load=%s", name), *word = args_text(1, &from);
    char *with = xasprintf("%s%s%s%s", word,
                           c->overwrite && !is_given(t, "overwrite") ? " overwrite=false" : "",
                           c->finetune && !is_given(t, "finetune") ? " finetune=false" : "", longer);
    char *line = start_command(c, t->argc, t->argv, without, with);
    printf("go on   %s\n", line);
    free(line);
    free(with);
    free(word);
    free(from);
    free(name);
    free(longer);
}

/* Rank 0: the interval of saves that would have lost least, from the failures of the run so far. */
static const char *advice(Training *t)
{
    SaveTimes *s = &t->times;
    s->longest = saver_predict(t->run.checkpoint.saver);
    s->wall = log_wall(t->log);
    s->failures = save_time_failures(t->dir.path);
    const char *text = save_time_advice(s);
    if (text)
        log_fact(t->log, "save_interval", text);
    return text;
}

/* Prints where the run stands, what is saved, where the report is, and the command that continues it.
 *   report    in  bool: there is one
 *   interval  in  the advice on save_interval; NULL: none */
static void say_end(const Training *t, int report, const char *interval)
{
    int64_t i = t->run.progress.iteration;
    printf("%s: iteration %ld of %ld is done\n", t->why, i, t->total);
    if (t->saved < 0)
        printf("saved   nothing%s\n",
               t->cfg->save_at_end ? "" : ": save_at_end is false, and there is no save of save_interval");
    else
        printf("saved   %s/checkpoints/iter_%07ld%s\n", t->dir.path, t->saved,
               t->saved < i ? "; what came after it is not saved" : "");
    if (report)
        printf("report  %s/report.html\n", t->dir.path);
    if (interval)
        printf("save_interval: %s\n", interval);
    if (t->saved >= 0)
        say_command(t, "latest");
    fflush(stdout);
}

/* Ends a run that was finished when it was started again. No file of it changes, but it gets the report that
 * its job did not come to write. */
static int finished_before(Training *t)
{
    char why[WHY];
    if (speaks(t)) {
        printf("the run in %s is finished: iteration %ld of %ld is done; to go on, raise train_%s\n",
               t->dir.goes_on ? t->dir.path : t->cfg->load, t->run.progress.iteration, t->total,
               t->cfg->train_iters == CFG_ABSENT ? "samples" : "iters");
        if (t->dir.goes_on && report_lacks(t->dir.path)) {
            if (report_write(t->dir.path, why))
                printf("report  %s/report.html\n", t->dir.path);
            else
                warn("there is no new report: %s", why);
        }
        say_command(t, t->dir.goes_on ? "latest" : t->cfg->load);
        fflush(stdout);
    }
    run_close(&t->run);
    run_directory_close(&t->dir);
    return EXIT_DONE;
}

/* Rank 0: writes config.yaml to the run directory, prints the start, and opens the log. m: as record_start */
static void start_log(Training *t, const Memory *m)
{
    static const char *const none[] = {NULL};
    char *command = start_command(t->cfg, t->argc, t->argv, none, ""), why[WHY];
    Config kept = *t->cfg;
    kept.overwrite = 0;                /* it applies to this start alone */
    if (!config_save(t->dir.path, &kept, config_write, why))
        die(EXIT_RESOURCE, "run-directory", "%s; change: free space, or set save to another folder", why);
    print_start(t);
    job_tell(textf("run %s", t->dir.path));
    t->log = log_open(t->cfg, &(LogStart){.run_dir = t->dir.path,
                                          .resume_iteration = t->run.progress.iteration,
                                          .total_iterations = t->total, .devices = t->run.grid.world,
                                          .flops_per_token = run_flops_per_token(t->cfg),
                                          .parameters = params_count(t->cfg), .build = config_build_id(),
                                          .command = command, .id = t->dir.id,
                                          .skipped = t->run.progress.skipped + t->run.spikes.skipped,
                                          .nans = t->run.progress.nans,
                                          .age = now() - t->started});
    record_start(t, m);
    free(command);
}

/* Seconds since the job's first start, where a launcher has started it again (scripts/launch_restarts). */
static double age_of_job(void)
{
    const char *age = getenv("GRIDIRON_AGE");
    return age ? strtod(age, NULL) : 0;
}

/* Trains: the command `run`. Exported, so that the backtrace of a crash names it. */
int training_run(int argc, char **argv)
{
    static Training t;                 /* it lives as long as the process */
    char why[WHY], said[TRACE_SAID];
    t.started = now() - age_of_job();
    t.argc = argc;
    t.argv = argv;
    Args a = cli_open("run", argc, argv);
    const char *path = cli_next(&a, "CONFIG");
    cli_end(&a);
    t.nkeys = a.n;
    t.keys = memcpy(xcalloc((size_t)a.n + 1, sizeof *t.keys), a.v, (size_t)a.n * sizeof *t.keys);
    listen_to_signals();
    t.cfg = start_config(path, &a, USE_TRAIN);
    hang_limits(t.cfg->hang_timeout, (double)t.cfg->distributed_timeout_minutes * 60, job_here());
    start_directory(&t.dir, t.cfg);
    const char *dir = t.dir.path;
    run_open(&t.run, t.cfg, RUN_TRAIN, 0, dir);
    t.run.checkpoint.id = t.dir.id;
    start_from(&t);
    t.total = run_iterations(&t.run);
    if (t.run.progress.iteration >= t.total)
        return finished_before(&t);
    open_corpora(&t);
    run_check(&t.run);
    run_directory_begin(&t.dir, t.run.progress.iteration, &t.run.grid.all);
    run_keep_tuned(&t.run, dir);
    flight_run(dir);
    saver_start(t.run.checkpoint.saver);
    if (t.run.checkpoint.memory) {
        memory_forget(t.run.progress.iteration, &t.run.grid.all);
        saver_start(t.run.checkpoint.memory);
    }
    Memory most = fullest(&t.run);
    if (speaks(&t))
        start_log(&t, &most);
    if (owes_save(&t))
        save(&t, t.run.checkpoint.saver);
    int code = train_loop(&t);
    if (t.valid)
        loader_close(t.valid);
    loader_close(t.run.loader);
    if (!trace_write(&t.run.trace, dir, &t.run.grid, &t.run.plan.shape, said, why))
        warn("no timeline: %s", why);
    if (*said) {
        log_note(t.log, "timeline: %s", said);
        log_fact(t.log, "timeline", said);
    }
    const char *interval = speaks(&t) ? advice(&t) : NULL;
    int report = log_close(t.log, t.why);
    if (speaks(&t))
        say_end(&t, report, interval);
    snprintf(said, sizeof said, "code %d", code);
    if (speaks(&t))
        job_tell(said);                /* from here on a signal does not change the exit code */
    flight_phase(PHASE_OTHER);         /* a rank that leaves first may end rank 0 within its report */
    t.run.grid.all.barrier(&t.run.grid.all);
    run_close(&t.run);
    run_directory_close(&t.dir);
    return code;
}

/* The memory of jansson: where there is none the job ends; jansson would leave out what it cannot hold. */
static void *json_memory(size_t bytes) { return xrealloc(NULL, bytes); }

int main(int argc, char **argv)
{
    job_begin();
    json_set_alloc_funcs(json_memory, free);
    signal(SIGXFSZ, SIG_IGN);          /* above the limit on file sizes (ulimit -f) a write fails */
    return commands_dispatch(argc, argv, training_run);
}

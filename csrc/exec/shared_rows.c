/* The shared memory begins with a counter for each rank: the number of messages that the rank has posted. Half of the rest holds
 * two message buffers for each rank; the other half is the common buffer. Messages are numbered from 0, and message n of a rank
 * lies in buffer n % 2 of that rank. A rank that has posted n messages has read all messages before number n - 1. So the buffer
 * of message n, which held message n - 2, is free once every rank has posted n messages. */
#include "exec/shared_rows.h"

#include "exec/thread_ctx.h"
#include "platform/shared_wait.h"

enum { COUNTER_BYTES = 128 }; /* two cache lines, because x86 prefetches pairs of lines */

/* posted: the lower 32 bits of the number of messages. */
struct counter {
  _Alignas(COUNTER_BYTES) struct ane_shared_word posted;
};

static struct counter *counter_of(const struct ane_program *p, int32_t rank) { return (struct counter *)p->team.shared + rank; }

int64_t shared_rows_floats(const struct ane_program *p) {
  size_t ranks = (size_t)p->team.ranks, counters = ranks * sizeof(struct counter);
  if (!p->team.shared || p->team.shared_bytes < counters) return 0;
  return (int64_t)((p->team.shared_bytes - counters) / 2 / (2 * ranks) / COUNTER_BYTES * COUNTER_BYTES / sizeof(float));
}

float *shared_rows_common(const struct ane_program *p, int64_t *floats) {
  size_t ranks = (size_t)p->team.ranks, counters = ranks * sizeof(struct counter);
  int64_t messages = 2 * (int64_t)ranks * shared_rows_floats(p); /* floats of all message buffers */
  *floats = 0;
  if (!messages) return NULL;
  *floats = (int64_t)((p->team.shared_bytes - counters) / sizeof(float)) - messages;
  return (float *)(void *)counter_of(p, p->team.ranks) + messages;
}

void shared_rows_begin(struct ane_program *p) {
  if (shared_rows_floats(p)) p->messages = atomic_load(&counter_of(p, p->team.rank)->posted.value);
}

static float *buffer_of(const struct ane_program *p, int32_t rank, uint64_t message) {
  float *buffers = (float *)(void *)(counter_of(p, p->team.ranks));
  return buffers + (2 * rank + (int64_t)(message % 2)) * shared_rows_floats(p);
}

/* Waits until a rank has posted `count` messages. Meanwhile the caller's thread prefetches the weights of the next step. After
 * SPIN it sleeps, so that a rank on the same CPU can run, even one of lower priority. Errors: those of team.wait. */
static ane_status await(const struct ane_program *p, int32_t rank, uint64_t count, struct ane_error *err) {
  static const double SPIN = 500e-6, CALL = 1e-3; /* seconds; CALL: between calls of team.wait */
  const struct ane_tensor_parallel *team = &p->team;
  struct ane_shared_word *posted = &counter_of(p, rank)->posted;
  double start = 0, called = 0;
  for (int i = 0;; i++) {
    uint32_t seen = atomic_load_explicit(&posted->value, memory_order_acquire);
    if ((int32_t)(seen - (uint32_t)count) >= 0) return ANE_OK;
    if (i < 64) { /* a short wait never reads the clock */
      if (!prefetch_more(&p->prefetch[0])) ane_pause(0);
      continue;
    }
    double now = ane_clock();
    if (start == 0) start = called = now;
    if (now - called > CALL) {
      ane_status st = team->wait(team->arg, rank, now - start, err);
      if (st) return st;
      called = ane_clock();
    }
    if (now - start < SPIN)
      ane_pause(now - start);
    else
      ane_shared_sleep(posted, seen, CALL);
  }
}

ane_status shared_rows_buffer(struct ane_program *p, float **out, struct ane_error *err) {
  for (int32_t rank = 0; rank < p->team.ranks; rank++) {
    ane_status st = rank == p->team.rank ? ANE_OK : await(p, rank, p->messages, err);
    if (st) return st;
  }
  *out = buffer_of(p, p->team.rank, p->messages);
  return ANE_OK;
}

void shared_rows_post(struct ane_program *p) { ane_shared_set(&counter_of(p, p->team.rank)->posted, (uint32_t)++p->messages); }

ane_status shared_rows_barrier(struct ane_program *p, struct ane_error *err) {
  ane_status st = ANE_OK;
  shared_rows_post(p);
  for (int32_t rank = 0; !st && rank < p->team.ranks; rank++)
    if (rank != p->team.rank) st = await(p, rank, p->messages, err);
  return st;
}

ane_status shared_rows_receive(struct ane_program *p, int32_t rank, const float **out, struct ane_error *err) {
  ane_status st = await(p, rank, p->messages, err);
  if (!st) *out = buffer_of(p, rank, p->messages - 1);
  return st;
}

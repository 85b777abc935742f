/*
** support.h: what the C tests of the core share.
**
** A world is one scheduler with a counting allocator, a host that counts what
** it is told, and a log.  A routine is a coroutine written in C: a body that
** switches on its step.  A fake is an event that the test fires by hand.
**
** world_teardown frees the scheduler and fails if one byte of its allocator
** is left: so every test also checks that.
*/

#ifndef VIGIL_TEST_SUPPORT_H
#define VIGIL_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "internal.h"

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define MS ((uint64_t)1000000)


/* An allocator that counts, and fails on request. */
typedef struct memory {
  size_t bytes;   /* given out now */
  size_t blocks;  /* in how many blocks */
  size_t calls;   /* requests so far, frees apart */
  size_t fail_at; /* the call that fails, counted from now; 0: none */
  int fail_all;   /* and all after it */
} memory_t;

void *memory_alloc(void *data, void *ptr, size_t old_size, size_t new_size);
void memory_fail_at(memory_t *memory, size_t call);


typedef struct world {
  vg_scheduler_t *s; /* NULL: the test has freed it */
  memory_t memory;
  int pins, unpins;
  int unhandled;       /* coroutines that failed with nobody waiting */
  int stuck;           /* coroutines that were told they are */
  int verdicts;        /* of deadlock */
  size_t last_verdict; /* how many coroutines the last one was about */
  size_t log_used;
  char log[2048];
} world_t;

/* For cmocka_unit_test_setup_teardown. */
int world_setup(void **state);
int world_teardown(void **state);
#define world_test(f) \
  cmocka_unit_test_setup_teardown(f, world_setup, world_teardown)

/* Frees the scheduler now; nothing of its memory may be left. */
void world_free(world_t *w);

/* Appends a word to the log; assert_log compares and empties it. */
void world_log(world_t *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define assert_log(w, text) world_assert_log(w, text, __FILE__, __LINE__)
void world_assert_log(world_t *w, const char *text, const char *file, int line);

/* Runs until every coroutine has ended. */
void world_run(world_t *w);


typedef enum fake_kind {
  FAKE_PASSIVE, /* no start: does not live in the reactor */
  FAKE_ACTIVE,  /* counts its starts and stops */
  FAKE_STORED   /* replays once `stored` is set */
} fake_kind_t;

typedef struct fake {
  vg_event_t event;
  world_t *world;
  const char *name;
  int starts, stops, disposed;
  int start_error;    /* what start returns */
  int start_fires;    /* start delivers: FIRE_NOTIFY, FIRE_CLOSE */
  int is_armed;       /* between start and stop */
  int handler_result; /* what the notify handler returns, if it has one */
  int handler_status; /* ... and what it makes of the status */
  int handler_calls;
  int stored, status;
  intptr_t value;
  int on_heap; /* dispose frees it */
  int revoked;
} fake_t;

enum { FIRE_NOT, FIRE_NOTIFY, FIRE_CLOSE };

void fake_init(world_t *w, fake_t *fake, const char *name, fake_kind_t kind,
               uint32_t flags);
/* From the scheduler's allocator; its last reference frees it. */
fake_t *fake_new(world_t *w, const char *name, fake_kind_t kind);
/* The same kind, with a notify handler. */
void fake_init_handled(world_t *w, fake_t *fake, const char *name);
int fake_fire(fake_t *fake, int status, intptr_t value);


/* A subscriber that counts, and may do something when it is told. */
typedef struct listener {
  vg_callback_t base;
  int calls, disposed;
  int status;
  intptr_t value;
  void (*act)(struct listener *self, vg_event_t *event);
  void *data;
} listener_t;

/* The caller holds no reference of its own. */
void listener_init(listener_t *listener);


typedef struct routine routine_t;
typedef int (*body_t)(routine_t *self);

struct routine {
  vg_coroutine_t co;
  world_t *world;
  const char *name;
  body_t body;
  void *data;
  int step;
  int runs, discarded, disposed;
  int on_heap; /* dispose frees it */
  int error;   /* what ended its last wait: see routine_outcome */
  intptr_t value;
  uint16_t ordinal;
  vg_block_t outer, inner;
  uint64_t due;
};

enum { AGAIN = 2 }; /* the body is called again at once */

void routine_init(world_t *w, routine_t *r, const char *name, body_t body,
                  void *data);
/* From the scheduler's allocator; its last reference frees it. */
routine_t *routine_new(world_t *w, const char *name, body_t body, void *data);
/* Init and spawn, in the root scope. */
void routine_spawn(world_t *w, routine_t *r, const char *name, body_t body,
                   void *data);

/* For bodies; `return` what they give. */
int routine_park(routine_t *self);
int routine_yield(routine_t *self);
int routine_await(routine_t *self, vg_event_t *event);
int routine_sleep(routine_t *self, uint64_t ns);
int routine_end(routine_t *self, vg_coroutine_state_t how);

/* The main chunk: it waits by running the scheduler.  `how` of a wait is its
** waker's error. */
void routine_main(world_t *w, routine_t *r);
int main_park(routine_t *main);
int main_await(routine_t *main, vg_event_t *event);

/* Bodies used in many places. */
int body_completes(routine_t *self); /* logs its name and ends */
int body_awaits(routine_t *self);    /* awaits the event in `data`, logs
                                        "name:error", ends */

/* A generator of pseudo-random numbers: the same in every run. */
uint32_t dice(uint32_t *state);

#endif

/*
** test_trigger.c: triggers fired from other threads (TR, R118).
*/

#include "events.h"
#include "support.h"

static vg_trigger_t *new_trigger(world_t *w) {
  vg_trigger_t *t;
  assert_int_equal(vg_trigger_new(w->s, &t), 0);
  return t;
}

static void release(vg_trigger_t *t) { vg_event_release(&t->base.event); }

static void turn(world_t *w) {
  int i;
  for (i = 0; i < 3; i++) vg__reactor_turn(w->s->reactor, 0);
}

/* Awaits the trigger in `data` until it has had `total` firings. */
typedef struct consumer {
  routine_t routine;
  vg_trigger_t *trigger;
  size_t total, taken, rounds;
} consumer_t;

static int body_consumes(routine_t *self) {
  consumer_t *c = (consumer_t *)self;

  if (self->step++ > 0) {
    assert_int_equal(self->error, 0);
    c->taken += vg_trigger_take(c->trigger);
    c->rounds++;
  }
  if (c->taken < c->total) return routine_await(self, &c->trigger->base.event);
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void consume(world_t *w, consumer_t *c, vg_trigger_t *t, size_t total) {
  memset(c, 0, sizeof *c);
  c->trigger = t;
  c->total = total;
  routine_spawn(w, &c->routine, "consumer", body_consumes, NULL);
}

typedef struct source {
  uv_thread_t thread;
  vg_trigger_t *trigger;
  unsigned count;
  unsigned delay_ms;
  int refused;
} source_t;

static void fire_all(void *data) {
  source_t *source = data;
  unsigned i;
  if (source->delay_ms > 0) uv_sleep(source->delay_ms);
  for (i = 0; i < source->count; i++)
    if (vg_trigger_fire(source->trigger) < 0) source->refused++;
}

static void start(source_t *source, vg_trigger_t *t, unsigned count,
                  unsigned delay_ms) {
  source->trigger = t;
  source->count = count;
  source->delay_ms = delay_ms;
  source->refused = 0;
  assert_int_equal(uv_thread_create(&source->thread, fire_all, source), 0);
}

static void test_another_thread_wakes_a_coroutine(void **state) {
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  consumer_t c;
  source_t source;

  consume(w, &c, t, 1); /* TR-01 */
  start(&source, t, 1, 30);
  world_run(w); /* and no verdict of deadlock meanwhile */
  assert_int_equal(c.taken, 1);
  assert_int_equal(w->verdicts, 0);
  uv_thread_join(&source.thread);
  release(t);
}

static void test_none_is_lost(void **state) {
  enum { THREADS = 4, FIRINGS = 50000 };
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  source_t sources[THREADS];
  consumer_t c;
  int i;

  consume(w, &c, t, THREADS * FIRINGS); /* R118 */
  for (i = 0; i < THREADS; i++) start(&sources[i], t, FIRINGS, 0);
  world_run(w);
  for (i = 0; i < THREADS; i++) uv_thread_join(&sources[i].thread);
  assert_int_equal(c.taken, THREADS * FIRINGS);
  assert_true(c.rounds <= c.taken);
  turn(w);
  assert_int_equal(vg_trigger_take(t), 0);
  release(t);
}

/* One firing for each wait, so that every wake-up counts. */
static void test_one_by_one(void **state) {
  enum { ROUNDS = 2000 };
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  source_t source;
  consumer_t c;
  int i;

  for (i = 0; i < ROUNDS; i++) {
    consume(w, &c, t, 1);
    start(&source, t, 1, 0);
    world_run(w);
    uv_thread_join(&source.thread);
    assert_int_equal(c.taken, 1);
  }
  release(t);
}

static void test_fired_before_the_wait(void **state) {
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  consumer_t c;

  vg_trigger_fire(t);
  vg_trigger_fire(t);
  consume(w, &c, t, 2); /* the loop has not heard of it */
  world_run(w);
  assert_int_equal(c.rounds, 1);
  vg_trigger_fire(t);
  turn(w); /* it has, and nobody waited */
  consume(w, &c, t, 1);
  world_run(w);
  assert_int_equal(c.taken, 1);
  release(t);
}

static int body_fires_while_it_subscribes(routine_t *self) {
  vg_trigger_t *t = self->data;
  if (self->step++ > 0) {
    assert_int_equal(vg_trigger_take(t), 1);
    return routine_end(self, VG_COROUTINE_COMPLETED);
  }
  vg_waker_new(&self->co);
  vg_resume_when(&self->co, &t->base.event, 0, NULL, NULL);
  vg_trigger_fire(t); /* registered, not suspended */
  vg__reactor_turn(self->world->s->reactor, 0);
  return routine_park(self);
}

static void test_fired_between_registering_and_parking(void **state) {
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  routine_t r;

  routine_spawn(w, &r, "r", body_fires_while_it_subscribes, t);
  world_run(w);
  assert_int_equal(r.error, 0);
  release(t);
}

static void test_a_subscriber_that_stays(void **state) {
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  listener_t listener;

  listener_init(&listener);
  vg_event_add_callback(&t->base.event, &listener.base);
  vg_event_start(&t->base.event);
  vg_trigger_fire(t);
  vg_trigger_fire(t);
  vg_trigger_fire(t);
  turn(w);
  assert_int_equal(listener.calls, 1);
  assert_int_equal(listener.value, 3);
  vg_trigger_fire(t);
  vg_trigger_fire(t);
  turn(w);
  assert_int_equal(listener.calls, 2);
  assert_int_equal(listener.value, 2);
  assert_int_equal(vg_trigger_take(t), 0); /* it has seen them */
  vg_event_del_callback(&t->base.event, &listener.base);
  vg_event_stop(&t->base.event);
  release(t);
}

/* A coroutine that is cancelled after it was woken has not taken anything. */
static void test_a_cancelled_waiter_takes_nothing(void **state) {
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  routine_t main, r;

  routine_main(w, &main);
  routine_spawn(w, &r, "r", body_awaits, &t->base.event);
  vg_waker_new(&main.co);
  vg__waker_timer(&main.co, uv_hrtime() + MS, 1);
  main_park(&main); /* r parks meanwhile */
  assert_int_equal(vg_coroutine_state(&r.co), VG_COROUTINE_SUSPENDED);
  vg_trigger_fire(t);
  while (vg_coroutine_state(&r.co) == VG_COROUTINE_SUSPENDED)
    vg__reactor_turn(w->s->reactor, 0);
  vg_coroutine_cancel(&r.co);
  world_run(w);
  assert_int_equal(vg_trigger_take(t), 1);
  release(t);
}

static void test_idle_ones_keep_nothing_alive(void **state) {
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  uv_loop_t *loop = w->s->reactor->loop;

  assert_false(uv_loop_alive(loop)); /* TR-02 */
  assert_int_equal(w->s->active, 0);
  vg_event_start(&t->base.event);
  assert_true(uv_loop_alive(loop));
  assert_int_equal(w->s->active, 1);
  vg_event_stop(&t->base.event);
  assert_false(uv_loop_alive(loop));
  release(t);
}

static void test_closing(void **state) {
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  listener_t listener;

  listener_init(&listener);
  vg_event_add_callback(&t->base.event, &listener.base);
  vg_event_start(&t->base.event);
  vg_trigger_fire(t);
  vg_trigger_close(t); /* before the loop heard of it */
  vg_trigger_close(t);
  assert_int_equal(listener.calls, 1);
  assert_int_equal(listener.status, VG_ECLOSED);
  assert_int_equal(vg_trigger_fire(t), VG_ECLOSED); /* TR-03 */
  turn(w);
  assert_int_equal(vg_trigger_fire(t), VG_ECLOSED);
  assert_int_equal(listener.calls, 1);
  assert_int_equal(w->s->active, 0);
  assert_int_equal(w->s->reactor->handle_count, 1);
  vg_event_del_callback(&t->base.event, &listener.base);
  release(t);
}

/* The owner's reference is all that a thread needs: closing shuts it out. */
static void test_closing_while_threads_fire(void **state) {
  enum { ROUNDS = 200, THREADS = 3 };
  world_t *w = *state;
  source_t sources[THREADS];
  int i, k;

  for (i = 0; i < ROUNDS; i++) {
    vg_trigger_t *t = new_trigger(w);
    for (k = 0; k < THREADS; k++) start(&sources[k], t, 2000, 0);
    if (i % 2 == 0) turn(w);
    vg_trigger_close(t);
    turn(w);
    assert_int_equal(vg_trigger_fire(t), VG_ECLOSED);
    for (k = 0; k < THREADS; k++) uv_thread_join(&sources[k].thread);
    release(t);
  }
}

static void close_it(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  vg_trigger_close((vg_trigger_t *)event);
}

static void drop_it(listener_t *self, vg_event_t *event) {
  self->act = NULL; /* it will be told that this closes it */
  vg_event_release(event);
}

static void test_closed_in_its_own_callback(void **state) {
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  listener_t listener;

  listener_init(&listener);
  listener.act = close_it;
  vg_event_add_callback(&t->base.event, &listener.base);
  vg_event_start(&t->base.event);
  vg_trigger_fire(t);
  turn(w);
  assert_int_equal(listener.calls, 1);
  assert_int_equal(listener.value, 1);
  assert_int_equal(w->s->active, 0);
  vg_event_del_callback(&t->base.event, &listener.base);
  release(t);
}

static void test_dropped_by_its_own_callback(void **state) {
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  listener_t listener;

  listener_init(&listener);
  listener.act = drop_it;
  vg_event_add_callback(&t->base.event, &listener.base);
  vg_event_start(&t->base.event);
  vg_trigger_fire(t);
  turn(w);
  assert_int_equal(listener.calls, 2);
  assert_int_equal(listener.status, VG_ECLOSED);
  assert_int_equal(w->s->active, 0);
  assert_int_equal(w->s->reactor->handle_count, 1);
}

/* A thread may keep its reference longer than there is a loop. */
static void test_the_scheduler_goes_first(void **state) {
  world_t *w = *state;
  vg_trigger_t *t = new_trigger(w);
  source_t source;

  start(&source, t, 200000, 0);
  world_free(w);
  assert_int_equal(vg_trigger_fire(t), VG_ECLOSED);
  uv_thread_join(&source.thread);
  release(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_another_thread_wakes_a_coroutine),
      world_test(test_none_is_lost),
      world_test(test_one_by_one),
      world_test(test_fired_before_the_wait),
      world_test(test_fired_between_registering_and_parking),
      world_test(test_a_subscriber_that_stays),
      world_test(test_a_cancelled_waiter_takes_nothing),
      world_test(test_idle_ones_keep_nothing_alive),
      world_test(test_closing),
      world_test(test_closing_while_threads_fire),
      world_test(test_closed_in_its_own_callback),
      world_test(test_dropped_by_its_own_callback),
      world_test(test_the_scheduler_goes_first),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

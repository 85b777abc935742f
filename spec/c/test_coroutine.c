/*
** test_coroutine.c: a coroutine's life, its cancellation, its switch handlers
** (SC, CO, CN, PR, MT-04 to MT-07).
*/

#include "support.h"

static void expect_state(routine_t *r, vg_coroutine_state_t state) {
  assert_int_equal(vg_coroutine_state(&r->co), state);
}

static int is_active(routine_t *r) {
  return (r->co.flags & VG_CO_CANCEL_ACTIVE) != 0;
}

/*
** {== Order
*/

static int body_spawner(routine_t *self) {
  routine_t *child = self->data;
  if (self->step++ == 0) {
    world_log(self->world, "start");
    routine_spawn(self->world, child, "child", body_completes, NULL);
    world_log(self->world, "end");
    return routine_end(self, VG_COROUTINE_COMPLETED);
  }
  return AGAIN;
}

static void test_spawn_never_runs_at_once(void **state) {
  world_t *w = *state;
  routine_t parent, child;

  routine_spawn(w, &parent, "parent", body_spawner, &child); /* SC-01 */
  expect_state(&parent, VG_COROUTINE_QUEUED);
  assert_int_equal(w->s->live, 1);
  world_run(w);
  assert_log(w, "start end child");
  expect_state(&parent, VG_COROUTINE_COMPLETED);
  assert_int_equal(child.co.id, parent.co.id + 1);
}

static int body_three_turns(routine_t *self) {
  world_log(self->world, "%s%d", self->name, self->step);
  if (self->step++ < 2) return routine_yield(self);
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void test_turns_are_in_order(void **state) {
  world_t *w = *state;
  routine_t a, b;

  routine_spawn(w, &a, "a", body_three_turns, NULL); /* SC-02, SC-04 */
  routine_spawn(w, &b, "b", body_three_turns, NULL);
  world_run(w);
  assert_log(w, "a0 b0 a1 b1 a2 b2");
}

static void test_two_priorities(void **state) {
  world_t *w = *state;
  routine_t a, b, high;

  routine_spawn(w, &a, "a", body_three_turns, NULL);
  routine_spawn(w, &b, "b", body_three_turns, NULL);
  routine_init(w, &high, "high", body_three_turns, NULL);
  assert_int_equal(vg_coroutine_spawn(&high.co, w->s->root, 1), 0);
  world_run(w); /* it stays in front of the others */
  assert_log(w, "high0 high1 high2 a0 b0 a1 b1 a2 b2");
}

static void test_high_priority_when_woken(void **state) {
  world_t *w = *state;
  routine_t a, b, high;
  fake_t fakes[3];
  size_t i;

  for (i = 0; i < 3; i++) fake_init(w, &fakes[i], "f", FAKE_PASSIVE, 0);
  routine_spawn(w, &a, "a", body_awaits, &fakes[0].event);
  routine_spawn(w, &b, "b", body_awaits, &fakes[1].event);
  routine_init(w, &high, "high", body_awaits, &fakes[2].event);
  vg_coroutine_spawn(&high.co, w->s->root, 1);
  vg__drain(w->s);
  for (i = 0; i < 3; i++) fake_fire(&fakes[i], 0, 0);
  world_run(w);
  assert_log(w, "high:ok a:ok b:ok");
}

/* The ring grows, and wraps, and keeps its order. */
static int body_numbered(routine_t *self) {
  uint32_t *next = self->data;
  assert_int_equal(self - (routine_t *)self->world->s->host.data, *next);
  (*next)++;
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void test_many(void **state) {
  enum { MANY = 3000 };
  world_t *w = *state;
  void *data = w->s->host.data;
  routine_t *routines = vg__alloc(w->s, MANY * sizeof *routines);
  uint32_t next = 0;
  int i, round;

  assert_non_null(routines);
  w->s->host.data = routines; /* so that a body finds its number */
  for (round = 0; round < 3; round++) {
    next = 0;
    w->s->ready.head = (size_t)round * 60 & w->s->ready.mask;
    for (i = 0; i < MANY; i++)
      routine_spawn(w, &routines[i], "r", body_numbered, &next);
    world_run(w);
    assert_int_equal(next, MANY);
  }
  w->s->host.data = data;
  vg__free(w->s, routines, MANY * sizeof *routines);
}

static void test_spawn_refused(void **state) {
  world_t *w = *state;
  routine_t a, many[100];
  vg_scope_t *scope;
  size_t i;

  assert_int_equal(vg_scope_new(w->s, w->s->root, &scope), 0);
  vg_scope_close(scope);
  routine_init(w, &a, "a", body_completes, NULL);
  assert_int_equal(vg_coroutine_spawn(&a.co, scope, 0), VG_ECLOSED);
  assert_int_equal(w->s->live, 0);
  vg_event_release(&scope->event);

  for (i = 0; i < 62; i++) /* and one for the main chunk: 64 is full */
    routine_spawn(w, &many[i], "m", body_completes, NULL);
  routine_spawn(w, &many[62], "m", body_completes, NULL);
  memory_fail_at(&w->memory, 1);
  assert_int_equal(vg_coroutine_spawn(&a.co, w->s->root, 0), UV_ENOMEM);
  assert_int_equal(w->s->live, 63);
  assert_int_equal(a.co.event.ref_count, 1);
  assert_int_equal(vg_coroutine_spawn(&a.co, w->s->root, 0), 0);
  world_run(w);
}

/* }================================================================= */


/*
** {== The end, and who is told
*/

static int body_fails(routine_t *self) {
  return routine_end(self, VG_COROUTINE_FAILED);
}

static int body_cancelled(routine_t *self) {
  return routine_end(self, VG_COROUTINE_CANCELLED);
}

static void test_unhandled(void **state) {
  world_t *w = *state;
  routine_t target, waiter;

  routine_spawn(w, &target, "t", body_fails, NULL); /* ruling 2 */
  world_run(w);
  assert_int_equal(w->unhandled, 1);
  assert_true(target.co.flags & VG_CO_UNHANDLED);

  routine_spawn(w, &waiter, "w", body_awaits, &target.co.event);
  routine_spawn(w, &target, "t", body_fails, NULL);
  world_run(w);
  assert_log(w, "w:EFAILED");
  assert_int_equal(w->unhandled, 1); /* somebody waited */
  assert_true(target.co.event.flags & VG_EVENT_ERROR_CAUGHT);

  routine_spawn(w, &target, "t", body_cancelled, NULL); /* CO-12 */
  world_run(w);
  assert_int_equal(w->unhandled, 1);
}

static void test_awaiting(void **state) {
  world_t *w = *state;
  routine_t target, a, b, late;

  routine_init(w, &target, "t", body_three_turns, NULL); /* AW-09 */
  routine_spawn(w, &a, "a", body_awaits, &target.co.event);
  routine_spawn(w, &b, "b", body_awaits, &target.co.event);
  assert_int_equal(vg_coroutine_spawn(&target.co, w->s->root, 0), 0);
  world_run(w);
  assert_log(w, "t0 t1 t2 a:ok b:ok");
  assert_true(target.co.event.flags & VG_EVENT_CLOSED);
  routine_spawn(w, &late, "late", body_awaits, &target.co.event);
  world_run(w);
  assert_int_equal(late.runs, 1); /* no switch for what is there */
  assert_log(w, "late:ok");
}

static void release_event(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  vg_event_release(event);
}

/* Its last outside reference goes while it tells that it has ended, before
** that, or long before. */
static void test_last_reference(void **state) {
  world_t *w = *state;
  size_t bytes = w->memory.bytes;
  listener_t listener;
  routine_t *r;

  listener_init(&listener);
  listener.act = release_event;
  r = routine_new(w, "r", body_completes, NULL);
  vg_event_add_callback(&r->co.event, &listener.base);
  vg_coroutine_spawn(&r->co, w->s->root, 0);
  world_run(w);
  assert_int_equal(listener.calls, 1);
  assert_int_equal(w->memory.bytes, bytes);

  r = routine_new(w, "r", body_three_turns, NULL);
  vg_coroutine_spawn(&r->co, w->s->root, 0);
  vg_event_release(&r->co.event); /* the scheduler's keeps it alive */
  world_run(w);
  assert_int_equal(w->memory.bytes, bytes);

  r = routine_new(w, "r", body_fails, NULL);
  vg_coroutine_spawn(&r->co, w->s->root, 0);
  vg_event_release(&r->co.event);
  world_run(w);
  assert_int_equal(w->unhandled, 1);
  assert_int_equal(w->memory.bytes, bytes);

  r = routine_new(w, "r", body_completes, NULL);
  vg_coroutine_spawn(&r->co, w->s->root, 0);
  vg_event_release(&r->co.event);
  world_free(w); /* never run */
}

/* }================================================================= */


/*
** {== Cancellation
*/

static void test_cancel_before_start(void **state) {
  world_t *w = *state;
  routine_t target, waiter;

  routine_spawn(w, &target, "t", body_completes, NULL); /* CN-01 */
  routine_spawn(w, &waiter, "w", body_awaits, &target.co.event);
  assert_int_equal(vg_coroutine_cancel(&target.co), 1);
  assert_int_equal(vg_coroutine_cancel(&target.co), 0);
  expect_state(&target, VG_COROUTINE_QUEUED);
  world_run(w);
  assert_int_equal(target.runs, 0);
  assert_int_equal(target.discarded, 1);
  expect_state(&target, VG_COROUTINE_CANCELLED);
  assert_log(w, "w:EFAILED");
  assert_int_equal(w->unhandled, 0);
}

static void test_cancel_while_waiting(void **state) {
  world_t *w = *state;
  routine_t a, b;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_ACTIVE, 0); /* CN-03 */
  routine_spawn(w, &a, "a", body_awaits, &fake.event);
  routine_spawn(w, &b, "b", body_awaits, &fake.event);
  vg__drain(w->s);
  expect_state(&a, VG_COROUTINE_SUSPENDED);
  assert_int_equal(vg_coroutine_cancel(&a.co), 1);
  expect_state(&a, VG_COROUTINE_QUEUED);
  assert_int_equal(fake.event.callbacks.length, 1);
  assert_int_equal(fake.event.loop_ref_count, 1);
  assert_int_equal(vg_coroutine_cancel(&a.co), 0);
  fake_fire(&fake, 0, 0);
  world_run(w);
  assert_log(w, "a:ECANCELED b:ok"); /* for others it may still complete */
  expect_state(&a, VG_COROUTINE_CANCELLED);
}

static void test_cancel_while_queued(void **state) {
  world_t *w = *state;
  routine_t a;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_ACTIVE, 0);
  routine_spawn(w, &a, "a", body_awaits, &fake.event);
  vg__drain(w->s);
  fake_fire(&fake, 0, 9);
  assert_int_equal(vg_coroutine_cancel(&a.co), 1);
  assert_int_equal(w->s->ready.count, 1); /* queued once */
  world_run(w);
  assert_log(w, "a:ECANCELED"); /* the cancellation wins */
  assert_int_equal(a.ordinal, VG_ORDINAL_NONE);
}

static void test_cancel_after_the_end(void **state) {
  world_t *w = *state;
  routine_t a;

  routine_spawn(w, &a, "a", body_completes, NULL); /* CN-06 */
  world_run(w);
  assert_int_equal(vg_coroutine_cancel(&a.co), 0);
  expect_state(&a, VG_COROUTINE_COMPLETED);
  assert_int_equal(w->s->ready.count, 0);
}

/* It runs: nothing is interrupted, the next suspension point finds a bit. */
static int body_cancels_itself(routine_t *self) {
  assert_int_equal(vg_coroutine_cancel(&self->co), 1);
  expect_state(self, VG_COROUTINE_RUNNING);
  assert_true(is_active(self));
  return routine_end(self, VG_COROUTINE_COMPLETED); /* CN-11 */
}

static void test_cancel_oneself(void **state) {
  world_t *w = *state;
  routine_t a;

  routine_spawn(w, &a, "a", body_cancels_itself, NULL);
  world_run(w);
  expect_state(&a, VG_COROUTINE_COMPLETED);
  assert_true(a.co.flags & VG_CO_CANCEL_REQUESTED); /* stays */
}

/* Caught: the next wait is to find it again, for it is a state. */
static int body_catches(routine_t *self) {
  switch (self->step++) {
    case 0: return routine_await(self, self->data);
    case 1:
      world_log(self->world, "%s", vg_error_name(self->error));
      assert_true(is_active(self));
      return routine_yield(self);
    default:
      assert_true(is_active(self));
      return routine_end(self, VG_COROUTINE_COMPLETED);
  }
}

static void test_cancellation_is_a_state(void **state) {
  world_t *w = *state;
  routine_t a;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_spawn(w, &a, "a", body_catches, &fake.event);
  vg__drain(w->s);
  vg_coroutine_cancel(&a.co);
  world_run(w);
  assert_log(w, "ECANCELED");
  expect_state(&a, VG_COROUTINE_COMPLETED);
}

/* }================================================================= */


/*
** {== Blocks.  The main chunk stands for any coroutine: it can be looked at
** between two steps.
*/

static void park(routine_t *r, fake_t *fake) {
  vg_waker_new(&r->co);
  assert_int_equal(vg_resume_when(&r->co, &fake->event, 0, NULL, NULL), 0);
  assert_int_equal(vg_waker_park(&r->co), 1);
}

static void expect_woken(routine_t *r, int error) {
  assert_int_equal(r->co.waker.status, VG_WAKER_QUEUED);
  assert_int_equal(vg_scheduler_run(r->world->s, &r->co), 0);
  assert_int_equal(r->co.waker.error, error);
}

static void expect_waiting(routine_t *r) {
  assert_int_equal(r->co.waker.status, VG_WAKER_WAITING);
  expect_state(r, VG_COROUTINE_SUSPENDED);
}

static void test_timeout_block(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  vg_block_t block;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  vg__block_enter(&main.co, &block, VG_BLOCK_TIMEOUT);
  assert_false(is_active(&main));
  park(&main, &fake);
  vg__block_expired(&block);
  expect_woken(&main, UV_ECANCELED);
  assert_ptr_equal(vg__block_active(&main.co), &block);
  assert_false(vg__cancel_active(&main.co)); /* not its own (ruling 4) */
  assert_true(is_active(&main));
  vg__block_leave(&block); /* leaving ends that state */
  assert_false(is_active(&main));
  assert_null(vg__block_active(&main.co));
  vg__block_leave(&block); /* twice does no harm */
  assert_null(main.co.blocks);
}

static void test_timeout_while_running_and_queued(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  vg_block_t block;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  vg__block_enter(&main.co, &block, VG_BLOCK_TIMEOUT);
  park(&main, &fake);
  fake_fire(&fake, 0, 3);
  vg__block_expired(&block); /* too late for this wait */
  expect_woken(&main, 0);
  assert_int_equal(main.co.waker.value, 3);
  assert_true(is_active(&main)); /* but the next one raises */
  vg__block_leave(&block);
  assert_false(is_active(&main));
}

static void test_protect(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  vg_block_t block;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_main(w, &main); /* PR-01, PR-02, PR-06 */
  vg__block_enter(&main.co, &block, VG_BLOCK_PROTECT);
  park(&main, &fake);
  assert_int_equal(vg_coroutine_cancel(&main.co), 1);
  assert_int_equal(vg_coroutine_cancel(&main.co), 0);
  expect_waiting(&main);
  assert_false(is_active(&main));
  assert_true(main.co.flags & VG_CO_CANCEL_REQUESTED);
  fake_fire(&fake, 0, 1);
  expect_woken(&main, 0);
  vg__block_leave(&block);
  assert_true(is_active(&main));
  assert_true(vg__cancel_active(&main.co));
  vg__block_enter(&main.co, &block, VG_BLOCK_PROTECT); /* to clean up */
  assert_false(is_active(&main));
  vg__block_leave(&block);
  assert_true(is_active(&main));
}

static void test_protect_keeps_a_queued_outcome(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  vg_block_t block;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  vg__block_enter(&main.co, &block, VG_BLOCK_PROTECT);
  park(&main, &fake);
  fake_fire(&fake, 0, 1);
  vg_coroutine_cancel(&main.co);
  expect_woken(&main, 0);
  vg__block_leave(&block);
}

static void test_nested_protects(void **state) {
  world_t *w = *state;
  routine_t main;
  vg_block_t outer, inner;

  routine_main(w, &main);
  vg__block_enter(&main.co, &outer, VG_BLOCK_PROTECT);
  vg__block_enter(&main.co, &inner, VG_BLOCK_PROTECT);
  vg_coroutine_cancel(&main.co);
  assert_false(is_active(&main));
  vg__block_leave(&inner);
  assert_false(is_active(&main)); /* depth is counted */
  vg__block_leave(&outer);
  assert_true(is_active(&main));
}

static void test_protect_has_a_limit(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  vg_block_t outer, inner;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  vg__block_enter(&main.co, &outer, VG_BLOCK_PROTECT);
  vg__block_enter(&main.co, &inner, VG_BLOCK_PROTECT);
  vg_coroutine_cancel(&main.co);
  park(&main, &fake);
  vg__block_expired(&inner);
  expect_waiting(&main); /* the outer one still holds */
  vg__block_expired(&outer);
  expect_woken(&main, UV_ECANCELED);
  assert_true(is_active(&main));
  vg__block_leave(&inner);
  vg__block_leave(&outer);
  assert_true(is_active(&main));
}

static void test_limit_of_protect_without_a_request(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  vg_block_t block;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  vg__block_enter(&main.co, &block, VG_BLOCK_PROTECT);
  park(&main, &fake);
  vg__block_expired(&block); /* nothing to let through */
  expect_waiting(&main);
  vg_coroutine_cancel(&main.co); /* now it is not held back */
  expect_woken(&main, UV_ECANCELED);
  vg__block_leave(&block);
}

static void test_timeout_inside_protect(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  vg_block_t protect, timeout;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  vg__block_enter(&main.co, &protect, VG_BLOCK_PROTECT);
  vg__block_enter(&main.co, &timeout, VG_BLOCK_TIMEOUT);
  vg_coroutine_cancel(&main.co);
  park(&main, &fake);
  vg__block_expired(&timeout); /* the protection does not hide it */
  expect_woken(&main, UV_ECANCELED);
  assert_ptr_equal(vg__block_active(&main.co), &timeout);
  assert_false(vg__cancel_active(&main.co));
  vg__block_leave(&timeout);
  assert_false(is_active(&main));
  vg__block_leave(&protect);
  assert_true(is_active(&main));
  assert_true(vg__cancel_active(&main.co));
}

static void test_protect_inside_timeout(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  vg_block_t timeout, protect;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  vg__block_enter(&main.co, &timeout, VG_BLOCK_TIMEOUT);
  vg__block_enter(&main.co, &protect, VG_BLOCK_PROTECT);
  park(&main, &fake);
  vg__block_expired(&timeout);
  expect_waiting(&main);
  assert_null(vg__block_active(&main.co));
  fake_fire(&fake, 0, 0);
  expect_woken(&main, 0);
  vg__block_leave(&protect);
  assert_true(is_active(&main));
  assert_ptr_equal(vg__block_active(&main.co), &timeout);
  vg__block_leave(&timeout);
  assert_false(is_active(&main));
}

static void test_outermost_timeout_counts(void **state) {
  world_t *w = *state;
  routine_t main;
  vg_block_t outer, inner;

  routine_main(w, &main);
  vg__block_enter(&main.co, &outer, VG_BLOCK_TIMEOUT);
  vg__block_enter(&main.co, &inner, VG_BLOCK_TIMEOUT);
  vg__block_expired(&inner);
  assert_ptr_equal(vg__block_active(&main.co), &inner);
  vg__block_expired(&outer);
  assert_ptr_equal(vg__block_active(&main.co), &outer);
  vg__block_leave(&inner);
  assert_true(is_active(&main)); /* the outer one's goes on */
  vg__block_leave(&outer);
  assert_false(is_active(&main));
}

static void test_leaving_out_of_order(void **state) {
  world_t *w = *state;
  routine_t main;
  vg_block_t a, b, c;

  routine_main(w, &main);
  vg__block_enter(&main.co, &a, VG_BLOCK_PROTECT);
  vg__block_enter(&main.co, &b, VG_BLOCK_TIMEOUT);
  vg__block_enter(&main.co, &c, VG_BLOCK_PROTECT);
  assert_int_equal(vg__block_limit(&b, uv_hrtime() + 1000 * MS), 0);
  assert_int_equal(w->s->active, 1);
  vg_coroutine_cancel(&main.co);
  vg__block_expired(&b);
  assert_false(is_active(&main));
  vg__block_leave(&b); /* a generator dropped with it inside */
  assert_int_equal(w->s->active, 0);
  assert_ptr_equal(main.co.blocks, &c);
  assert_ptr_equal(c.outer, &a);
  vg__block_leave(&a);
  assert_false(is_active(&main));
  vg__block_leave(&c);
  assert_true(is_active(&main));
  assert_null(main.co.blocks);
}

static void test_own_request_and_timeout(void **state) {
  world_t *w = *state;
  routine_t main;
  vg_block_t block;

  routine_main(w, &main);
  vg__block_enter(&main.co, &block, VG_BLOCK_TIMEOUT);
  vg__block_expired(&block);
  vg_coroutine_cancel(&main.co);
  assert_true(vg__cancel_active(&main.co));
  vg__block_leave(&block);
  assert_true(is_active(&main)); /* its own stays for life */
}

/* A body that ends inside a block: nothing of it is left armed. */
static int body_abandons_a_block(routine_t *self) {
  vg__block_enter(&self->co, &self->outer, VG_BLOCK_TIMEOUT);
  vg__block_limit(&self->outer, uv_hrtime() + 1000 * MS);
  vg__block_enter(&self->co, &self->inner, VG_BLOCK_PROTECT);
  vg__block_limit(&self->inner, uv_hrtime() + 1000 * MS);
  assert_int_equal(self->world->s->heap_count, 2);
  return routine_end(self, VG_COROUTINE_FAILED);
}

static void test_abandoned_blocks(void **state) {
  world_t *w = *state;
  routine_t a;

  routine_spawn(w, &a, "a", body_abandons_a_block, NULL);
  world_run(w); /* checks that nothing is armed */
  assert_null(a.co.blocks);
}

static void test_block_without_memory(void **state) {
  world_t *w = *state;
  routine_t main;
  vg_block_t block;

  routine_main(w, &main);
  vg__block_enter(&main.co, &block, VG_BLOCK_TIMEOUT);
  memory_fail_at(&w->memory, 1);
  assert_int_equal(vg__block_limit(&block, uv_hrtime() + MS), UV_ENOMEM);
  vg__block_leave(&block);
  assert_int_equal(w->s->active, 0);
}

/* }================================================================= */


/*
** {== Switch handlers
*/

static const char *const switch_names[] = {"enter", "leave", "finish"};

static int log_switch(vg_coroutine_t *co, vg_switch_t what, void *data) {
  routine_t *r = VG_CONTAINER(co, routine_t, co);
  world_log(r->world, "%s%s-%s", (const char *)data, r->name,
            switch_names[what]);
  return 1;
}

static int log_once(vg_coroutine_t *co, vg_switch_t what, void *data) {
  log_switch(co, what, data);
  return 0;
}

static char mark[] = "", mark_h[] = "h:", mark_k[] = "k:";

static void test_enter_leave_finish(void **state) {
  world_t *w = *state;
  routine_t a, b;

  routine_spawn(w, &a, "a", body_three_turns, NULL); /* MT-04, MT-05 */
  routine_spawn(w, &b, "b", body_three_turns, NULL);
  assert_int_equal(vg_coroutine_on_switch(&a.co, log_switch, mark), 0);
  world_run(w);
  assert_log(w, "a-enter a0 a-leave b0 a-enter a1 a-leave b1 "
                "a-enter a2 a-finish b2");
  assert_null(w->s->switches);
  assert_false(a.co.flags & VG_CO_SWITCH_HANDLERS);
  assert_int_equal(vg_coroutine_on_switch(&a.co, log_switch, mark),
                   VG_ESTATE); /* it has ended */
}

static void test_two_handlers(void **state) {
  world_t *w = *state;
  routine_t a;

  routine_spawn(w, &a, "a", body_completes, NULL);
  vg_coroutine_on_switch(&a.co, log_switch, mark_h);
  vg_coroutine_on_switch(&a.co, log_switch, mark_k);
  world_run(w);
  assert_log(w, "h:a-enter k:a-enter a h:a-finish k:a-finish");
}

static void test_handler_is_removed_by_0(void **state) {
  world_t *w = *state;
  routine_t a, b;

  routine_spawn(w, &a, "a", body_three_turns, NULL);
  routine_spawn(w, &b, "b", body_completes, NULL);
  vg_coroutine_on_switch(&a.co, log_once, mark_h);
  vg_coroutine_on_switch(&b.co, log_switch, mark_k);
  world_run(w);
  assert_log(w, "h:a-enter a0 k:b-enter b k:b-finish a1 a2");
  assert_false(a.co.flags & VG_CO_SWITCH_HANDLERS);
  assert_null(w->s->switches);
}

static int add_once(vg_coroutine_t *co, vg_switch_t what, void *data) {
  log_switch(co, what, data);
  if (what == VG_SWITCH_FINISH) {
    assert_int_equal(vg_coroutine_on_switch(co, log_switch, mark_k), VG_ESTATE);
    return 0;
  }
  assert_int_equal(vg_coroutine_on_switch(co, add_once, data), 0);
  return 0;
}

/* One that replaces itself at each call: it is called once a switch. */
static void test_handler_added_during_a_call(void **state) {
  world_t *w = *state;
  routine_t a;

  routine_spawn(w, &a, "a", body_three_turns, NULL);
  vg_coroutine_on_switch(&a.co, add_once, mark_h);
  world_run(w);
  assert_log(w, "h:a-enter a0 h:a-leave h:a-enter a1 h:a-leave "
                "h:a-enter a2 h:a-finish");
  assert_null(w->s->switches);
}

static int add_other(vg_coroutine_t *co, vg_switch_t what, void *data) {
  VG_UNUSED(what);
  assert_int_equal(vg_coroutine_on_switch(co, log_switch, data), 0);
  return 0;
}

static void test_handler_adds_another(void **state) {
  world_t *w = *state;
  routine_t a;

  routine_spawn(w, &a, "a", body_three_turns, NULL);
  vg_coroutine_on_switch(&a.co, add_other, mark_k);
  world_run(w);
  assert_log(w, "a0 k:a-leave k:a-enter a1 k:a-leave k:a-enter a2 k:a-finish");
}

static int body_watches_itself(routine_t *self) {
  if (self->step == 0) vg_coroutine_on_switch(&self->co, log_switch, mark_h);
  return body_three_turns(self);
}

static void test_handler_on_oneself(void **state) {
  world_t *w = *state;
  routine_t a;

  routine_spawn(w, &a, "a", body_watches_itself, NULL);
  world_run(w);
  assert_log(w, "a0 h:a-enter a1 h:a-leave h:a-enter a2 h:a-finish");
}

static void test_no_handlers_on_the_fast_path(void **state) {
  world_t *w = *state;
  routine_t a;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_STORED, 0); /* MT-07 */
  fake.stored = 1;
  routine_spawn(w, &a, "a", body_awaits, &fake.event);
  vg_coroutine_on_switch(&a.co, log_switch, mark);
  world_run(w);
  assert_log(w, "a-enter a:ok a-finish");
  fake_init(w, &fake, "f", FAKE_ACTIVE, 0);
  fake.start_fires = FIRE_NOTIFY;
  routine_spawn(w, &a, "a", body_awaits, &fake.event);
  vg_coroutine_on_switch(&a.co, log_switch, mark);
  world_run(w);
  assert_log(w, "a-enter a:ok a-finish");
}

static void test_handler_of_a_discarded_one(void **state) {
  world_t *w = *state;
  routine_t a;

  routine_spawn(w, &a, "a", body_completes, NULL);
  vg_coroutine_on_switch(&a.co, log_switch, mark);
  vg_coroutine_cancel(&a.co);
  world_run(w);
  assert_log(w, "a-finish"); /* it was never entered */
  assert_null(w->s->switches);
}

static void test_handlers_of_waiting_ones_are_freed(void **state) {
  world_t *w = *state;
  routine_t a;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_spawn(w, &a, "a", body_awaits, &fake.event);
  vg_coroutine_on_switch(&a.co, log_switch, mark);
  memory_fail_at(&w->memory, 1);
  assert_int_equal(vg_coroutine_on_switch(&a.co, log_switch, mark), UV_ENOMEM);
  vg__drain(w->s);
  assert_log(w, "a-enter a-leave");
  world_free(w);
  assert_log(w, "");
}

/* }================================================================= */


/*
** {== In words (EV-12, DL-10)
*/

static void test_descriptions(void **state) {
  world_t *w = *state;
  routine_t a, b;
  fake_t fake;
  char text[256], little[12];

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_spawn(w, &a, "a", body_awaits, &fake.event);
  routine_spawn(w, &b, "b", body_awaits, &a.co.event);
  a.co.id = 7;
  a.co.spawn_source = "main.lua";
  a.co.spawn_line = 3;
  vg_event_info(&a.co.event, text, sizeof text);
  assert_string_equal(text, "coroutine #7 queued, spawned at main.lua:3");
  vg__drain(w->s);
  vg__describe(&a.co, "worker", text, sizeof text);
  assert_string_equal(text, "coroutine #7 'worker' suspended, spawned at "
                            "main.lua:3, waits at a.c:1 for fake f");
  b.co.id = 8; /* what an awaited coroutine awaits is not told */
  vg__describe(&b.co, NULL, text, sizeof text);
  assert_string_equal(text, "coroutine #8 suspended, waits at b.c:1 for "
                            "coroutine #7 suspended, spawned at main.lua:3");
  assert_int_equal(vg__describe(&b.co, NULL, little, sizeof little),
                   strlen(text));
  assert_string_equal(little, "coroutine #");
  assert_int_equal(vg__describe(&b.co, NULL, NULL, 0), strlen(text));
  fake_fire(&fake, 0, 0);
  world_run(w);
  vg_event_info(&b.co.event, text, sizeof text);
  assert_string_equal(text, "coroutine #8 completed");
}

static int body_awaits_itself(routine_t *self) {
  self->data = &self->co.event;
  return body_awaits(self);
}

static void test_description_of_a_wait(void **state) {
  world_t *w = *state;
  routine_t main, a;
  fake_t fakes[2];
  char text[256];

  routine_main(w, &main);
  fake_init(w, &fakes[0], "one", FAKE_PASSIVE, 0);
  fake_init(w, &fakes[1], "two", FAKE_PASSIVE, 0);
  vg_waker_new(&main.co);
  assert_int_equal(vg__describe_wait(&main.co, text, sizeof text), 0);
  vg__waker_timer(&main.co, uv_hrtime() + 3600000 * MS, 0);
  vg_resume_when(&main.co, &fakes[0].event, 0, NULL, NULL);
  vg_resume_when(&main.co, &fakes[1].event, 0, NULL, NULL);
  vg__describe_wait(&main.co, text, sizeof text);
  assert_int_equal(strncmp(text, "fake one, fake two, timeout (in 3", 33), 0);
  vg_waker_clean(&main.co);
  assert_int_equal(vg_waker_park(&main.co), 1);
  vg__describe(&main.co, NULL, text, sizeof text);
  assert_string_equal(text,
                      "main chunk suspended, waits at main.c:0 for nothing");
  routine_spawn(w, &a, "a", body_awaits_itself, NULL);
  vg__drain(w->s);
  vg__describe_wait(&a.co, text, sizeof text);
  assert_string_equal(text, "itself");
  vg_coroutine_cancel(&a.co);
  vg__drain(w->s);
}

static void count_coroutine(vg_coroutine_t *co, void *data) {
  VG_UNUSED(co);
  (*(int *)data)++;
}

static void test_each_coroutine(void **state) {
  world_t *w = *state;
  routine_t a, b, c;
  vg_scope_t *child, *grandchild;
  int count = 0;

  vg_scope_new(w->s, w->s->root, &child);
  vg_scope_new(w->s, child, &grandchild);
  routine_spawn(w, &a, "a", body_completes, NULL);
  routine_init(w, &b, "b", body_completes, NULL);
  routine_init(w, &c, "c", body_completes, NULL);
  vg_coroutine_spawn(&b.co, child, 0);
  vg_coroutine_spawn(&c.co, grandchild, 0);
  vg__each_coroutine(w->s, count_coroutine, &count);
  assert_int_equal(count, 3);
  world_run(w);
  count = 0;
  vg__each_coroutine(w->s, count_coroutine, &count);
  assert_int_equal(count, 0);
  vg_event_release(&child->event);
  vg_event_release(&grandchild->event);
}

/* }================================================================= */


int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_spawn_never_runs_at_once),
      world_test(test_turns_are_in_order),
      world_test(test_two_priorities),
      world_test(test_high_priority_when_woken),
      world_test(test_many),
      world_test(test_spawn_refused),
      world_test(test_unhandled),
      world_test(test_awaiting),
      world_test(test_last_reference),
      world_test(test_cancel_before_start),
      world_test(test_cancel_while_waiting),
      world_test(test_cancel_while_queued),
      world_test(test_cancel_after_the_end),
      world_test(test_cancel_oneself),
      world_test(test_cancellation_is_a_state),
      world_test(test_timeout_block),
      world_test(test_timeout_while_running_and_queued),
      world_test(test_protect),
      world_test(test_protect_keeps_a_queued_outcome),
      world_test(test_nested_protects),
      world_test(test_protect_has_a_limit),
      world_test(test_limit_of_protect_without_a_request),
      world_test(test_timeout_inside_protect),
      world_test(test_protect_inside_timeout),
      world_test(test_outermost_timeout_counts),
      world_test(test_leaving_out_of_order),
      world_test(test_own_request_and_timeout),
      world_test(test_abandoned_blocks),
      world_test(test_block_without_memory),
      world_test(test_enter_leave_finish),
      world_test(test_two_handlers),
      world_test(test_handler_is_removed_by_0),
      world_test(test_handler_added_during_a_call),
      world_test(test_handler_adds_another),
      world_test(test_handler_on_oneself),
      world_test(test_no_handlers_on_the_fast_path),
      world_test(test_handler_of_a_discarded_one),
      world_test(test_handlers_of_waiting_ones_are_freed),
      world_test(test_descriptions),
      world_test(test_description_of_a_wait),
      world_test(test_each_coroutine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

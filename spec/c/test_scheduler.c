/*
** test_scheduler.c: microtasks, the tick, deadlock, shutdown, the end
** (MT-01 to MT-03, SC, DL).
*/

#include "support.h"

/*
** {== Microtasks
*/

typedef struct task {
  vg_microtask_t base;
  world_t *world;
  const char *name;
  int result; /* of run */
  int runs, disposed;
  struct task *next; /* added by run */
} task_t;

static int task_run(vg_microtask_t *base) {
  task_t *task = (task_t *)base;
  task->runs++;
  world_log(task->world, "%s", task->name);
  if (task->next != NULL) vg_microtask_add(task->world->s, &task->next->base);
  return task->result;
}

static void task_dispose(vg_microtask_t *base) { ((task_t *)base)->disposed++; }

static void task_init(world_t *w, task_t *task, const char *name) {
  memset(task, 0, sizeof *task);
  task->base.run = task_run;
  task->base.dispose = task_dispose;
  task->base.ref_count = 1;
  task->world = w;
  task->name = name;
}

/* Added, with the queue as the only owner left. */
static void task_add(world_t *w, task_t *task, const char *name) {
  task_init(w, task, name);
  vg_microtask_add(w->s, &task->base);
  vg_microtask_release(&task->base);
}

static void test_microtasks_are_fifo(void **state) {
  world_t *w = *state;
  task_t one, two, three;
  routine_t a;

  routine_spawn(w, &a, "a", body_completes, NULL); /* MT-01 */
  task_add(w, &one, "one");
  task_add(w, &two, "two");
  task_add(w, &three, "three");
  assert_int_equal(one.disposed, 0);
  world_run(w);
  assert_log(w, "one two three a");
  assert_int_equal(one.disposed, 1);
  assert_int_equal(three.disposed, 1);
  assert_null(w->s->micro_first);
}

static void test_microtask_adds_another(void **state) {
  world_t *w = *state;
  task_t one, two, added;
  routine_t a;

  routine_spawn(w, &a, "a", body_completes, NULL);
  task_init(w, &added, "added");
  task_add(w, &one, "one");
  task_add(w, &two, "two");
  one.next = &added;
  world_run(w);
  assert_log(w, "one two added a");    /* in the same drain */
  assert_int_equal(added.disposed, 0); /* ours */
  vg_microtask_release(&added.base);
  assert_int_equal(added.disposed, 1);
}

static int body_adds_task(routine_t *self) {
  world_log(self->world, "%s", self->name);
  if (self->step++ > 0) return routine_end(self, VG_COROUTINE_COMPLETED);
  vg_microtask_add(self->world->s, self->data);
  return routine_yield(self);
}

static void test_microtasks_before_each_switch(void **state) {
  world_t *w = *state;
  task_t task;
  routine_t a, b;

  task_init(w, &task, "task");
  routine_spawn(w, &a, "a", body_adds_task, &task.base);
  routine_spawn(w, &b, "b", body_completes, NULL);
  world_run(w);
  assert_log(w, "a task b a");
}

static void test_microtask_twice(void **state) {
  world_t *w = *state;
  task_t task;

  task_init(w, &task, "task");
  vg_microtask_add(w->s, &task.base);
  vg_microtask_add(w->s, &task.base); /* it is queued already */
  assert_int_equal(task.base.ref_count, 2);
  world_run(w);
  assert_int_equal(task.runs, 1);
  vg_microtask_add(w->s, &task.base); /* and after it has run, again */
  world_run(w);
  assert_int_equal(task.runs, 2);
  assert_log(w, "task task");
}

static void test_microtask_that_adds_itself(void **state) {
  world_t *w = *state;
  task_t task;

  task_init(w, &task, "task");
  task.next = &task;
  vg_microtask_add(w->s, &task.base);
  task.result = -1; /* so that the drain stops after one */
  vg__drain(w->s);
  assert_log(w, "task");
  task.next = NULL;
  task.result = 0;
  vg__drain(w->s);
  assert_log(w, "task");
  assert_int_equal(task.base.ref_count, 1);
}

static void test_cancelled_microtask(void **state) {
  world_t *w = *state;
  task_t one, two;

  task_add(w, &one, "one"); /* MT-02 */
  task_add(w, &two, "two");
  vg_microtask_cancel(&one.base);
  assert_int_equal(one.disposed, 0);
  world_run(w);
  assert_log(w, "two");
  assert_int_equal(one.runs, 0);
  assert_int_equal(one.disposed, 1);
}

static void test_cancelled_and_added_again(void **state) {
  world_t *w = *state;
  task_t task;

  task_init(w, &task, "task");
  vg_microtask_add(w->s, &task.base);
  vg_microtask_cancel(&task.base);
  vg_microtask_add(w->s, &task.base); /* it is wanted, after all */
  world_run(w);
  assert_int_equal(task.runs, 1);
  assert_log(w, "task");
  vg_microtask_add(w->s, &task.base);
  vg_microtask_cancel(&task.base);
  world_run(w);
  vg_microtask_add(w->s, &task.base); /* a cancellation is not for ever */
  world_run(w);
  assert_int_equal(task.runs, 2);
  assert_log(w, "task");
}

static void test_failing_microtask(void **state) {
  world_t *w = *state;
  task_t one, failing, three, four;
  routine_t waiting, fresh;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0); /* MT-03 */
  routine_spawn(w, &waiting, "waiting", body_awaits, &fake.event);
  vg__drain(w->s);
  routine_spawn(w, &fresh, "fresh", body_completes, NULL);
  task_add(w, &one, "one");
  task_add(w, &failing, "failing");
  task_add(w, &three, "three");
  task_add(w, &four, "four");
  failing.result = UV_EIO;
  vg__drain(w->s); /* one pass: up to the failure, then what runs next */
  assert_int_equal(failing.disposed, 1);
  assert_true(waiting.co.flags & VG_CO_CANCEL_REQUESTED);
  assert_int_equal(fresh.discarded, 1); /* shut down before it started */
  world_run(w);
  assert_log(w, "one failing three four waiting:ECANCELED");
  assert_int_equal(three.disposed, 1);
  assert_int_equal(four.disposed, 1);
  assert_false(w->s->shutting_down); /* down */
  assert_false(w->s->root->cancelled);
}

/* The rest stay queued: with nobody to run, until the next run. */
static void test_rest_stays_queued(void **state) {
  world_t *w = *state;
  task_t failing, rest, more;

  task_add(w, &failing, "failing");
  task_add(w, &rest, "rest");
  task_add(w, &more, "more");
  failing.result = -1;
  vg__drain(w->s);
  assert_log(w, "failing");
  assert_ptr_equal(w->s->micro_first, &rest.base);
  assert_int_equal(rest.runs, 0);
  assert_true(rest.base.queued);
  vg__drain(w->s);
  assert_log(w, "rest more");
}

/* }================================================================= */


/*
** {== Running
*/

static int body_runs_nested(routine_t *self) {
  assert_int_equal(vg_scheduler_run(self->world->s, NULL), VG_ESTATE);
  vg__drain(self->world->s); /* refused, silently */
  assert_ptr_equal(vg_scheduler_current(self->world->s), &self->co);
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void test_nested_run(void **state) {
  world_t *w = *state;
  routine_t a, b;

  routine_spawn(w, &a, "a", body_runs_nested, NULL);
  routine_spawn(w, &b, "b", body_completes, NULL);
  world_run(w);
  assert_log(w, "b");
  assert_null(vg_scheduler_current(w->s));
}

static void test_empty_run(void **state) {
  world_t *w = *state;
  world_run(w);
  world_run(w);
  vg__drain(w->s);
  assert_int_equal(w->verdicts, 0);
}

static int body_fires(routine_t *self) {
  if (self->step++ < 3) return routine_yield(self);
  fake_fire(self->data, 0, 5);
  world_log(self->world, "%s", self->name);
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void test_run_until(void **state) {
  world_t *w = *state;
  routine_t main, firer, late;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_ACTIVE, 0);
  routine_main(w, &main);
  routine_spawn(w, &firer, "firer", body_fires, &fake);
  assert_int_equal(main_await(&main, &fake.event), 0);
  assert_int_equal(main.value, 5);
  assert_log(w, "firer");
  routine_spawn(w, &late, "late", body_completes, NULL);
  fake.start_fires = FIRE_NOTIFY;
  assert_int_equal(main_await(&main, &fake.event), 0);
  assert_log(w, ""); /* there already: nobody else ran */
  world_run(w);
  assert_log(w, "late");
}

static void test_run_until_others_ended(void **state) {
  world_t *w = *state;
  routine_t main, a;

  routine_main(w, &main);
  routine_spawn(w, &a, "a", body_completes, NULL);
  assert_int_equal(main_await(&main, &a.co.event), 0);
  assert_log(w, "a");
  assert_int_equal(main_await(&main, &a.co.event), 0);
}

static void test_notification_runs_nobody(void **state) {
  world_t *w = *state;
  routine_t a;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_spawn(w, &a, "a", body_awaits, &fake.event);
  vg__drain(w->s);
  assert_null(vg_scheduler_current(w->s));
  assert_false(w->s->running);
  fake_fire(&fake, 0, 0);
  assert_int_equal(a.runs, 1); /* a notification runs nobody */
  world_run(w);
  assert_int_equal(a.runs, 2);
  assert_log(w, "a:ok");
}

/* One pass: who yields meanwhile waits for the next. */
static void test_drain_is_one_pass(void **state) {
  world_t *w = *state;
  routine_t a, b;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_spawn(w, &a, "a", body_fires, &fake);
  routine_spawn(w, &b, "b", body_completes, NULL);
  vg__drain(w->s);
  assert_int_equal(a.step, 1);
  assert_log(w, "b");
  vg__drain(w->s);
  assert_int_equal(a.step, 2);
  world_run(w);
  assert_log(w, "a");
}

/* A busy queue polls the reactor, a sleeper is not starved (ruling 20). */
static int body_busy(routine_t *self) {
  routine_t *sleeper = self->data;
  if (vg__coroutine_ended(&sleeper->co))
    return routine_end(self, VG_COROUTINE_COMPLETED);
  return routine_yield(self);
}

static int body_sleeps(routine_t *self) {
  if (self->step++ == 0) return routine_sleep(self, MS);
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void test_busy_queue_polls(void **state) {
  world_t *w = *state;
  routine_t sleeper, a, b;

  routine_spawn(w, &sleeper, "s", body_sleeps, NULL);
  routine_spawn(w, &a, "a", body_busy, &sleeper);
  routine_spawn(w, &b, "b", body_busy, &sleeper);
  world_run(w);
  assert_true(a.runs > VG_RESUMES_PER_POLL / 2);
  assert_int_equal(sleeper.error, 0);
}

static void resume_next(routine_t *self, const char *expected) {
  vg_scheduler_t *s = self->world->s;
  vg_coroutine_t *next = vg__next(s, vg__comethods(&self->co));
  if (expected == NULL) {
    assert_null(next);
    return;
  }
  assert_non_null(next);
  assert_string_equal(VG_CONTAINER(next, routine_t, co)->name, expected);
  assert_ptr_equal(s->current, next);
  assert_int_equal(next->state, VG_COROUTINE_RUNNING);
  assert_int_equal(next->waker.status, VG_WAKER_RESULT);
  vg_coroutine_finish(next, VG_COROUTINE_COMPLETED);
}

static int no_switch(vg_coroutine_t *co, vg_switch_t what, void *data) {
  VG_UNUSED(co);
  VG_UNUSED(what);
  VG_UNUSED(data);
  return 1;
}

/* The way straight to the next one stops where the scheduler has work. */
static int body_goes_straight(routine_t *self) {
  routine_t *others = self->data;
  vg_scheduler_t *s = self->world->s;
  task_t task;

  resume_next(self, "o0");
  task_init(self->world, &task, "task"); /* a microtask is due */
  vg_microtask_add(s, &task.base);
  resume_next(self, NULL);
  vg_microtask_cancel(&task.base);
  s->micro_first = NULL; /* as if it had been drained */
  s->micro_last = &s->micro_first;
  s->since_poll = VG_RESUMES_PER_POLL - 1; /* the reactor is due */
  resume_next(self, NULL);
  s->since_poll = 0;
  assert_int_equal(vg_coroutine_cancel(&others[1].co), 1); /* to discard */
  resume_next(self, NULL);
  s->current = &self->co;
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static int body_meets_handlers(routine_t *self) {
  vg_scheduler_t *s = self->world->s;
  resume_next(self, NULL); /* the next one has switch handlers */
  s->current = &self->co;
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void test_straight_to_the_next(void **state) {
  world_t *w = *state;
  routine_t a, b, others[3];

  routine_spawn(w, &a, "a", body_goes_straight, others);
  routine_spawn(w, &others[0], "o0", body_completes, NULL);
  routine_spawn(w, &others[1], "o1", body_completes, NULL);
  routine_spawn(w, &b, "b", body_meets_handlers, NULL);
  routine_spawn(w, &others[2], "o2", body_completes, NULL);
  vg_coroutine_on_switch(&others[2].co, no_switch, NULL);
  world_run(w);
  assert_int_equal(others[1].discarded, 1);
  assert_int_equal(others[2].runs, 1);
  assert_log(w, "o2");
}

/* }================================================================= */


/*
** {== Deadlock
*/

static void test_two_await_each_other(void **state) {
  world_t *w = *state;
  routine_t a, b;

  routine_init(w, &a, "a", body_awaits, &b.co.event); /* DL-01 */
  routine_init(w, &b, "b", body_awaits, &a.co.event);
  vg_coroutine_spawn(&a.co, w->s->root, 0);
  vg_coroutine_spawn(&b.co, w->s->root, 0);
  world_run(w);
  assert_log(w, "a:EDEADLOCK b:EDEADLOCK");
  assert_int_equal(w->verdicts, 1);
  assert_int_equal(w->last_verdict, 2);
  assert_int_equal(w->stuck, 2);
  assert_true(w->s->deadlocks);
}

static int body_awaits_itself(routine_t *self) {
  self->data = &self->co.event;
  return body_awaits(self);
}

static void test_awaiting_oneself(void **state) {
  world_t *w = *state;
  routine_t a;

  routine_spawn(w, &a, "a", body_awaits_itself, NULL); /* DL-06 */
  world_run(w);
  assert_log(w, "a:EDEADLOCK");
  assert_int_equal(w->last_verdict, 1);
}

/* Caught, it may go on (DL-03): a wait that can end, ends. */
static int body_recovers(routine_t *self) {
  switch (self->step++) {
    case 0: return routine_await(self, self->data);
    case 1:
      world_log(self->world, "%s:%s", self->name, vg_error_name(self->error));
      assert_int_equal(self->co.flags & VG_CO_CANCEL_ACTIVE, 0);
      return routine_yield(self);
    default:
      world_log(self->world, "%s", self->name);
      return routine_end(self, VG_COROUTINE_COMPLETED);
  }
}

static void test_recovery_after_a_verdict(void **state) {
  world_t *w = *state;
  routine_t a, b;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_spawn(w, &a, "a", body_recovers, &fake.event);
  routine_spawn(w, &b, "b", body_recovers, &fake.event);
  world_run(w);
  assert_log(w, "a:EDEADLOCK b:EDEADLOCK a b");
  assert_int_equal(w->verdicts, 1);
}

/* A second verdict cancels (ruling 7). */
static int body_stubborn(routine_t *self) {
  if (self->step++ > 0)
    world_log(self->world, "%s", vg_error_name(self->error));
  if (self->co.flags & VG_CO_CANCEL_ACTIVE)
    return routine_end(self, VG_COROUTINE_CANCELLED);
  return routine_await(self, self->data);
}

static void test_second_verdict_cancels(void **state) {
  world_t *w = *state;
  routine_t a;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_spawn(w, &a, "a", body_stubborn, &fake.event);
  world_run(w);
  assert_log(w, "EDEADLOCK ECANCELED");
  assert_int_equal(w->verdicts, 2);
  assert_int_equal(w->stuck, 2);
}

/* ... and inside a protection it is cut short each time. */
static int body_protected(routine_t *self) {
  if (self->step++ == 0)
    vg__block_enter(&self->co, &self->outer, VG_BLOCK_PROTECT);
  else
    world_log(self->world, "%s", vg_error_name(self->error));
  if (self->step < 4) return routine_await(self, self->data);
  vg__block_leave(&self->outer);
  assert_true(self->co.flags & VG_CO_CANCEL_ACTIVE);
  return routine_end(self, VG_COROUTINE_CANCELLED);
}

static void test_verdict_inside_protect(void **state) {
  world_t *w = *state;
  routine_t a;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_spawn(w, &a, "a", body_protected, &fake.event);
  world_run(w);
  assert_log(w, "EDEADLOCK EDEADLOCK EDEADLOCK");
  assert_int_equal(w->verdicts, 3);
}

static void test_no_verdict_while_something_is_active(void **state) {
  world_t *w = *state;
  routine_t a, b, sleeper;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0); /* DL-08 */
  routine_spawn(w, &a, "a", body_awaits, &fake.event);
  routine_init(w, &sleeper, "sleeper", body_sleeps, NULL);
  routine_spawn(w, &b, "b", body_awaits, &sleeper.co.event);
  vg_coroutine_spawn(&sleeper.co, w->s->root, 0);
  world_run(w);
  assert_log(w, "b:ok a:EDEADLOCK"); /* only once the sleeper had ended */
  assert_int_equal(w->verdicts, 1);
  assert_int_equal(w->last_verdict, 1);
}

static void test_main_chunk_is_stuck(void **state) {
  world_t *w = *state;
  routine_t main, a;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  assert_int_equal(main_await(&main, &fake.event), VG_EDEADLOCK);
  assert_int_equal(w->last_verdict, 1);
  assert_int_equal(w->stuck, 1);
  routine_spawn(w, &a, "a", body_awaits, &fake.event);
  assert_int_equal(main_await(&main, &a.co.event), VG_EDEADLOCK);
  assert_int_equal(w->last_verdict, 2);
  world_run(w);
  assert_log(w, "a:EDEADLOCK");
}

static void test_hidden_waits_are_idle(void **state) {
  world_t *w = *state;
  routine_t a;
  fake_t hidden;

  fake_init(w, &hidden, "h", FAKE_ACTIVE, VG_EVENT_HIDDEN);
  routine_spawn(w, &a, "a", body_awaits, &hidden.event);
  world_run(w);
  assert_log(w, "a:ECANCELED"); /* quietly */
  assert_int_equal(w->verdicts, 0);
  assert_int_equal(w->stuck, 0);
  assert_false(w->s->deadlocks);
}

static void test_hidden_events_mask_no_deadlock(void **state) {
  world_t *w = *state;
  routine_t idle, a;
  fake_t hidden, fake;

  fake_init(w, &hidden, "h", FAKE_ACTIVE, VG_EVENT_HIDDEN);
  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_spawn(w, &idle, "idle", body_awaits, &hidden.event);
  routine_spawn(w, &a, "a", body_recovers, &fake.event);
  world_run(w);
  /* The stuck one goes on, and only at the end the idle one is cancelled. */
  assert_log(w, "a:EDEADLOCK a idle:ECANCELED");
  assert_int_equal(w->last_verdict, 1);
}

static void test_main_chunk_leaves_idle_ones_alone(void **state) {
  world_t *w = *state;
  routine_t main, idle;
  fake_t hidden, fake;

  fake_init(w, &hidden, "h", FAKE_ACTIVE, VG_EVENT_HIDDEN);
  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  routine_spawn(w, &idle, "idle", body_awaits, &hidden.event);
  assert_int_equal(main_await(&main, &fake.event), VG_EDEADLOCK);
  assert_int_equal(idle.co.state, VG_COROUTINE_SUSPENDED);
  fake_fire(&hidden, 0, 0);
  world_run(w);
  assert_log(w, "idle:ok");
}

/* Idle inside a protection: it cannot be cancelled, so it is woken. */
static void test_idle_inside_protect(void **state) {
  world_t *w = *state;
  routine_t a;
  fake_t hidden;

  fake_init(w, &hidden, "h", FAKE_ACTIVE, VG_EVENT_HIDDEN);
  routine_spawn(w, &a, "a", body_protected, &hidden.event);
  world_run(w);
  assert_log(w, "EDEADLOCK EDEADLOCK EDEADLOCK");
  assert_int_equal(w->verdicts, 0);
}

/* A wait for nothing at all is stuck, too. */
static int body_waits_for_nothing(routine_t *self) {
  if (self->step++ == 0) {
    vg_waker_new(&self->co);
    return routine_park(self);
  }
  world_log(self->world, "%s", vg_error_name(self->error));
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void test_waiting_for_nothing(void **state) {
  world_t *w = *state;
  routine_t a;

  routine_spawn(w, &a, "a", body_waits_for_nothing, NULL);
  world_run(w);
  assert_log(w, "EDEADLOCK");
}

static void test_host_without_callbacks(void **state) {
  vg_scheduler_t *s = vg_scheduler_new(NULL, NULL, NULL, NULL);
  world_t other = {.s = s};
  routine_t a, b;
  fake_t fake;

  VG_UNUSED(state);
  assert_non_null(s);
  fake_init(&other, &fake, "f", FAKE_PASSIVE, 0);
  routine_spawn(&other, &a, "a", body_awaits, &fake.event);
  routine_spawn(&other, &b, "b", body_awaits, &a.co.event);
  assert_int_equal(vg_scheduler_run(s, NULL), 0);
  assert_log(&other, "a:EDEADLOCK b:EDEADLOCK");
  vg_scheduler_free(s, 0);
}

/* }================================================================= */


/*
** {== Shutdown
*/

static void test_shutdown(void **state) {
  world_t *w = *state;
  routine_t waiting, fresh, sleeper;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_ACTIVE, 0);
  routine_spawn(w, &waiting, "waiting", body_awaits, &fake.event);
  routine_spawn(w, &sleeper, "sleeper", body_sleeps, NULL);
  vg__drain(w->s);
  routine_spawn(w, &fresh, "fresh", body_completes, NULL);
  vg_scheduler_shutdown(w->s);
  vg_scheduler_shutdown(w->s); /* twice */
  assert_true(w->s->shutting_down);
  assert_int_equal(w->s->active, 0);
  world_run(w);
  assert_log(w, "waiting:ECANCELED");
  assert_int_equal(fresh.discarded, 1);
  assert_int_equal(sleeper.error, UV_ECANCELED);
  assert_false(w->s->shutting_down);
  routine_spawn(w, &fresh, "fresh", body_completes, NULL); /* GS-10 */
  world_run(w);
  assert_log(w, "fresh");
}

static int body_shuts_down(routine_t *self) {
  if (self->step++ == 0) {
    vg_scheduler_shutdown(self->world->s);
    world_log(self->world, "on"); /* to its next suspension point (GS-05) */
    assert_true(self->co.flags & VG_CO_CANCEL_ACTIVE);
    return routine_yield(self);
  }
  return routine_end(self, VG_COROUTINE_CANCELLED);
}

static void test_shutdown_from_inside(void **state) {
  world_t *w = *state;
  routine_t a, b;

  routine_spawn(w, &a, "a", body_shuts_down, NULL);
  routine_spawn(w, &b, "b", body_completes, NULL);
  world_run(w);
  assert_log(w, "on");
  assert_int_equal(b.discarded, 1);
}

static void test_shutdown_of_nothing(void **state) {
  world_t *w = *state;
  routine_t a;

  vg_scheduler_shutdown(w->s);
  assert_false(w->s->root->cancelled); /* later ones are not hit */
  routine_spawn(w, &a, "a", body_completes, NULL);
  world_run(w);
  assert_log(w, "a");
}

/* }================================================================= */


/*
** {== The beginning and the end
*/

static void test_new_without_memory(void **state) {
  memory_t memory = {0};
  vg_scheduler_t *s;
  size_t call = 0;

  VG_UNUSED(state);
  do {
    memory_fail_at(&memory, ++call);
    s = vg_scheduler_new(NULL, memory_alloc, &memory, NULL);
    if (s == NULL) assert_int_equal(memory.bytes, 0);
  } while (s == NULL);
  assert_int_equal(call, 4); /* scheduler, ring, scope */
  memory_fail_at(&memory, 0);
  vg_scheduler_free(s, 0);
  assert_int_equal(memory.bytes, 0);
}

static int body_waits_for_all(routine_t *self) {
  fake_t *fakes = self->data;
  size_t i;
  if (self->step++ > 0) fail();
  vg_waker_new_with_timeout(&self->co, uv_hrtime() + 1000 * MS,
                            &fakes[0].event);
  for (i = 1; i < 4; i++)
    vg_resume_when(&self->co, &fakes[i].event, 0, NULL, NULL);
  vg__block_enter(&self->co, &self->outer, VG_BLOCK_TIMEOUT);
  vg__block_limit(&self->outer, uv_hrtime() + 1000 * MS);
  return routine_park(self);
}

static int body_owns_its_event(routine_t *self) {
  if (self->step++ > 0) fail();
  vg_waker_new(&self->co);
  vg_resume_when(&self->co, self->data, 1, NULL, NULL);
  return routine_park(self);
}

static void test_free_with_everything(void **state) {
  world_t *w = *state;
  routine_t routines[3], *owner, *fresh;
  vg_timer_t timer;
  vg_alarm_t alarm = {.node = {.kind = VG_NODE_CALL, .hidden = 1}};
  vg_scope_t *scope;
  fake_t fakes[4];
  task_t task, cancelled;
  size_t i;

  for (i = 0; i < 4; i++)
    fake_init(w, &fakes[i], "f", i % 2 ? FAKE_ACTIVE : FAKE_PASSIVE, 0);
  vg_scope_new(w->s, w->s->root, &scope);
  for (i = 0; i < 3; i++) { /* waiting, watched, with limits */
    vg_scope_t *place = i == 0 ? w->s->root : scope;
    routine_init(w, &routines[i], "r", body_waits_for_all, fakes);
    assert_int_equal(vg_coroutine_spawn(&routines[i].co, place, 0), 0);
    vg_coroutine_on_switch(&routines[i].co, no_switch, NULL);
  }
  owner = routine_new(w, "owner", body_owns_its_event,
                      &fake_new(w, "owned", FAKE_ACTIVE)->event);
  vg_coroutine_spawn(&owner->co, scope, 0);
  vg_event_release(&owner->co.event);
  vg_timer_init(&timer, w->s, uv_hrtime() + 1000 * MS, 0, VG_EVENT_NO_FREE);
  assert_int_equal(vg_event_start(&timer.event), 0);
  vg__timer_arm(w->s, &alarm.node, uv_hrtime() + 1000 * MS);
  vg__drain(w->s);
  assert_int_equal(w->s->heap_count, 2 + 3 * 2);
  assert_int_equal(fakes[3].event.loop_ref_count, 3);

  fresh = routine_new(w, "fresh", body_completes, NULL); /* never run */
  vg_coroutine_spawn(&fresh->co, w->s->root, 0);
  vg_event_release(&fresh->co.event);
  task_add(w, &task, "task");
  task_add(w, &cancelled, "cancelled");
  vg_microtask_cancel(&cancelled.base);

  world_free(w);
  assert_int_equal(task.runs, 0);
  assert_int_equal(task.disposed, 1);
  assert_int_equal(cancelled.disposed, 1);
  for (i = 0; i < 4; i++) {
    assert_int_equal(fakes[i].event.callbacks.length, 0);
    assert_int_equal(fakes[i].event.callbacks.capacity, 0);
    assert_int_equal(fakes[i].event.loop_ref_count, 0);
    assert_false(fakes[i].is_armed);
  }
  for (i = 0; i < 3; i++) assert_int_equal(routines[i].runs, 1);
  assert_log(w, "");
}

/* Coroutines that wait for each other: each one's vector is freed. */
static void test_free_with_awaited_coroutines(void **state) {
  world_t *w = *state;
  routine_t *target = routine_new(w, "t", body_waits_for_nothing, NULL);
  routine_t waiters[5];
  size_t i;

  vg_coroutine_spawn(&target->co, w->s->root, 0);
  for (i = 0; i < 5; i++)
    routine_spawn(w, &waiters[i], "w", body_awaits, &target->co.event);
  vg__drain(w->s);
  vg_event_release(&target->co.event);
  world_free(w);
}

/* A host's loop: its timer handle closes when the host turns the loop. */
static void test_loop_of_a_host(void **state) {
  memory_t memory = {0};
  world_t other = {0};
  uv_loop_t loop;
  routine_t a, sleeper;

  VG_UNUSED(state);
  assert_int_equal(uv_loop_init(&loop), 0);
  other.s = vg_scheduler_new(&loop, memory_alloc, &memory, NULL);
  assert_non_null(other.s);
  assert_ptr_equal(vg_scheduler_loop(other.s), &loop);
  routine_spawn(&other, &a, "a", body_completes, NULL);
  routine_spawn(&other, &sleeper, "sleeper", body_sleeps, NULL);
  assert_int_equal(vg_scheduler_run(other.s, NULL), 0);
  assert_log(&other, "a");
  assert_int_equal(sleeper.error, 0);
  vg_scheduler_free(other.s, 0);
  assert_int_equal(memory.bytes, 0);
  assert_int_equal(uv_loop_close(&loop), UV_EBUSY); /* still closing */
  uv_run(&loop, UV_RUN_DEFAULT);                    /* frees the reactor */
  assert_int_equal(uv_loop_close(&loop), 0);
}

/* }================================================================= */


int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_microtasks_are_fifo),
      world_test(test_microtask_adds_another),
      world_test(test_microtasks_before_each_switch),
      world_test(test_microtask_twice),
      world_test(test_microtask_that_adds_itself),
      world_test(test_cancelled_microtask),
      world_test(test_cancelled_and_added_again),
      world_test(test_failing_microtask),
      world_test(test_rest_stays_queued),
      world_test(test_nested_run),
      world_test(test_empty_run),
      world_test(test_run_until),
      world_test(test_run_until_others_ended),
      world_test(test_notification_runs_nobody),
      world_test(test_drain_is_one_pass),
      world_test(test_busy_queue_polls),
      world_test(test_straight_to_the_next),
      world_test(test_two_await_each_other),
      world_test(test_awaiting_oneself),
      world_test(test_recovery_after_a_verdict),
      world_test(test_second_verdict_cancels),
      world_test(test_verdict_inside_protect),
      world_test(test_no_verdict_while_something_is_active),
      world_test(test_main_chunk_is_stuck),
      world_test(test_hidden_waits_are_idle),
      world_test(test_hidden_events_mask_no_deadlock),
      world_test(test_main_chunk_leaves_idle_ones_alone),
      world_test(test_idle_inside_protect),
      world_test(test_waiting_for_nothing),
      world_test(test_host_without_callbacks),
      world_test(test_shutdown),
      world_test(test_shutdown_from_inside),
      world_test(test_shutdown_of_nothing),
      world_test(test_new_without_memory),
      world_test(test_free_with_everything),
      world_test(test_free_with_awaited_coroutines),
      world_test(test_loop_of_a_host),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

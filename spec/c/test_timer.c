/*
** test_timer.c: the heap of due times, and the timer event (EV-04 to EV-06,
** rulings 17 to 19).
*/

#include "support.h"

/*
** {== The heap
*/

enum { NODES = 2000, CHANGES = 10000 };

static vg_alarm_t alarms[NODES];
static uint64_t last_due;
static size_t fired;
static world_t *world;

/* In order of due times, and never before its time. */
static void fire_in_order(vg_alarm_t *alarm) {
  assert_true(alarm->node.due_ns >= last_due);
  assert_true(uv_hrtime() >= alarm->node.due_ns);
  assert_int_equal(alarm->node.index, 0);
  last_due = alarm->node.due_ns;
  fired++;
}

static void begin(void **state) {
  size_t i;
  world = *state;
  memset(alarms, 0, sizeof alarms);
  for (i = 0; i < NODES; i++) {
    alarms[i].node.kind = VG_NODE_CALL;
    alarms[i].node.hidden = 1;
    alarms[i].fire = fire_in_order;
  }
  last_due = 0;
  fired = 0;
}

static void check_heap(size_t count) {
  vg_scheduler_t *s = world->s;
  uint32_t i;
  assert_int_equal(s->heap_count, count);
  for (i = 1; i <= s->heap_count; i++) {
    assert_int_equal(s->heap[i]->index, i);
    if (i > 1) assert_true(s->heap[(i + 2) / 4]->due_ns <= s->heap[i]->due_ns);
  }
}

static void arm(size_t i, uint64_t due_ns) {
  assert_int_equal(vg__timer_arm(world->s, &alarms[i].node, due_ns), 0);
}

static void test_random_arms_and_disarms(void **state) {
  uint32_t seed = 4711;
  uint64_t start = uv_hrtime() - NODES * MS;
  size_t count = 0, change, i;

  begin(state);
  for (change = 0; change < CHANGES; change++) {
    vg_timer_node_t *node;
    i = dice(&seed) % NODES;
    node = &alarms[i].node;
    if (node->index != 0 && dice(&seed) % 3 == 0) {
      vg__timer_disarm(world->s, node);
      vg__timer_disarm(world->s, node); /* twice does no harm */
      assert_int_equal(node->index, 0);
      count--;
    } else { /* armed already: moved */
      if (node->index == 0) count++;
      arm(i, start + dice(&seed) % 500 * (MS / 10));
    }
    if (change % 100 == 0) check_heap(count);
    if (change == CHANGES / 2) { /* down to a few: the heap shrinks */
      for (i = 10; i < NODES; i++) {
        if (alarms[i].node.index != 0) count--;
        vg__timer_disarm(world->s, &alarms[i].node);
      }
      check_heap(count);
      assert_true(world->s->heap_size <= 1024);
    }
  }
  check_heap(count);
  vg__timers_expire(world->s); /* all have been due for long */
  assert_int_equal(fired, count);
  check_heap(0);
  assert_int_equal(world->s->active, 0);
}

static void test_next(void **state) {
  begin(state);
  assert_int_equal(vg__timers_next(world->s), 0);
  arm(0, UINT64_MAX);
  assert_true(vg__timers_next(world->s) == UINT64_MAX);
  arm(1, UINT64_MAX - 5);
  assert_true(vg__timers_next(world->s) == UINT64_MAX - 5);
  vg__timer_disarm(world->s, &alarms[1].node);
  assert_true(vg__timers_next(world->s) == UINT64_MAX);
  arm(0, UINT64_MAX - 9); /* moved */
  assert_int_equal(world->s->heap_count, 1);
  assert_true(vg__timers_next(world->s) == UINT64_MAX - 9);
  vg__timer_disarm(world->s, &alarms[0].node);
  assert_int_equal(vg__timers_next(world->s), 0);
}

static void test_only_what_is_due(void **state) {
  uint64_t now = uv_hrtime();
  size_t i;
  begin(state);
  for (i = 0; i < 100; i++) arm(i, i % 2 ? now - i : now + 3600000 * MS + i);
  vg__timers_expire(world->s);
  assert_int_equal(fired, 50);
  check_heap(50);
  for (i = 0; i < 100; i++) vg__timer_disarm(world->s, &alarms[i].node);
  check_heap(0);
}

static void test_equal_due_times(void **state) {
  size_t i;
  begin(state);
  for (i = 0; i < 200; i++) arm(i, 1000);
  check_heap(200);
  vg__timers_expire(world->s);
  assert_int_equal(fired, 200);
}

static void test_hidden_nodes_do_not_count(void **state) {
  begin(state);
  arm(0, UINT64_MAX);
  assert_int_equal(world->s->active, 0);
  alarms[1].node.hidden = 0;
  arm(1, UINT64_MAX);
  assert_int_equal(world->s->active, 1);
  arm(1, UINT64_MAX - 1); /* moved: once all the same */
  assert_int_equal(world->s->active, 1);
  vg__timer_disarm(world->s, &alarms[1].node);
  vg__timer_disarm(world->s, &alarms[0].node);
  assert_int_equal(world->s->active, 0);
}

static void test_arming_without_memory(void **state) {
  size_t i;
  begin(state);
  memory_fail_at(&world->memory, 1);
  assert_int_equal(vg__timer_arm(world->s, &alarms[0].node, 1), UV_ENOMEM);
  assert_int_equal(alarms[0].node.index, 0);
  assert_int_equal(world->s->heap_count, 0);
  for (i = 0; i < 15; i++) arm(i, 100 - i);
  memory_fail_at(&world->memory, 1);
  assert_int_equal(vg__timer_arm(world->s, &alarms[15].node, 1), UV_ENOMEM);
  check_heap(15);
  memory_fail_at(&world->memory, 1);
  arm(3, 5); /* one that is in needs none */
  memory_fail_at(&world->memory, 0);
  check_heap(15);
  arm(15, 1);
  vg__timers_expire(world->s);
  assert_int_equal(fired, 16);
}

/* A large heap that cannot shrink stays large. */
static void test_shrinking_without_memory(void **state) {
  size_t i;
  uint32_t size;
  begin(state);
  for (i = 0; i < NODES; i++) arm(i, 1000 + i);
  size = world->s->heap_size;
  world->memory.fail_at = 1;
  world->memory.fail_all = 1;
  for (i = 0; i < NODES; i++) vg__timer_disarm(world->s, &alarms[i].node);
  assert_int_equal(world->s->heap_size, size);
  world->memory.fail_at = 0;
  arm(0, 1);
  vg__timers_expire(world->s);
  assert_int_equal(fired, 1);
}

static void rearm(vg_alarm_t *alarm) {
  fire_in_order(alarm);
  if (fired < 3) arm((size_t)(alarm - alarms), alarm->node.due_ns + 1);
  vg__timer_disarm(world->s, &alarms[7].node); /* another that is due */
}

static void test_changes_while_expiring(void **state) {
  begin(state);
  arm(0, 1000);
  arm(7, 1001);
  alarms[0].fire = rearm;
  vg__timers_expire(world->s);
  assert_int_equal(fired, 3);
  check_heap(0);
}

static void test_deadline(void **state) {
  uint64_t before = uv_hrtime(), due;
  VG_UNUSED(state);
  due = vg__deadline(0);
  assert_true(due >= before);
  assert_true(due <= uv_hrtime());
  due = vg__deadline(1e-12); /* rounded up (EV-06) */
  assert_true(due >= before + 1);
  due = vg__deadline(2.5);
  assert_true(due >= before + 2500 * MS);
  assert_true(due <= uv_hrtime() + 2500 * MS);
  assert_true(vg__deadline(1e300) == UINT64_MAX); /* saturated */
  assert_true(vg__deadline(1e9) < UINT64_MAX);
}

/* }================================================================= */


/*
** {== Sleeps and blocks: nodes of a coroutine
*/

static uint64_t base;

static int body_sleeps(routine_t *self) {
  if (self->step++ == 0) {
    self->due = base + (uint64_t)(uintptr_t)self->data;
    vg_waker_new(&self->co);
    assert_int_equal(vg__waker_timer(&self->co, self->due, 1), 0);
    return routine_park(self);
  }
  assert_int_equal(self->error, 0);
  assert_true(uv_hrtime() >= self->due); /* never early */
  world_log(self->world, "%s", self->name);
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void *us(unsigned n) { return (void *)(uintptr_t)(n * 1000u); }

static void test_sleepers_wake_in_order(void **state) {
  world_t *w = *state;
  routine_t a, b, c, d;

  base = uv_hrtime();
  routine_spawn(w, &a, "a", body_sleeps, us(9000));
  routine_spawn(w, &b, "b", body_sleeps, us(1));
  routine_spawn(w, &c, "c", body_sleeps, us(6000));
  routine_spawn(w, &d, "d", body_sleeps, us(3300));
  world_run(w);
  assert_log(w, "b d c a");
}

static void test_never_early(void **state) {
  enum { SLEEPERS = 200 };
  static routine_t routines[SLEEPERS];
  world_t *w = *state;
  uint32_t seed = 5;
  size_t i;

  base = uv_hrtime();
  for (i = 0; i < SLEEPERS; i++) /* odd fractions of a millisecond */
    routine_spawn(w, &routines[i], "s", body_sleeps,
                  us(1 + dice(&seed) % 5000));
  world_run(w);
  for (i = 0; i < SLEEPERS; i++) assert_int_equal(routines[i].runs, 2);
}

static int body_limits_itself(routine_t *self) {
  switch (self->step++) {
    case 0:
      self->due = uv_hrtime() + 2 * MS;
      vg__block_enter(&self->co, &self->outer, VG_BLOCK_TIMEOUT);
      assert_int_equal(vg__block_limit(&self->outer, self->due), 0);
      return routine_sleep(self, 1000 * MS);
    case 1:
      assert_int_equal(self->error, UV_ECANCELED);
      assert_true(uv_hrtime() >= self->due);
      assert_ptr_equal(vg__block_active(&self->co), &self->outer);
      assert_int_equal(self->world->s->heap_count, 0); /* the sleep's, too */
      vg__block_leave(&self->outer);
      return routine_sleep(self, MS);
    default:
      assert_int_equal(self->error, 0);
      return routine_end(self, VG_COROUTINE_COMPLETED);
  }
}

static void test_block_node(void **state) {
  world_t *w = *state;
  routine_t a;
  routine_spawn(w, &a, "a", body_limits_itself, NULL);
  world_run(w);
  assert_int_equal(a.co.state, VG_COROUTINE_COMPLETED);
}

/* Protection whose time is over lets the cancellation through. */
static int body_protects_itself(routine_t *self) {
  if (self->step++ == 0) {
    vg__block_enter(&self->co, &self->outer, VG_BLOCK_PROTECT);
    assert_int_equal(vg__block_limit(&self->outer, uv_hrtime() + 2 * MS), 0);
    vg_coroutine_cancel(&self->co);
    return routine_sleep(self, 1000 * MS);
  }
  assert_int_equal(self->error, UV_ECANCELED);
  vg__block_leave(&self->outer);
  return routine_end(self, VG_COROUTINE_CANCELLED);
}

static void test_protect_node(void **state) {
  world_t *w = *state;
  routine_t a;
  routine_spawn(w, &a, "a", body_protects_itself, NULL);
  world_run(w);
  assert_int_equal(a.co.state, VG_COROUTINE_CANCELLED);
}

static void test_waker_node(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  uint64_t due = uv_hrtime() + 3 * MS;

  routine_main(w, &main);
  fake_init(w, &fake, "f", FAKE_ACTIVE, 0);
  vg_waker_new_with_timeout(&main.co, due, NULL);
  vg_resume_when(&main.co, &fake.event, 0, NULL, NULL);
  assert_int_equal(main_park(&main), UV_ETIMEDOUT);
  assert_true(uv_hrtime() >= due);
  assert_int_equal(fake.stops, 1);
  assert_int_equal(w->s->active, 0);
}

/* Due already: one poll of the reactor, then it fires. */
static void test_due_at_once(void **state) {
  world_t *w = *state;
  routine_t main;
  routine_main(w, &main);
  vg_waker_new_with_timeout(&main.co, 1, NULL);
  assert_int_equal(vg_waker_park(&main.co), 1);
  assert_int_equal(vg_scheduler_run(w->s, &main.co), 0);
  assert_int_equal(main.co.waker.error, UV_ETIMEDOUT);
}

/* }================================================================= */


/*
** {== The timer event
*/

static int seen_closed;

static void look_at_timer(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  seen_closed = (event->flags & VG_EVENT_CLOSED) != 0;
  assert_int_equal(vg_event_start(event), 0); /* it cannot start again */
  assert_int_equal(event->loop_ref_count, 0);
}

static void test_one_shot(void **state) {
  world_t *w = *state;
  uint64_t due = uv_hrtime() + 2 * MS;
  vg_timer_t timer;
  listener_t listener;

  vg_timer_init(&timer, w->s, due, 0, VG_EVENT_NO_FREE); /* EV-04 */
  listener_init(&listener);
  listener.act = look_at_timer;
  assert_int_equal(vg_event_add_callback(&timer.event, &listener.base), 0);
  assert_int_equal(w->s->heap_count, 0); /* not armed before */
  vg_event_start(&timer.event);
  vg_event_start(&timer.event);
  assert_int_equal(w->s->heap_count, 1);
  assert_int_equal(w->s->active, 1);
  world_run(w);
  assert_true(uv_hrtime() >= due);
  assert_int_equal(listener.calls, 1);
  assert_int_equal(listener.value, 1);
  assert_true(seen_closed);
  vg_event_del_callback(&timer.event, &listener.base);
}

static void test_unused_timer_keeps_nothing_alive(void **state) {
  world_t *w = *state;
  vg_timer_t timer;
  vg_timer_init(&timer, w->s, uv_hrtime() + 3600000 * MS, 0,
                VG_EVENT_NO_FREE); /* ruling 17 */
  world_run(w);
}

/* Who waits late finds it fired: the time is fixed at creation. */
static void test_late_waiters(void **state) {
  world_t *w = *state;
  vg_timer_t timer;
  routine_t a, b;

  vg_timer_init(&timer, w->s, uv_hrtime(), 0, VG_EVENT_NO_FREE);
  assert_int_equal(vg_event_replay(&timer.event, NULL), 1);
  routine_spawn(w, &a, "a", body_awaits, &timer.event);
  routine_spawn(w, &b, "b", body_awaits, &timer.event);
  world_run(w);
  assert_int_equal(a.runs, 1);
  assert_int_equal(b.runs, 1);
  assert_log(w, "a:ok b:ok");

  vg_timer_init(&timer, w->s, uv_hrtime() + MS, 0, VG_EVENT_NO_FREE);
  assert_int_equal(vg_event_replay(&timer.event, NULL), 0);
  routine_spawn(w, &a, "a", body_awaits, &timer.event);
  world_run(w);
  assert_int_equal(a.runs, 2);
  routine_spawn(w, &b, "b", body_awaits, &timer.event);
  world_run(w); /* it has fired and is closed: the outcome stays */
  assert_int_equal(b.runs, 1);
  assert_log(w, "a:ok b:ok");
}

static void test_closed_timer(void **state) {
  world_t *w = *state;
  vg_timer_t timer;
  routine_t a;
  listener_t listener;
  char text[64];

  vg_timer_init(&timer, w->s, uv_hrtime() + 1000 * MS, 0, VG_EVENT_NO_FREE);
  routine_spawn(w, &a, "a", body_awaits, &timer.event);
  vg__drain(w->s);
  assert_int_equal(w->s->active, 1);
  vg_timer_close(&timer);
  vg_timer_close(&timer);
  assert_int_equal(w->s->active, 0);
  assert_int_equal(w->s->heap_count, 0);
  world_run(w);
  assert_log(w, "a:ECLOSED");
  listener_init(&listener);
  assert_int_equal(vg_event_add_callback(&timer.event, &listener.base),
                   VG_ECLOSED);
  vg_event_info(&timer.event, text, sizeof text);
  assert_string_equal(text, "timer (closed)");
}

static void test_timer_from_the_allocator(void **state) {
  world_t *w = *state;
  vg_timer_t *timer = vg__alloc(w->s, sizeof *timer);
  routine_t a;

  assert_non_null(timer);
  vg_timer_init(timer, w->s, uv_hrtime() + 1000 * MS, 0, 0);
  vg_event_start(&timer->event);
  vg_event_release(&timer->event); /* armed: disarmed, then freed */
  assert_int_equal(w->s->active, 0);
  assert_int_equal(w->s->heap_count, 0);
  timer = vg__alloc(w->s, sizeof *timer);
  assert_non_null(timer);
  vg_timer_init(timer, w->s, uv_hrtime() + MS, 0, 0);
  routine_spawn(w, &a, "a", body_awaits, &timer->event);
  vg__drain(w->s);
  a.co.waker.first.flags |= VG_WAIT_OWNED; /* the wait is its last owner */
  world_run(w);
  assert_log(w, "a:ok");
}

static void test_timer_without_memory(void **state) {
  world_t *w = *state;
  vg_timer_t timer;
  routine_t main;

  routine_main(w, &main);
  vg_timer_init(&timer, w->s, uv_hrtime() + MS, 0, VG_EVENT_NO_FREE);
  vg_waker_new(&main.co);
  vg_resume_when(&main.co, &timer.event, 0, NULL, NULL);
  memory_fail_at(&w->memory, 1);
  assert_int_equal(vg_waker_park(&main.co), UV_ENOMEM);
  assert_int_equal(timer.event.callbacks.length, 0);
  assert_int_equal(w->s->active, 0);
}

/* }================================================================= */


/*
** {== Periodic timers.  The clock is not waited for: due times in the past
** stand for time that has passed.
*/

static void test_ticks_keep_their_phase(void **state) {
  world_t *w = *state;
  vg_timer_t timer;

  vg_timer_init(&timer, w->s, 1000, 100, VG_EVENT_NO_FREE);
  assert_int_equal(vg_timer_ticks(&timer, 999), 0);
  assert_int_equal(timer.due_ns, 1000);
  assert_int_equal(vg_timer_ticks(&timer, 1000), 1);
  assert_int_equal(timer.due_ns, 1100);
  assert_int_equal(vg_timer_ticks(&timer, 1050), 0);
  assert_int_equal(vg_timer_ticks(&timer, 1399), 3);
  assert_int_equal(timer.due_ns, 1400);
  assert_int_equal(vg_timer_ticks(&timer, 1400), 1);
  timer.period_ns = 0; /* one-shot: it has passed, or not */
  assert_int_equal(vg_timer_ticks(&timer, 1499), 0);
  assert_int_equal(vg_timer_ticks(&timer, 1500), 1);
  assert_int_equal(timer.due_ns, 1500);
}

static void test_periodic(void **state) {
  world_t *w = *state;
  vg_timer_t timer;
  listener_t listener;
  uint64_t phase;

  vg_timer_init(&timer, w->s, uv_hrtime() + MS, MS, VG_EVENT_NO_FREE);
  phase = timer.due_ns % MS;
  listener_init(&listener);
  vg_event_add_callback(&timer.event, &listener.base);
  vg_event_start(&timer.event);
  while (listener.calls < 5) {
    vg__reactor_turn(w->s->reactor, 1);
    assert_int_equal(w->s->active, 1); /* it stays armed, counted once */
    assert_int_equal(timer.due_ns % MS, phase);
    if (listener.calls > 0) assert_true(listener.value >= 1);
  }
  assert_false(timer.event.flags & VG_EVENT_CLOSED);
  vg_event_stop(&timer.event);
  assert_int_equal(w->s->heap_count, 0);
  assert_int_equal(w->s->active, 0);
  vg_event_del_callback(&timer.event, &listener.base);
}

static int body_ticks(routine_t *self) {
  if (self->step > 0) world_log(self->world, "%s", self->name);
  if (self->step++ < 3) return routine_await(self, self->data);
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void test_waiters_of_a_periodic_timer(void **state) {
  world_t *w = *state;
  vg_timer_t timer;
  routine_t a;

  vg_timer_init(&timer, w->s, uv_hrtime() + 3 * MS, 3600000 * MS,
                VG_EVENT_NO_FREE);
  routine_spawn(w, &a, "a", body_awaits, &timer.event);
  world_run(w); /* armed while somebody waits, and only then */
  assert_log(w, "a:ok");
  assert_int_equal(a.value, 1);
  timer.due_ns = uv_hrtime() - 1; /* a tick that nobody has taken */
  assert_int_equal(vg_event_replay(&timer.event, NULL), 1);
  timer.due_ns = uv_hrtime() + MS;
  timer.period_ns = MS;
  routine_spawn(w, &a, "a", body_ticks, &timer.event);
  world_run(w);
  assert_log(w, "a a a");
}

/* A tick that one waiter took late is a tick for the others, too. */
static void test_tick_taken_before_it_was_told(void **state) {
  world_t *w = *state;
  vg_timer_t timer;
  routine_t main;

  routine_main(w, &main);
  vg_timer_init(&timer, w->s, uv_hrtime() + MS, 3600000 * MS, VG_EVENT_NO_FREE);
  vg_waker_new(&main.co);
  vg_resume_when(&main.co, &timer.event, 0, NULL, NULL);
  assert_int_equal(vg_waker_park(&main.co), 1);
  while (uv_hrtime() < timer.due_ns) continue;
  assert_int_equal(vg_timer_ticks(&timer, uv_hrtime()), 1); /* another's */
  assert_int_equal(vg_scheduler_run(w->s, &main.co), 0);
  assert_int_equal(main.co.waker.error, 0);
  assert_int_equal(main.co.waker.value, 1);
  assert_int_equal(w->s->heap_count, 0);
}

static void test_info(void **state) {
  world_t *w = *state;
  vg_timer_t timer;
  char text[64];

  vg_timer_init(&timer, w->s, 1, 0, VG_EVENT_NO_FREE);
  vg_event_info(&timer.event, text, sizeof text);
  assert_string_equal(text, "timer (in 0.000s)");
  vg_timer_init(&timer, w->s, 1, 500 * MS, VG_EVENT_NO_FREE);
  vg_event_info(&timer.event, text, sizeof text);
  assert_string_equal(text, "timer (every 0.5s, next in 0.000s)");
}

/* }================================================================= */


/* A node that becomes due between the last look at the clock and uv_run's own
** is seen, although a descriptor is watched, which may stay silent for ever.
** libuv's clock has whole milliseconds: it happens just before one is full. */
static void test_due_while_the_turn_begins(void **state) {
  world_t *w = *state;
  vg_trigger_t *t;
  int i;

  assert_int_equal(vg_trigger_new(w->s, &t), 0);
  vg_event_start((vg_event_t *)t);
  for (i = 0; i < 200; i++) {
    uint64_t full = (uv_hrtime() / MS + 1) * MS;
    vg_timer_t timer;
    vg_timer_init(&timer, w->s, full - 200, 0, VG_EVENT_NO_FREE);
    vg_event_start(&timer.event);
    while (uv_hrtime() < full - 600 - (uint64_t)(i % 20) * 100) continue;
    vg__reactor_turn(w->s->reactor, 1);
    while (!(timer.event.flags & VG_EVENT_CLOSED))
      vg__reactor_turn(w->s->reactor, 1);
    vg_event_release(&timer.event);
  }
  vg_event_stop((vg_event_t *)t);
  vg_event_release((vg_event_t *)t);
  vg__reactor_turn(w->s->reactor, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_random_arms_and_disarms),
      world_test(test_next),
      world_test(test_only_what_is_due),
      world_test(test_equal_due_times),
      world_test(test_hidden_nodes_do_not_count),
      world_test(test_arming_without_memory),
      world_test(test_shrinking_without_memory),
      world_test(test_changes_while_expiring),
      world_test(test_deadline),
      world_test(test_sleepers_wake_in_order),
      world_test(test_never_early),
      world_test(test_block_node),
      world_test(test_protect_node),
      world_test(test_waker_node),
      world_test(test_due_at_once),
      world_test(test_one_shot),
      world_test(test_unused_timer_keeps_nothing_alive),
      world_test(test_late_waiters),
      world_test(test_closed_timer),
      world_test(test_timer_from_the_allocator),
      world_test(test_timer_without_memory),
      world_test(test_ticks_keep_their_phase),
      world_test(test_periodic),
      world_test(test_waiters_of_a_periodic_timer),
      world_test(test_tick_taken_before_it_was_told),
      world_test(test_info),
      world_test(test_due_while_the_turn_begins),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

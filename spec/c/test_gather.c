/*
** test_gather.c: one event over many: all of them, or enough of them (AW).
*/

#include "support.h"

enum { MOST = 64 };

static world_t *world;
static vg_gather_t gather;
static vg_gather_member_t members[MOST];
static uint32_t order[MOST];
static fake_t fakes[MOST];
static routine_t waiter;

/* A gather over `count` fakes of one kind. */
static void begin(void **state, uint32_t count, uint32_t need, int fail_fast,
                  fake_kind_t kind) {
  uint32_t i;
  world = *state;
  vg_gather_init(&gather, world->s, VG_EVENT_LUA_OBJECT);
  gather.count = count;
  gather.need = need;
  gather.fail_fast = fail_fast;
  gather.members = members;
  gather.order = order;
  for (i = 0; i < count; i++) {
    fake_init(world, &fakes[i], "f", kind, 0);
    fakes[i].value = (intptr_t)i + 100;
    vg_gather_member(&gather, i, &fakes[i].event);
  }
  routine_main(world, &waiter);
}

/* Waits for it as the main chunk does; 1: parked. */
static int wait_for_it(void) {
  vg_waker_new(&waiter.co);
  assert_int_equal(vg_resume_when(&waiter.co, &gather.event, 0, NULL, NULL), 0);
  return vg_waker_park(&waiter.co);
}

static void expect_waiting(void) {
  assert_int_equal(waiter.co.waker.status, VG_WAKER_WAITING);
}

/* It is over, and holds on to nothing. */
static void expect_done(uint32_t settled, uint32_t succeeded) {
  uint32_t i;
  assert_true(vg_gather_done(&gather));
  assert_int_equal(gather.settled, settled);
  assert_int_equal(gather.succeeded, succeeded);
  for (i = 0; i < gather.count; i++) {
    assert_int_equal(fakes[i].event.callbacks.length, 0);
    assert_int_equal(fakes[i].event.loop_ref_count, 0);
    assert_false(members[i].subscribed);
    assert_false(members[i].started);
  }
  assert_int_equal(gather.event.loop_ref_count, 0);
  assert_int_equal(gather.event.callbacks.length, 0);
  assert_int_equal(world->s->active, 0);
  if (waiter.co.waker.status == VG_WAKER_QUEUED)
    assert_int_equal(vg_scheduler_run(world->s, &waiter.co), 0);
  assert_int_equal(waiter.co.waker.status, VG_WAKER_RESULT);
  assert_int_equal(waiter.co.waker.error, 0);
}


static void test_all(void **state) {
  uint32_t i;
  begin(state, 3, 3, 0, FAKE_ACTIVE);
  assert_int_equal(fakes[0].event.callbacks.length, 0);
  assert_int_equal(wait_for_it(), 1);
  assert_int_equal(world->s->active, 3); /* the members; not itself */
  for (i = 0; i < 3; i++) assert_int_equal(fakes[i].starts, 1);
  fake_fire(&fakes[2], 0, 7);
  assert_int_equal(fakes[2].stops, 1);
  assert_int_equal(world->s->active, 2);
  expect_waiting();
  fake_fire(&fakes[0], 0, 8);
  fake_fire(&fakes[0], 0, 99); /* settled before: nobody listens */
  expect_waiting();
  fake_fire(&fakes[1], 0, 9);
  expect_done(3, 3);
  assert_int_equal(order[0], 2); /* in the order of settling */
  assert_int_equal(order[1], 0);
  assert_int_equal(order[2], 1);
  assert_int_equal(members[0].value, 8);
  assert_int_equal(members[2].value, 7);
  for (i = 0; i < 3; i++)
    assert_true(fakes[i].event.flags & VG_EVENT_RESULT_USED);
}

static void test_all_with_failures(void **state) {
  begin(state, 3, 3, 0, FAKE_PASSIVE);
  assert_int_equal(wait_for_it(), 1);
  fake_fire(&fakes[1], UV_EIO, 0);
  assert_true(fakes[1].event.flags & VG_EVENT_ERROR_HANDLED);
  assert_true(fakes[1].event.flags & VG_EVENT_ERROR_CAUGHT);
  fake_fire(&fakes[0], 0, 0);
  expect_waiting(); /* it goes on to the last one */
  fake_fire(&fakes[2], 0, 0);
  expect_done(3, 2);
  assert_int_equal(members[1].status, UV_EIO);
}

static void test_fail_fast(void **state) {
  begin(state, 3, 3, 1, FAKE_ACTIVE);
  assert_int_equal(wait_for_it(), 1);
  fake_fire(&fakes[0], 0, 0);
  expect_waiting();
  fake_fire(&fakes[2], UV_EPIPE, 0);
  expect_done(2, 1);
  assert_int_equal(order[1], 2);
  assert_false(members[1].settled);
  assert_false(fakes[1].event.flags & VG_EVENT_RESULT_USED);
  fake_fire(&fakes[1], UV_EIO, 0); /* its error is not this wait's */
  assert_false(fakes[1].event.flags & VG_EVENT_ERROR_CAUGHT);
}

static void test_enough(void **state) {
  begin(state, 4, 2, 0, FAKE_ACTIVE);
  assert_int_equal(wait_for_it(), 1);
  fake_fire(&fakes[3], UV_EIO, 0); /* a failure is not a success */
  fake_fire(&fakes[1], 0, 0);
  expect_waiting();
  fake_fire(&fakes[0], 0, 0);
  expect_done(3, 2);
  assert_false(members[2].settled);
}

static void test_not_enough_are_left(void **state) {
  begin(state, 2, 1, 0, FAKE_PASSIVE);
  assert_int_equal(wait_for_it(), 1);
  fake_fire(&fakes[0], UV_EIO, 0);
  fake_fire(&fakes[1], UV_EPIPE, 0);
  expect_done(2, 0);
}

static void test_more_than_there_are(void **state) {
  begin(state, 2, 5, 0, FAKE_PASSIVE);
  assert_int_equal(wait_for_it(), 1);
  fake_fire(&fakes[0], 0, 0);
  expect_waiting();
  fake_fire(&fakes[1], 0, 0);
  expect_done(2, 2);
}

static void test_none_needed(void **state) {
  begin(state, 3, 0, 0, FAKE_ACTIVE);
  assert_true(vg_gather_done(&gather));
  assert_int_equal(wait_for_it(), 0);
  assert_int_equal(fakes[0].starts, 0);
  begin(state, 0, 0, 0, FAKE_ACTIVE);
  assert_int_equal(wait_for_it(), 0);
  begin(state, 0, 3, 1, FAKE_ACTIVE); /* of an empty list */
  assert_int_equal(wait_for_it(), 0);
  expect_done(0, 0);
}

static void test_same_event_twice(void **state) {
  begin(state, 3, 3, 0, FAKE_ACTIVE);
  vg_gather_member(&gather, 2, &fakes[0].event);
  assert_int_equal(wait_for_it(), 1);
  assert_int_equal(fakes[0].event.callbacks.length, 2);
  assert_int_equal(fakes[0].starts, 1);
  fake_fire(&fakes[0], 0, 3);
  assert_int_equal(gather.settled, 2);
  assert_int_equal(fakes[0].stops, 1);
  fake_fire(&fakes[1], 0, 0);
  expect_done(3, 3);
  assert_int_equal(members[0].value, 3);
  assert_int_equal(members[2].value, 3);
}

/* Enough with the first of two notifications of one event. */
static void test_same_event_ends_it(void **state) {
  begin(state, 2, 1, 0, FAKE_ACTIVE);
  vg_gather_member(&gather, 1, &fakes[0].event);
  assert_int_equal(wait_for_it(), 1);
  fake_fire(&fakes[0], 0, 3);
  expect_done(1, 1);
}


static void test_stored_outcomes(void **state) {
  begin(state, 3, 3, 0, FAKE_STORED);
  fakes[0].stored = fakes[2].stored = 1;
  fakes[2].status = UV_EIO;
  assert_int_equal(wait_for_it(), 1);
  assert_int_equal(gather.settled, 2);
  assert_int_equal(fakes[0].starts, 0); /* nothing to start */
  assert_int_equal(fakes[1].starts, 1);
  assert_int_equal(members[0].value, 100);
  fake_fire(&fakes[1], 0, 0);
  expect_done(3, 2);
}

static void test_stored_outcomes_are_enough(void **state) {
  begin(state, 4, 2, 0, FAKE_STORED);
  fakes[1].stored = fakes[2].stored = 1;
  assert_int_equal(wait_for_it(), 0); /* no switch */
  expect_done(2, 2);
  assert_int_equal(fakes[0].starts, 1); /* before it was known */
  assert_int_equal(fakes[3].starts, 0);
}

static void test_ready_members(void **state) {
  begin(state, 3, 2, 0, FAKE_STORED);
  fakes[1].stored = 1;
  vg_gather_ready(&gather, 1); /* by its stored outcome */
  assert_int_equal(gather.settled, 1);
  assert_int_equal(members[1].value, 101);
  vg_gather_ready(&gather, 1); /* twice counts once */
  assert_int_equal(gather.settled, 1);
  assert_int_equal(wait_for_it(), 1);
  assert_int_equal(fakes[1].event.callbacks.length, 0);
  fake_fire(&fakes[0], 0, 0);
  expect_done(2, 2);

  begin(state, 2, 2, 0, FAKE_PASSIVE);
  vg_gather_ready(&gather, 0); /* by what the binding knows */
  assert_int_equal(members[0].status, 0);
  fakes[1].event.flags |= VG_EVENT_CLOSED;
  vg_gather_ready(&gather, 1);
  assert_int_equal(members[1].status, VG_ECLOSED);
  assert_int_equal(wait_for_it(), 0);
  expect_done(2, 1);
}

static void test_closed_member(void **state) {
  begin(state, 2, 2, 0, FAKE_ACTIVE);
  fakes[0].event.flags |= VG_EVENT_CLOSED;
  assert_int_equal(wait_for_it(), 1); /* a failure of that member */
  assert_int_equal(members[0].status, VG_ECLOSED);
  assert_int_equal(fakes[0].starts, 0);
  fake_fire(&fakes[1], 0, 0);
  expect_done(2, 1);
}

static void test_members_that_fire_in_start(void **state) {
  int how;
  for (how = FIRE_NOTIFY; how <= FIRE_CLOSE; how++) {
    begin(state, 3, 3, 0, FAKE_ACTIVE);
    fakes[0].start_fires = fakes[1].start_fires = how;
    assert_int_equal(wait_for_it(), 1);
    assert_int_equal(gather.settled, 2);
    assert_int_equal(fakes[0].event.loop_ref_count, 0);
    assert_int_equal(world->s->active, 1);
    fake_fire(&fakes[2], 0, 0);
    expect_done(3, 3);

    begin(state, 3, 2, 0, FAKE_ACTIVE);
    fakes[1].start_fires = fakes[2].start_fires = how;
    assert_int_equal(wait_for_it(), 0);
    expect_done(2, 2);
    assert_int_equal(fakes[0].stops, 1);
  }
}

static void fire_the_others(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  VG_UNUSED(event);
  fake_fire(&fakes[0], 0, 0);
  fake_fire(&fakes[1], 0, 0);
}

/* Enough, while it is being started: what fires before it is stopped does not
** count any more. */
static void test_more_than_enough_in_start(void **state) {
  listener_t listener;
  begin(state, 3, 1, 0, FAKE_ACTIVE);
  listener_init(&listener);
  listener.act = fire_the_others;
  vg_event_add_callback(&fakes[2].event, &listener.base);
  fakes[2].start_fires = FIRE_NOTIFY;
  assert_int_equal(wait_for_it(), 0);
  vg_event_del_callback(&fakes[2].event, &listener.base);
  expect_done(1, 1);
  assert_int_equal(order[0], 0);
}

static void test_member_that_cannot_start(void **state) {
  begin(state, 3, 3, 0, FAKE_ACTIVE);
  fakes[1].start_error = UV_EBADF; /* a failure of that member */
  assert_int_equal(wait_for_it(), 1);
  assert_int_equal(members[1].status, UV_EBADF);
  assert_int_equal(fakes[1].event.callbacks.length, 0);
  fake_fire(&fakes[0], 0, 0);
  fake_fire(&fakes[2], 0, 0);
  expect_done(3, 2);

  begin(state, 3, 3, 1, FAKE_ACTIVE);
  fakes[1].start_error = UV_EBADF;
  assert_int_equal(wait_for_it(), 0); /* and at once, if it is to fail fast */
  expect_done(1, 0);
  assert_int_equal(fakes[2].starts, 0);
}

static void test_out_of_memory(void **state) {
  listener_t listener;
  begin(state, 3, 3, 0, FAKE_ACTIVE);
  listener_init(&listener);
  vg_event_add_callback(&fakes[1].event, &listener.base);
  memory_fail_at(&world->memory, 1);          /* its second subscriber */
  assert_int_equal(wait_for_it(), UV_ENOMEM); /* the wait's, not a member's */
  assert_int_equal(gather.settled, 0);
  assert_int_equal(fakes[0].stops, 1);
  assert_int_equal(fakes[0].event.callbacks.length, 0);
  assert_int_equal(fakes[1].event.callbacks.length, 1);
  assert_int_equal(fakes[2].starts, 0);
  assert_int_equal(world->s->active, 0);
  vg_event_del_callback(&fakes[1].event, &listener.base);
  assert_int_equal(wait_for_it(), 1); /* and again, with memory */
  fake_fire(&fakes[0], 0, 0);
  fake_fire(&fakes[1], 0, 0);
  fake_fire(&fakes[2], 0, 0);
  expect_done(3, 3);
}


/* A token ends the wait: every member is left, none is marked. */
static void test_given_up(void **state) {
  fake_t token;
  uint32_t i;
  begin(state, 3, 3, 0, FAKE_ACTIVE);
  fake_init(world, &token, "token", FAKE_PASSIVE, 0);
  vg_waker_new_with_timeout(&waiter.co, uv_hrtime() + 1000 * MS, &token.event);
  vg_resume_when(&waiter.co, &gather.event, 0, NULL, NULL);
  assert_int_equal(vg_waker_park(&waiter.co), 1);
  fake_fire(&fakes[1], 0, 0);
  fake_fire(&token, 0, 0);
  assert_int_equal(world->s->active, 0);
  for (i = 0; i < 3; i++) {
    assert_int_equal(fakes[i].event.callbacks.length, 0);
    assert_int_equal(fakes[i].stops, 1);
  }
  assert_int_equal(vg_scheduler_run(world->s, &waiter.co), 0);
  assert_int_equal(waiter.co.waker.error, VG_ETOKEN);
  assert_false(vg_gather_done(&gather));
  assert_int_equal(gather.settled, 1);
}

/* The token is a member, too (AW-07): whichever is told first decides, and
** nothing is left subscribed. */
static void test_token_is_a_member(void **state) {
  begin(state, 2, 2, 0, FAKE_ACTIVE);
  vg_waker_new_with_timeout(&waiter.co, 0, &fakes[0].event);
  vg_resume_when(&waiter.co, &gather.event, 0, NULL, NULL);
  assert_int_equal(vg_waker_park(&waiter.co), 1);
  assert_int_equal(fakes[0].event.loop_ref_count, 2);
  fake_fire(&fakes[0], 0, 0);
  assert_int_equal(vg_scheduler_run(world->s, &waiter.co), 0);
  assert_int_equal(waiter.co.waker.error, VG_ETOKEN);
  assert_int_equal(fakes[0].event.callbacks.length, 0);
  assert_int_equal(fakes[1].event.callbacks.length, 0);
  assert_int_equal(world->s->active, 0);
}

static int body_waits(routine_t *self) {
  return self->step++ == 0 ? routine_await(self, &gather.event)
                           : routine_end(self, VG_COROUTINE_CANCELLED);
}

static void test_cancelled_while_waiting(void **state) {
  routine_t a;
  begin(state, 2, 2, 0, FAKE_ACTIVE);
  routine_spawn(world, &a, "a", body_waits, NULL);
  vg__drain(world->s);
  assert_int_equal(world->s->active, 2);
  vg_coroutine_cancel(&a.co);
  assert_int_equal(world->s->active, 0);
  assert_int_equal(fakes[0].event.callbacks.length, 0);
  world_run(world);
  assert_int_equal(a.error, UV_ECANCELED);
}

static void test_freed_while_waiting(void **state) {
  routine_t a;
  begin(state, 2, 2, 0, FAKE_ACTIVE);
  routine_spawn(world, &a, "a", body_waits, NULL);
  vg__drain(world->s);
  world_free(world);
  assert_int_equal(fakes[0].event.callbacks.length, 0);
  assert_int_equal(fakes[1].stops, 1);
}

static void test_coroutines_as_members(void **state) {
  routine_t a, b, *targets[2] = {&a, &b};
  uint32_t i;
  begin(state, 2, 2, 0, FAKE_PASSIVE);
  routine_spawn(world, &a, "a", body_completes, NULL);
  routine_spawn(world, &b, "b", body_completes, NULL);
  for (i = 0; i < 2; i++) vg_gather_member(&gather, i, &targets[i]->co.event);
  vg_coroutine_cancel(&b.co);
  assert_int_equal(wait_for_it(), 1);
  assert_int_equal(vg_scheduler_run(world->s, &waiter.co), 0);
  assert_log(world, "a");
  assert_int_equal(gather.succeeded, 1);
  assert_int_equal(members[1].status, VG_EFAILED);
  assert_int_equal(world->unhandled, 0);
}

/* One made for this wait is cancelled when the wait is over. */
static void test_owned_coroutines(void **state) {
  routine_t a, b;
  fake_t never;
  begin(state, 3, 1, 0, FAKE_PASSIVE);
  fake_init(world, &never, "n", FAKE_PASSIVE, 0);
  routine_spawn(world, &a, "a", body_awaits, &never.event);
  routine_spawn(world, &b, "b", body_awaits, &never.event);
  vg_gather_member(&gather, 0, &a.co.event);
  vg_gather_member(&gather, 1, &b.co.event);
  members[0].owned = 1;
  assert_int_equal(wait_for_it(), 1);
  vg__drain(world->s);
  fake_fire(&fakes[2], 0, 0);
  assert_true(a.co.flags & VG_CO_CANCEL_REQUESTED);
  assert_false(b.co.flags & VG_CO_CANCEL_REQUESTED); /* a loser runs on */
  assert_int_equal(vg_scheduler_run(world->s, &waiter.co), 0);
  fake_fire(&never, 0, 0);
  world_run(world);
  assert_log(world, "a:ECANCELED b:ok");
}


static void test_many(void **state) {
  uint32_t i;
  begin(state, MOST, MOST, 0, FAKE_ACTIVE);
  assert_int_equal(wait_for_it(), 1);
  assert_int_equal(world->s->active, MOST);
  for (i = 0; i < MOST; i++) fake_fire(&fakes[(i * 37) % MOST], 0, 0);
  expect_done(MOST, MOST);
  for (i = 0; i < MOST; i++) assert_int_equal(order[i], (i * 37) % MOST);
}

static void test_info(void **state) {
  char text[128];
  begin(state, 3, 2, 0, FAKE_PASSIVE);
  fakes[0].name = "one";
  fakes[1].name = "two";
  vg_event_info(&gather.event, text, sizeof text);
  assert_string_equal(text, "2 of 3 (0 settled), first: fake one");
  vg_gather_ready(&gather, 0);
  vg_event_info(&gather.event, text, sizeof text);
  assert_string_equal(text, "2 of 3 (1 settled), first: fake two");
  vg_gather_ready(&gather, 1);
  assert_true(vg_gather_done(&gather));
}

static void test_dispose_leaves(void **state) {
  begin(state, 2, 2, 0, FAKE_ACTIVE);
  gather.event.flags &= ~(uint32_t)VG_EVENT_LUA_OBJECT;
  gather.event.ref_count = 1;
  assert_int_equal(vg_event_start(&gather.event), 0);
  assert_int_equal(world->s->active, 2);
  vg_event_release(&gather.event);
  assert_int_equal(world->s->active, 0);
  assert_int_equal(fakes[0].event.callbacks.length, 0);
}


int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_all),
      world_test(test_all_with_failures),
      world_test(test_fail_fast),
      world_test(test_enough),
      world_test(test_not_enough_are_left),
      world_test(test_more_than_there_are),
      world_test(test_none_needed),
      world_test(test_same_event_twice),
      world_test(test_same_event_ends_it),
      world_test(test_stored_outcomes),
      world_test(test_stored_outcomes_are_enough),
      world_test(test_ready_members),
      world_test(test_closed_member),
      world_test(test_members_that_fire_in_start),
      world_test(test_more_than_enough_in_start),
      world_test(test_member_that_cannot_start),
      world_test(test_out_of_memory),
      world_test(test_given_up),
      world_test(test_token_is_a_member),
      world_test(test_cancelled_while_waiting),
      world_test(test_freed_while_waiting),
      world_test(test_coroutines_as_members),
      world_test(test_owned_coroutines),
      world_test(test_many),
      world_test(test_info),
      world_test(test_dispose_leaves),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
** test_waker.c: one wait, from subscription to outcome (WK).
**
** Most tests wait as the main chunk does, so that each step can be looked at:
** subscribe, park, fire, run.
*/

#include <stdlib.h>

#include "support.h"

static vg_waker_t *waker_of(routine_t *r) { return &r->co.waker; }

static void expect_status(routine_t *r, vg_waker_status_t status) {
  assert_int_equal(waker_of(r)->status, status);
}

static void subscribe(routine_t *r, fake_t *fake) {
  assert_int_equal(vg_resume_when(&r->co, &fake->event, 0, NULL, NULL), 0);
}

/* Nobody listens, nobody started it. */
static void expect_quiet(fake_t *fake) {
  assert_int_equal(fake->event.callbacks.length, 0);
  assert_int_equal(fake->event.loop_ref_count, 0);
  assert_false(fake->is_armed);
}

static void run_main(routine_t *main) {
  assert_int_equal(vg_scheduler_run(main->world->s, &main->co), 0);
  expect_status(main, VG_WAKER_RESULT);
}


static void test_five_states(void **state) {
  world_t *w = *state;
  routine_t main, other;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  routine_main(w, &main);
  vg_waker_define(waker_of(&main));
  expect_status(&main, VG_WAKER_NO_STATUS);
  vg_waker_new(&main.co);
  expect_status(&main, VG_WAKER_NO_STATUS);
  subscribe(&main, &fake);
  expect_status(&main, VG_WAKER_WAITING);
  assert_int_equal(main.co.state, VG_COROUTINE_RUNNING);
  assert_int_equal(vg_waker_park(&main.co), 1);
  expect_status(&main, VG_WAKER_WAITING);
  assert_int_equal(main.co.state, VG_COROUTINE_SUSPENDED);
  fake_fire(&fake, 0, 7);
  expect_status(&main, VG_WAKER_QUEUED);
  assert_int_equal(main.co.state, VG_COROUTINE_QUEUED);
  run_main(&main);
  assert_int_equal(main.co.state, VG_COROUTINE_RUNNING);
  assert_int_equal(waker_of(&main)->value, 7);
  assert_int_equal(waker_of(&main)->error, 0);
  vg_waker_clean(&main.co);
  expect_status(&main, VG_WAKER_NO_STATUS);

  routine_spawn(w, &other, "other", body_completes, NULL);
  expect_status(&other, VG_WAKER_QUEUED);
  assert_int_equal(vg_coroutine_cancel(&other.co), 1);
  expect_status(&other, VG_WAKER_IGNORED);
  world_run(w);
  expect_status(&other, VG_WAKER_NO_STATUS);
}

/* A wake is refused in every state but WAITING, and changes nothing. */
static void test_refused_transitions(void **state) {
  world_t *w = *state;
  routine_t main, other;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  assert_int_equal(vg_waker_wake(&main.co, NULL, 0, 1), VG_ESTATE);
  expect_status(&main, VG_WAKER_NO_STATUS);
  vg_waker_new(&main.co);
  subscribe(&main, &fake);
  assert_int_equal(vg_waker_park(&main.co), 1);
  assert_int_equal(vg_waker_wake(&main.co, NULL, UV_EIO, 2), 0);
  assert_int_equal(vg_waker_wake(&main.co, NULL, 0, 3), VG_ESTATE);
  expect_status(&main, VG_WAKER_QUEUED);
  assert_int_equal(waker_of(&main)->error, UV_EIO);
  assert_int_equal(waker_of(&main)->value, 2);
  run_main(&main);
  assert_int_equal(vg_waker_wake(&main.co, NULL, 0, 4), VG_ESTATE);
  expect_status(&main, VG_WAKER_RESULT);
  assert_int_equal(waker_of(&main)->value, 2);
  assert_int_equal(w->s->ready.count, 0);

  routine_spawn(w, &other, "other", body_completes, NULL);
  assert_int_equal(vg_waker_wake(&other.co, NULL, 0, 0), VG_ESTATE);
  vg_coroutine_cancel(&other.co);
  assert_int_equal(vg_waker_wake(&other.co, NULL, 0, 0), VG_ESTATE);
  expect_status(&other, VG_WAKER_IGNORED);
  assert_int_equal(w->s->ready.count, 1);
  world_run(w);
  assert_int_equal(other.discarded, 1);
  assert_int_equal(vg_waker_wake(&other.co, NULL, 0, 0), VG_ESTATE);
}

/* A wake before the coroutine has parked: its outcome, and no switch. */
static void test_woken_before_it_parks(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  routine_main(w, &main);
  vg_waker_new(&main.co);
  subscribe(&main, &fake);
  fake_fire(&fake, 0, 5);
  expect_status(&main, VG_WAKER_RESULT);
  assert_int_equal(vg_waker_park(&main.co), 0);
  assert_int_equal(main.co.state, VG_COROUTINE_RUNNING);
  assert_int_equal(waker_of(&main)->value, 5);
  assert_int_equal(fake.starts, 0);
  assert_int_equal(w->s->ready.count, 0);
  expect_quiet(&fake);
}

static void test_nothing_is_armed_before_park(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fakes[3];
  size_t i;

  routine_main(w, &main);
  vg_waker_new(&main.co);
  for (i = 0; i < 3; i++) {
    fake_init(w, &fakes[i], "a", FAKE_ACTIVE, 0);
    subscribe(&main, &fakes[i]);
    assert_int_equal(fakes[i].starts, 0);
  }
  assert_int_equal(w->s->active, 0);
  assert_int_equal(vg_waker_park(&main.co), 1);
  assert_int_equal(w->s->active, 3);
  for (i = 0; i < 3; i++) assert_int_equal(fakes[i].starts, 1);
  fake_fire(&fakes[1], 0, 0);
  assert_int_equal(w->s->active, 0); /* stopped when queued (WK-06) */
  for (i = 0; i < 3; i++) {
    assert_int_equal(fakes[i].stops, 1);
    expect_quiet(&fakes[i]);
  }
  run_main(&main);
  assert_int_equal(waker_of(&main)->ordinal, 1);
}

/* An event that delivers while it is started: no switch, those before it are
** stopped, those after it never started. */
static void test_outcome_in_start(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fakes[3];
  int how;
  size_t who, i;

  routine_main(w, &main);
  for (how = FIRE_NOTIFY; how <= FIRE_CLOSE; how++)
    for (who = 0; who < 3; who++) {
      vg_waker_new(&main.co);
      for (i = 0; i < 3; i++) {
        fake_init(w, &fakes[i], "a", FAKE_ACTIVE, 0);
        subscribe(&main, &fakes[i]);
      }
      fakes[who].start_fires = how;
      fakes[who].value = 9;
      assert_int_equal(vg_waker_park(&main.co), 0);
      expect_status(&main, VG_WAKER_RESULT);
      assert_int_equal(main.co.state, VG_COROUTINE_RUNNING);
      assert_int_equal(waker_of(&main)->ordinal, who);
      assert_int_equal(waker_of(&main)->value, 9);
      for (i = 0; i < 3; i++) {
        assert_int_equal(fakes[i].starts, i <= who);
        assert_int_equal(fakes[i].stops, i <= who);
        expect_quiet(&fakes[i]);
      }
      assert_int_equal(w->s->active, 0);
      assert_int_equal(w->s->ready.count, 0);
    }
}

/* ... and its only owner was this wait. */
static void test_owned_event_fires_in_start(void **state) {
  world_t *w = *state;
  routine_t main;
  int how;

  routine_main(w, &main);
  for (how = FIRE_NOTIFY; how <= FIRE_CLOSE; how++) {
    fake_t *fake = fake_new(w, "owned", FAKE_ACTIVE);
    size_t bytes = w->memory.bytes;
    fake->start_fires = how;
    vg_waker_new(&main.co);
    assert_int_equal(vg_resume_when(&main.co, &fake->event, 1, NULL, NULL), 0);
    assert_int_equal(vg_waker_park(&main.co), 0);
    assert_int_equal(w->memory.bytes, bytes - sizeof *fake);
    assert_int_equal(w->s->active, 0);
  }
}

/* A stored outcome ends the wait while it is prepared (WK-10). */
static void test_replay_while_subscribing(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t before, stored, after;
  fake_t *owned = fake_new(w, "owned", FAKE_ACTIVE);
  vg_wait_t *wait = &main.co.waker.first;

  fake_init(w, &before, "before", FAKE_ACTIVE, 0);
  fake_init(w, &stored, "stored", FAKE_STORED, 0);
  fake_init(w, &after, "after", FAKE_ACTIVE, 0);
  stored.stored = 1;
  stored.value = 3;
  routine_main(w, &main);
  vg_waker_new(&main.co);
  subscribe(&main, &before);
  assert_int_equal(vg_resume_when(&main.co, &stored.event, 0, NULL, &wait), 0);
  assert_null(wait); /* it is over already */
  expect_status(&main, VG_WAKER_RESULT);
  subscribe(&main, &after);
  assert_int_equal(after.event.callbacks.length, 0);
  assert_int_equal(vg_resume_when(&main.co, &owned->event, 1, NULL, NULL), 0);
  assert_int_equal(vg_waker_park(&main.co), 0);
  assert_int_equal(waker_of(&main)->ordinal, 1);
  assert_int_equal(waker_of(&main)->value, 3);
  assert_int_equal(before.starts + stored.starts + after.starts, 0);
  expect_quiet(&before);
}

static void test_failure_to_start(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fakes[3];
  size_t who, i;

  routine_main(w, &main);
  for (who = 0; who < 3; who++) { /* WK-12 */
    vg_waker_new(&main.co);
    for (i = 0; i < 3; i++) {
      fake_init(w, &fakes[i], "a", FAKE_ACTIVE, 0);
      subscribe(&main, &fakes[i]);
    }
    assert_int_equal(vg__waker_timer(&main.co, uv_hrtime() + 1000 * MS, 0), 0);
    fakes[who].start_error = UV_EBADF;
    assert_int_equal(vg_waker_park(&main.co), UV_EBADF);
    assert_int_equal(main.co.state, VG_COROUTINE_RUNNING);
    expect_status(&main, VG_WAKER_NO_STATUS);
    assert_int_equal(waker_of(&main)->error, UV_EBADF);
    for (i = 0; i < 3; i++) {
      assert_int_equal(fakes[i].starts, i <= who);
      assert_int_equal(fakes[i].stops, i < who);
      expect_quiet(&fakes[i]);
    }
    assert_int_equal(w->s->active, 0);
    assert_int_equal(w->s->heap_count, 0);
  }
}

static void test_late_firing_finds_no_trace(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t first, second, third;

  fake_init(w, &first, "first", FAKE_PASSIVE, 0);
  fake_init(w, &second, "second", FAKE_PASSIVE, 0);
  fake_init(w, &third, "third", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  vg_waker_new(&main.co);
  subscribe(&main, &first);
  subscribe(&main, &second);
  assert_int_equal(vg_waker_park(&main.co), 1);
  fake_fire(&second, 0, 2);
  fake_fire(&first, UV_EIO, 1); /* the first result is kept */
  run_main(&main);
  assert_int_equal(waker_of(&main)->value, 2);
  vg_waker_new(&main.co); /* and the next wait is not woken by them */
  subscribe(&main, &third);
  assert_int_equal(vg_waker_park(&main.co), 1);
  fake_fire(&first, 0, 1);
  fake_fire(&second, 0, 2);
  expect_status(&main, VG_WAKER_WAITING);
  fake_fire(&third, 0, 3);
  run_main(&main);
  assert_int_equal(waker_of(&main)->value, 3);
}

static void test_same_event_twice(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  vg_wait_t *second;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  routine_main(w, &main);
  vg_waker_new(&main.co); /* WK-08 */
  subscribe(&main, &fake);
  assert_int_equal(vg_resume_when(&main.co, &fake.event, 0, NULL, &second), 0);
  assert_int_equal(fake.event.callbacks.length, 2);
  assert_int_equal(vg_waker_park(&main.co), 1);
  assert_int_equal(fake.starts, 1);
  assert_int_equal(fake.event.loop_ref_count, 2);
  vg_event_del_callback(&fake.event, &second->base);
  assert_int_equal(fake.event.callbacks.length, 1);
  fake_fire(&fake, 0, 0);
  assert_int_equal(fake.stops, 1);
  expect_quiet(&fake);
  run_main(&main);
  assert_int_equal(waker_of(&main)->ordinal, 0);
}

static void test_two_waiters_of_one_event(void **state) {
  world_t *w = *state;
  routine_t a, b;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  routine_spawn(w, &a, "a", body_awaits, &fake.event);
  routine_spawn(w, &b, "b", body_awaits, &fake.event);
  vg__drain(w->s);
  assert_int_equal(fake.event.callbacks.length, 2);
  fake_fire(&fake, 0, 0); /* each removes itself below the notification */
  expect_quiet(&fake);
  world_run(w);
  assert_log(w, "a:ok b:ok");
}

static void wait_for_many(void **state, size_t count) {
  world_t *w = *state;
  routine_t main;
  fake_t *fakes = calloc(count, sizeof *fakes);
  size_t i, round, calls;

  assert_non_null(fakes);
  routine_main(w, &main);
  for (i = 0; i < count; i++) fake_init(w, &fakes[i], "a", FAKE_ACTIVE, 0);
  calls = w->memory.calls;
  for (round = 0; round < 3; round++) {
    size_t who = round == 0 ? 0 : round == 1 ? count / 2 : count - 1;
    vg_waker_new(&main.co);
    for (i = 0; i < count; i++) subscribe(&main, &fakes[i]);
    assert_int_equal(waker_of(&main)->count, count);
    assert_int_equal(vg_waker_park(&main.co), 1);
    assert_int_equal(w->s->active, count);
    fake_fire(&fakes[who], 0, (intptr_t)who);
    run_main(&main);
    assert_int_equal(waker_of(&main)->ordinal, who);
    assert_int_equal(waker_of(&main)->value, who);
    for (i = 0; i < count; i++) expect_quiet(&fakes[i]);
    /* All but the first come from the free list, filled once. */
    assert_int_equal(w->memory.calls, calls + count - 1);
  }
  free(fakes);
}

static void test_one_event(void **state) { wait_for_many(state, 1); }
static void test_three_events(void **state) { wait_for_many(state, 3); }
static void test_thousand_events(void **state) { wait_for_many(state, 1000); }


static void test_timeout(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;
  uint64_t due = uv_hrtime() + MS;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  assert_int_equal(vg_waker_new_with_timeout(&main.co, due, NULL), 0);
  subscribe(&main, &fake);
  assert_int_equal(main_park(&main), UV_ETIMEDOUT);
  assert_true(uv_hrtime() >= due);
  assert_int_equal(main.ordinal, VG_ORDINAL_NONE);
  expect_quiet(&fake);
  assert_int_equal(w->s->heap_count, 0);
}

static void test_sleep_is_a_result(void **state) {
  world_t *w = *state;
  routine_t main;

  routine_main(w, &main);
  vg_waker_new(&main.co);
  assert_int_equal(vg__waker_timer(&main.co, uv_hrtime() + MS / 10, 1), 0);
  assert_int_equal(main_park(&main), 0);
  assert_int_equal(main.ordinal, VG_ORDINAL_NONE);
}

static void test_event_beats_timeout_and_token(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake, token;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  fake_init(w, &token, "token", FAKE_ACTIVE, 0);
  routine_main(w, &main);
  assert_int_equal(vg_waker_new_with_timeout(&main.co, uv_hrtime() + 1000 * MS,
                                             &token.event),
                   0);
  subscribe(&main, &fake);
  assert_int_equal(vg_waker_park(&main.co), 1);
  assert_int_equal(w->s->active, 3);
  assert_int_equal(token.starts, 1);
  fake_fire(&fake, 0, 0);
  assert_int_equal(w->s->active, 0);
  assert_int_equal(w->s->heap_count, 0);
  expect_quiet(&token);
  run_main(&main);
  assert_int_equal(waker_of(&main)->error, 0);
  assert_int_equal(waker_of(&main)->ordinal, 1); /* the token was the first */
}

static void test_token(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake, token;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  fake_init(w, &token, "token", FAKE_ACTIVE, 0);
  routine_main(w, &main);
  vg_waker_new_with_timeout(&main.co, 0, &token.event);
  subscribe(&main, &fake);
  assert_int_equal(vg_waker_park(&main.co), 1);
  fake_fire(&token, VG_EFAILED, 4);
  expect_quiet(&fake);
  run_main(&main);
  assert_int_equal(waker_of(&main)->error, VG_ETOKEN);
  assert_int_equal(waker_of(&main)->ordinal, 0);
  assert_int_equal(waker_of(&main)->value, 4);
  /* Its failure was seen. */
  assert_true(token.event.flags & VG_EVENT_ERROR_HANDLED);
  assert_true(token.event.flags & VG_EVENT_ERROR_CAUGHT);
  assert_true(token.event.flags & VG_EVENT_RESULT_USED);
}

static void test_token_that_has_fired(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake, token;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  fake_init(w, &token, "token", FAKE_STORED, 0);
  token.stored = 1;
  routine_main(w, &main);
  assert_int_equal(vg_waker_new_with_timeout(&main.co, uv_hrtime() + 1000 * MS,
                                             &token.event),
                   0);
  subscribe(&main, &fake);
  assert_int_equal(main_park(&main), VG_ETOKEN);
  assert_int_equal(fake.starts, 0);
  assert_int_equal(w->s->active, 0);
  assert_int_equal(w->s->heap_count, 0);
}

static void test_new_with_timeout_undoes_itself(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t token;

  fake_init(w, &token, "token", FAKE_ACTIVE, 0);
  routine_main(w, &main);
  memory_fail_at(&w->memory, 1); /* the heap */
  assert_int_equal(
      vg_waker_new_with_timeout(&main.co, uv_hrtime() + MS, &token.event),
      UV_ENOMEM);
  expect_status(&main, VG_WAKER_NO_STATUS);
  expect_quiet(&token);
  token.event.flags |= VG_EVENT_CLOSED;
  assert_int_equal(
      vg_waker_new_with_timeout(&main.co, uv_hrtime() + MS, &token.event),
      VG_ECLOSED);
  expect_status(&main, VG_WAKER_NO_STATUS);
  assert_int_equal(w->s->heap_count, 0);
}


static void test_ownership(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t *fired = fake_new(w, "fired", FAKE_ACTIVE);
  fake_t *other = fake_new(w, "other", FAKE_ACTIVE);
  size_t bytes = w->memory.bytes;
  fake_t object;

  fake_init(w, &object, "object", FAKE_ACTIVE, VG_EVENT_LUA_OBJECT);
  routine_main(w, &main);
  vg_waker_new(&main.co);
  vg_event_add_ref(&object.event);
  assert_int_equal(w->pins, 1);
  vg_resume_when(&main.co, &fired->event, 1, NULL, NULL);
  vg_resume_when(&main.co, &other->event, 1, NULL, NULL);
  vg_resume_when(&main.co, &object.event, 1, NULL, NULL);
  assert_int_equal(vg_waker_park(&main.co), 1);
  bytes = w->memory.bytes - 2 * sizeof(fake_t);
  fake_fire(fired, 0, 0); /* it outlives its own notification */
  assert_int_equal(w->memory.bytes, bytes);
  assert_int_equal(w->unpins, 1);
  assert_int_equal(object.disposed, 0); /* the collector's */
  run_main(&main);
}

static void test_clean_gives_back(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t *owned = fake_new(w, "owned", FAKE_ACTIVE);
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  routine_main(w, &main);
  vg_waker_new_with_timeout(&main.co, uv_hrtime() + 1000 * MS, &fake.event);
  vg_resume_when(&main.co, &owned->event, 1, NULL, NULL);
  vg_waker_clean(&main.co); /* prepared, not parked */
  expect_status(&main, VG_WAKER_NO_STATUS);
  expect_quiet(&fake);
  assert_int_equal(fake.starts, 0);
  assert_int_equal(w->s->heap_count, 0);
  assert_int_equal(w->s->active, 0);
  vg_waker_clean(&main.co); /* twice does no harm */
  /* owned: freed, or the teardown says so */
}

static void test_closed_event(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake, closed;
  fake_t *owned = fake_new(w, "owned", FAKE_ACTIVE);

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  fake_init(w, &closed, "closed", FAKE_ACTIVE, 0);
  closed.event.flags |= VG_EVENT_CLOSED;
  owned->event.flags |= VG_EVENT_CLOSED;
  routine_main(w, &main);
  vg_waker_new(&main.co); /* as the first subscription, and as a later one */
  assert_int_equal(vg_resume_when(&main.co, &closed.event, 0, NULL, NULL),
                   VG_ECLOSED); /* EV-10 */
  subscribe(&main, &fake);
  assert_int_equal(vg_resume_when(&main.co, &closed.event, 0, NULL, NULL),
                   VG_ECLOSED);
  assert_int_equal(vg_resume_when(&main.co, &owned->event, 1, NULL, NULL),
                   VG_ECLOSED);                 /* given back at once */
  assert_int_equal(vg_waker_park(&main.co), 1); /* the good one still waits */
  fake_fire(&fake, 0, 1);
  run_main(&main);
  expect_quiet(&fake);
}

static void test_out_of_memory(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fakes[2], busy;
  fake_t *owned = fake_new(w, "owned", FAKE_ACTIVE);
  listener_t listener;

  fake_init(w, &fakes[0], "a", FAKE_ACTIVE, 0);
  fake_init(w, &fakes[1], "b", FAKE_ACTIVE, 0);
  fake_init(w, &busy, "busy", FAKE_ACTIVE, 0);
  listener_init(&listener);
  vg_event_add_callback(&busy.event, &listener.base);
  routine_main(w, &main);
  vg_waker_new(&main.co);
  memory_fail_at(&w->memory, 1); /* the event's vector, in the first */
  assert_int_equal(vg_resume_when(&main.co, &busy.event, 0, NULL, NULL),
                   UV_ENOMEM);
  memory_fail_at(&w->memory, 1);
  subscribe(&main, &fakes[0]); /* the first needs none */
  assert_int_equal(vg_resume_when(&main.co, &fakes[1].event, 0, NULL, NULL),
                   UV_ENOMEM); /* the subscription itself */
  memory_fail_at(&w->memory, 1);
  assert_int_equal(vg_resume_when(&main.co, &owned->event, 1, NULL, NULL),
                   UV_ENOMEM);
  memory_fail_at(&w->memory, 2); /* the event's vector, in the second */
  assert_int_equal(vg_resume_when(&main.co, &busy.event, 0, NULL, NULL),
                   UV_ENOMEM);
  assert_int_equal(busy.event.callbacks.length, 1);
  memory_fail_at(&w->memory, 0);
  subscribe(&main, &fakes[1]); /* and with memory it goes on */
  assert_int_equal(vg_waker_park(&main.co), 1);
  fake_fire(&fakes[1], 0, 8);
  run_main(&main);
  assert_int_equal(waker_of(&main)->value, 8);
  expect_quiet(&fakes[0]);
  expect_quiet(&fakes[1]);
  vg_event_del_callback(&busy.event, &listener.base);
}


/* A subscriber's own callback decides when the wait is over (WK-17). */
static void third_time(vg_callback_t *cb, vg_event_t *event, int status,
                       intptr_t value) {
  vg_wait_t *wait = (vg_wait_t *)cb;
  VG_UNUSED(event);
  if (value == 3) vg_waker_wake(wait->coroutine, wait, status, value);
}

static void test_own_callback(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  routine_main(w, &main);
  vg_waker_new(&main.co);
  vg_resume_when(&main.co, &fake.event, 0, third_time, NULL);
  assert_int_equal(vg_waker_park(&main.co), 1);
  fake_fire(&fake, 0, 1);
  fake_fire(&fake, 0, 2);
  expect_status(&main, VG_WAKER_WAITING);
  assert_int_equal(fake.stops, 0);
  fake_fire(&fake, 0, 3);
  expect_status(&main, VG_WAKER_QUEUED);
  run_main(&main);
  expect_quiet(&fake);
}

static void test_resolve_marks_the_error_as_seen(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  routine_main(w, &main); /* WK-15 */
  vg_waker_new(&main.co);
  subscribe(&main, &fake);
  assert_int_equal(vg_waker_park(&main.co), 1);
  fake_fire(&fake, UV_ECONNRESET, 0);
  assert_true(fake.event.flags & VG_EVENT_ERROR_HANDLED);
  assert_true(fake.event.flags & VG_EVENT_RESULT_USED);
  run_main(&main);
  assert_int_equal(waker_of(&main)->error, UV_ECONNRESET);
  assert_int_equal(waker_of(&main)->ordinal, 0);
}


/* Hand-overs: the event's list has the waker's `first` until it runs. */
static struct {
  fake_t fake;
  vg_link_t granted;
  vg_wait_t *waits[3];
} giver;

static void giver_init(world_t *w) {
  memset(&giver, 0, sizeof giver);
  fake_init(w, &giver.fake, "giver", FAKE_PASSIVE, 0);
  vg_list_init(&giver.granted);
}

/* Waits for another event and for the giver, in this order. */
static int body_grantee(routine_t *self) {
  size_t which = (size_t)(uintptr_t)self->data;
  if (self->step++ == 0) {
    vg_waker_new(&self->co);
    if (which > 0) {
      fake_t *fake = fake_new(self->world, "other", FAKE_ACTIVE);
      vg_resume_when(&self->co, &fake->event, 1, NULL, NULL);
    }
    giver.waits[which] = vg__waker_wait(&self->co, &giver.fake.event);
    giver.waits[which]->index = 11;
    giver.waits[which]->kind = 22;
    return routine_park(self);
  }
  assert_false(vg_linked(&self->co.waker.first.link));
  assert_int_equal(self->co.waker.flags & VG_WAKER_F_GRANTED, 0);
  world_log(self->world, "%s:%d/%d/%d", self->name, self->error,
            (int)self->value, self->ordinal);
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

static void grant(size_t which, intptr_t value) {
  vg_wait_t *wait = giver.waits[which];
  vg_coroutine_t *co = wait->coroutine;
  assert_int_equal(vg__waker_grant(co, wait, value, &giver.granted), 0);
  assert_int_equal(co->waker.status, VG_WAKER_QUEUED);
  assert_true(co->waker.flags & VG_WAKER_F_GRANTED);
  assert_ptr_equal(giver.granted.prev, &co->waker.first.link);
  assert_ptr_equal(co->waker.first.event, &giver.fake.event);
  assert_int_equal(co->waker.first.index, 11);
  assert_int_equal(co->waker.first.kind, 22);
  assert_int_equal(vg__waker_grant(co, &co->waker.first, 0, &giver.granted),
                   VG_ESTATE);
}

static void test_grant(void **state) {
  world_t *w = *state;
  routine_t a, b;

  giver_init(w);
  routine_spawn(w, &a, "a", body_grantee, (void *)0);
  routine_spawn(w, &b, "b", body_grantee, (void *)1);
  vg__drain(w->s);
  grant(0, 5);
  grant(1, 6);
  vg__drain(w->s);
  assert_log(w, "a:0/5/0 b:0/6/1");
  assert_true(vg_list_empty(&giver.granted));
  assert_int_equal(giver.fake.revoked, 0);
}

static void test_revoke(void **state) {
  world_t *w = *state;
  routine_t a, b, c;
  char text[64];

  giver_init(w);
  routine_spawn(w, &a, "a", body_grantee, (void *)0);
  routine_spawn(w, &b, "b", body_grantee, (void *)1);
  routine_spawn(w, &c, "c", body_grantee, (void *)2);
  vg__drain(w->s);
  vg_coroutine_cancel(&a.co); /* waiting: nothing to take back */
  assert_int_equal(giver.fake.revoked, 0);
  grant(1, 6);
  grant(2, 7);
  assert_int_equal(vg_coroutine_cancel(&b.co), 1);
  assert_int_equal(giver.fake.revoked, 1);
  assert_int_equal(vg_coroutine_cancel(&b.co), 0);
  assert_int_equal(giver.fake.revoked, 1);
  world_run(w);
  snprintf(text, sizeof text, "a:%d/0/%d b:%d/6/%d c:0/7/1", UV_ECANCELED,
           VG_ORDINAL_NONE, UV_ECANCELED, VG_ORDINAL_NONE);
  assert_log(w, text);
  assert_int_equal(giver.fake.revoked, 1); /* c has run: too late */
  assert_true(vg_list_empty(&giver.granted));
}

/* The main chunk is begun by the run that it drives. */
static void test_grant_to_the_main_chunk(void **state) {
  world_t *w = *state;
  routine_t main;
  int round;

  giver_init(w);
  routine_main(w, &main);
  for (round = 0; round < 3; round++) {
    vg_waker_new(&main.co);
    giver.waits[0] = vg__waker_wait(&main.co, &giver.fake.event);
    giver.waits[0]->index = 11;
    giver.waits[0]->kind = 22;
    assert_int_equal(vg_waker_park(&main.co), 1);
    grant(0, round);
    run_main(&main);
    assert_true(vg_list_empty(&giver.granted));
    assert_int_equal(main.co.waker.flags & VG_WAKER_F_GRANTED, 0);
    assert_null(vg_scheduler_current(w->s));
  }
}

static void test_clean_of_a_granted_one(void **state) {
  world_t *w = *state;
  routine_t a;

  giver_init(w);
  routine_spawn(w, &a, "a", body_grantee, (void *)1);
  vg__drain(w->s);
  grant(1, 6);
  world_free(w); /* drops it */
  assert_true(vg_list_empty(&giver.granted));
}


static void test_idle(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t hidden, seen;

  fake_init(w, &hidden, "hidden", FAKE_ACTIVE, VG_EVENT_HIDDEN);
  fake_init(w, &seen, "seen", FAKE_ACTIVE, 0);
  routine_main(w, &main);
  vg_waker_new(&main.co);
  assert_false(vg__waker_is_idle(&main.co)); /* for nothing at all */
  subscribe(&main, &hidden);
  assert_true(vg__waker_is_idle(&main.co));
  assert_int_equal(vg_waker_park(&main.co), 1);
  assert_int_equal(w->s->active, 0);
  vg_waker_clean(&main.co);
  subscribe(&main, &hidden);
  subscribe(&main, &seen);
  assert_false(vg__waker_is_idle(&main.co));
  vg_event_hide(&seen.event);
  assert_true(vg__waker_is_idle(&main.co));
  vg__waker_timer(&main.co, uv_hrtime() + MS, 0);
  assert_false(vg__waker_is_idle(&main.co));
  vg_waker_clean(&main.co);
}

/* The count of subscriptions is 16 bits, and its last value means none. */
static void test_most_subscriptions(void **state) {
  world_t *w = *state;
  routine_t main;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  routine_main(w, &main);
  vg_waker_new(&main.co);
  main.co.waker.count = VG_ORDINAL_NONE - 1;
  subscribe(&main, &fake);
  assert_int_equal(vg_resume_when(&main.co, &fake.event, 0, NULL, NULL),
                   UV_ENOMEM);
  vg_waker_clean(&main.co);
  assert_int_equal(fake.event.callbacks.length, 0);
}


int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_five_states),
      world_test(test_refused_transitions),
      world_test(test_woken_before_it_parks),
      world_test(test_nothing_is_armed_before_park),
      world_test(test_outcome_in_start),
      world_test(test_owned_event_fires_in_start),
      world_test(test_replay_while_subscribing),
      world_test(test_failure_to_start),
      world_test(test_late_firing_finds_no_trace),
      world_test(test_same_event_twice),
      world_test(test_two_waiters_of_one_event),
      world_test(test_one_event),
      world_test(test_three_events),
      world_test(test_thousand_events),
      world_test(test_timeout),
      world_test(test_sleep_is_a_result),
      world_test(test_event_beats_timeout_and_token),
      world_test(test_token),
      world_test(test_token_that_has_fired),
      world_test(test_new_with_timeout_undoes_itself),
      world_test(test_ownership),
      world_test(test_clean_gives_back),
      world_test(test_closed_event),
      world_test(test_out_of_memory),
      world_test(test_own_callback),
      world_test(test_resolve_marks_the_error_as_seen),
      world_test(test_grant),
      world_test(test_revoke),
      world_test(test_grant_to_the_main_chunk),
      world_test(test_clean_of_a_granted_one),
      world_test(test_idle),
      world_test(test_most_subscriptions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

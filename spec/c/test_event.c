/*
** test_event.c: the base of every event: counts, flags, notification (EV).
*/

#include "support.h"

static void test_start_and_stop_nest(void **state) {
  world_t *w = *state;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0); /* EV-01 */
  assert_int_equal(vg_event_start(&fake.event), 0);
  assert_int_equal(vg_event_start(&fake.event), 0);
  assert_int_equal(fake.event.loop_ref_count, 2);
  assert_int_equal(fake.starts, 1);
  assert_int_equal(w->s->active, 1);
  vg_event_stop(&fake.event);
  assert_int_equal(fake.stops, 0);
  assert_int_equal(w->s->active, 1);
  vg_event_stop(&fake.event);
  assert_int_equal(fake.stops, 1);
  assert_int_equal(w->s->active, 0);
  vg_event_stop(&fake.event); /* once too often: nothing */
  assert_int_equal(fake.stops, 1);
  assert_int_equal(fake.event.loop_ref_count, 0);
  assert_int_equal(w->s->active, 0);
  assert_int_equal(vg_event_start(&fake.event), 0); /* and again */
  assert_int_equal(fake.starts, 2);
  vg_event_stop(&fake.event);
}

static void test_start_that_fails(void **state) {
  world_t *w = *state;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  fake.start_error = UV_EBADF;
  assert_int_equal(vg_event_start(&fake.event), UV_EBADF);
  assert_int_equal(fake.event.loop_ref_count, 0);
  assert_int_equal(w->s->active, 0);
  fake.start_error = 0;
  assert_int_equal(vg_event_start(&fake.event), 0);
  assert_int_equal(w->s->active, 1);
  vg_event_stop(&fake.event);
}

static void test_start_of_a_closed_event(void **state) {
  world_t *w = *state;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0); /* EV-03 */
  vg_event_notify_and_close(&fake.event, 0, 0);
  assert_int_equal(vg_event_start(&fake.event), 0);
  assert_int_equal(fake.starts, 0);
  assert_int_equal(fake.event.loop_ref_count, 0);
  assert_int_equal(w->s->active, 0);
}

/* One outside the reactor has nothing to start and counts for nothing. */
static void test_passive_event(void **state) {
  world_t *w = *state;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  assert_int_equal(vg_event_start(&fake.event), 0);
  assert_int_equal(fake.event.loop_ref_count, 0);
  assert_int_equal(w->s->active, 0);
  vg_event_stop(&fake.event);
  assert_int_equal(w->s->active, 0);
}

static void test_hidden_events_do_not_count(void **state) {
  world_t *w = *state;
  fake_t hidden, seen, composite;

  fake_init(w, &hidden, "hidden", FAKE_ACTIVE, VG_EVENT_HIDDEN);
  fake_init(w, &seen, "seen", FAKE_ACTIVE, 0);
  fake_init(w, &composite, "composite", FAKE_ACTIVE, VG_EVENT_COMPOSITE);
  vg_event_start(&hidden.event);
  vg_event_start(&composite.event);
  assert_int_equal(hidden.starts, 1);
  assert_int_equal(w->s->active, 0);
  vg_event_start(&seen.event);
  vg_event_start(&seen.event);
  assert_int_equal(w->s->active, 1);
  vg_event_hide(&seen.event); /* while started */
  assert_int_equal(w->s->active, 0);
  vg_event_hide(&seen.event); /* twice */
  assert_int_equal(w->s->active, 0);
  vg_event_stop(&seen.event);
  vg_event_stop(&seen.event);
  assert_int_equal(seen.stops, 1);
  assert_int_equal(w->s->active, 0);
  vg_event_start(&seen.event); /* and from then on */
  assert_int_equal(w->s->active, 0);
  vg_event_stop(&seen.event);
  vg_event_hide(&composite.event);
  vg_event_stop(&composite.event);
  vg_event_stop(&hidden.event);
  assert_int_equal(w->s->active, 0);
}

static void test_hidden_before_it_starts(void **state) {
  world_t *w = *state;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0);
  vg_event_hide(&fake.event);
  assert_int_equal(w->s->active, 0);
  vg_event_start(&fake.event);
  assert_int_equal(w->s->active, 0);
  vg_event_stop(&fake.event);
  assert_int_equal(w->s->active, 0);
}


static void test_notify_reaches_all(void **state) {
  world_t *w = *state;
  fake_t fake;
  listener_t listeners[3];
  size_t i;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  for (i = 0; i < 3; i++) {
    listener_init(&listeners[i]);
    assert_int_equal(vg_event_add_callback(&fake.event, &listeners[i].base), 0);
  }
  assert_int_equal(vg_event_notify(&fake.event, UV_EPIPE, 12), 0);
  for (i = 0; i < 3; i++) {
    assert_int_equal(listeners[i].calls, 1);
    assert_int_equal(listeners[i].status, UV_EPIPE);
    assert_int_equal(listeners[i].value, 12);
  }
  vg_event_release(&fake.event);
  assert_int_equal(fake.disposed, 1);
  for (i = 0; i < 3; i++) assert_int_equal(listeners[i].disposed, 1);
}

static void test_handler_changes_the_outcome(void **state) {
  world_t *w = *state;
  fake_t fake;
  listener_t listener;

  fake_init_handled(w, &fake, "a"); /* EV-13 */
  listener_init(&listener);
  vg_event_add_callback(&fake.event, &listener.base);
  vg_event_notify(&fake.event, 0, 5);
  assert_int_equal(fake.handler_calls, 1);
  assert_int_equal(listener.status, 0);
  fake.handler_status = UV_ETIMEDOUT;
  vg_event_notify(&fake.event, 0, 6);
  assert_int_equal(listener.calls, 2);
  assert_int_equal(listener.status, UV_ETIMEDOUT);
  assert_int_equal(listener.value, 6);
  fake.handler_result = -1; /* stops it there */
  assert_int_equal(vg_event_notify(&fake.event, 0, 7), 0);
  assert_int_equal(fake.handler_calls, 3);
  assert_int_equal(listener.calls, 2);
  fake.handler_result = 0;
  vg_event_notify_and_close(&fake.event, 0, 8);
  assert_int_equal(fake.handler_calls, 4);
  assert_int_equal(listener.calls, 3);
  vg_event_release(&fake.event);
}

/* It sees a notification that nobody waits for, too. */
static void test_handler_without_subscribers(void **state) {
  world_t *w = *state;
  fake_t fake;

  fake_init_handled(w, &fake, "a");
  vg_event_notify(&fake.event, 0, 0);
  vg_event_notify_and_close(&fake.event, 0, 0);
  assert_int_equal(fake.handler_calls, 2);
}

static int dispose_count;

static void counting_dispose(vg_event_t *event) {
  dispose_count++;
  vg__free(event->scheduler, event, sizeof *event);
}

static int releasing_handler(vg_event_t *event, int *status, intptr_t *value) {
  VG_UNUSED(status);
  vg_event_release(event);
  return (int)*value;
}

static void test_handler_drops_the_last_reference(void **state) {
  static const vg_event_methods_t methods = {
      .name = "own",
      .dispose = counting_dispose,
      .notify_handler = releasing_handler};
  world_t *w = *state;
  intptr_t result;

  for (result = -1; result <= 0; result++) {
    vg_event_t *event = vg__alloc(w->s, sizeof *event);
    assert_non_null(event);
    vg_event_init(event, w->s, &methods, 0);
    dispose_count = 0;
    assert_int_equal(vg_event_notify(event, 0, result), 0);
    assert_int_equal(dispose_count, 1);
  }
}

static int seen_closed, seen_armed, seen_start;

static void look_at_closed(listener_t *self, vg_event_t *event) {
  fake_t *fake = (fake_t *)event;
  VG_UNUSED(self);
  seen_closed = (event->flags & VG_EVENT_CLOSED) != 0;
  seen_armed = fake->is_armed;
  seen_start = vg_event_start(event);
}

static void test_closed_before_anybody_is_told(void **state) {
  world_t *w = *state;
  fake_t fake;
  listener_t listener;

  fake_init(w, &fake, "a", FAKE_ACTIVE, 0); /* EV-04, EV-14 */
  listener_init(&listener);
  listener.act = look_at_closed;
  vg_event_add_callback(&fake.event, &listener.base);
  vg_event_start(&fake.event);
  vg_event_start(&fake.event);
  assert_int_equal(vg_event_notify_and_close(&fake.event, 0, 0), 0);
  assert_int_equal(listener.calls, 1);
  assert_true(seen_closed);
  assert_false(seen_armed);
  assert_int_equal(seen_start, 0);
  assert_int_equal(fake.starts, 1); /* it could not start again */
  assert_int_equal(fake.stops, 1);
  assert_int_equal(fake.event.loop_ref_count, 0);
  assert_int_equal(w->s->active, 0);
  vg_event_stop(&fake.event); /* those who started it stop it late */
  vg_event_stop(&fake.event);
  assert_int_equal(w->s->active, 0);
  vg_event_release(&fake.event);
}

static int nested, nested_close;

static void fire_again(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  nested = vg_event_notify(event, 0, 0);
  nested_close = vg_event_notify_and_close(event, 0, 0);
}

static void test_nested_notification(void **state) {
  world_t *w = *state;
  fake_t fake;
  listener_t listener;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  listener_init(&listener);
  listener.act = fire_again;
  vg_event_add_callback(&fake.event, &listener.base);
  assert_int_equal(vg_event_notify(&fake.event, 0, 0), 0);
  assert_int_equal(listener.calls, 1);
  assert_int_equal(nested, VG_ENESTED);
  assert_int_equal(nested_close, VG_ENESTED);
  assert_false(fake.event.flags & VG_EVENT_CLOSED);
  assert_int_equal(fake.event.ref_count, 1);
  vg_event_release(&fake.event);
}

static void fire_other(listener_t *self, vg_event_t *event) {
  VG_UNUSED(event);
  nested = vg_event_notify(self->data, 0, 0);
}

/* a fires b, which would fire a. */
static void test_nested_through_another(void **state) {
  world_t *w = *state;
  fake_t a, b;
  listener_t on_a, on_b;

  fake_init(w, &a, "a", FAKE_PASSIVE, 0);
  fake_init(w, &b, "b", FAKE_PASSIVE, 0);
  listener_init(&on_a);
  listener_init(&on_b);
  on_a.act = on_b.act = fire_other;
  on_a.data = &b.event;
  on_b.data = &a.event;
  vg_event_add_callback(&a.event, &on_a.base);
  vg_event_add_callback(&b.event, &on_b.base);
  assert_int_equal(vg_event_notify(&a.event, 0, 0), 0);
  assert_int_equal(on_a.calls, 1);
  assert_int_equal(on_b.calls, 1);
  assert_int_equal(nested, 0); /* the outer of the two results, set last */
  assert_null(w->s->walk);
  vg_event_release(&a.event);
  vg_event_release(&b.event);
}


static void handle_error(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  /* A mark of an earlier notification is gone by now (EV-15). */
  assert_false(event->flags & VG_EVENT_ERROR_HANDLED);
  event->flags |= VG_EVENT_ERROR_HANDLED;
}

static void test_handled_and_caught(void **state) {
  world_t *w = *state;
  fake_t fake;
  listener_t listener;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  listener_init(&listener);
  vg_event_add_callback(&fake.event, &listener.base);
  vg_event_notify(&fake.event, UV_EIO, 0);
  assert_false(fake.event.flags & VG_EVENT_ERROR_HANDLED);
  assert_false(fake.event.flags & VG_EVENT_ERROR_CAUGHT);
  listener.act = handle_error;
  vg_event_notify(&fake.event, UV_EIO, 0);
  assert_true(fake.event.flags & VG_EVENT_ERROR_HANDLED);
  assert_true(fake.event.flags & VG_EVENT_ERROR_CAUGHT); /* EV-16 */
  vg_event_notify(&fake.event, UV_EIO, 0);
  listener.act = NULL;
  vg_event_notify(&fake.event, UV_EIO, 0);
  assert_false(fake.event.flags & VG_EVENT_ERROR_HANDLED);
  assert_true(fake.event.flags & VG_EVENT_ERROR_CAUGHT); /* this one stays */
  vg_event_release(&fake.event);
}


static void test_replay(void **state) {
  world_t *w = *state;
  fake_t fake, plain;
  listener_t early, late;

  fake_init(w, &fake, "a", FAKE_STORED, 0);
  fake_init(w, &plain, "plain", FAKE_PASSIVE, 0);
  listener_init(&early);
  listener_init(&late);
  assert_int_equal(vg_event_replay(&plain.event, &early.base), 0);
  assert_int_equal(vg_event_replay(&fake.event, &early.base), 0);
  assert_int_equal(early.calls, 0);
  assert_int_equal(vg_event_add_callback(&fake.event, &early.base), 0);
  assert_int_equal(fake.event.callbacks.length, 1);
  fake.stored = 1; /* EV-09 */
  fake.value = 4;
  vg_event_notify_and_close(&fake.event, 0, 4);
  assert_int_equal(early.calls, 1);
  assert_int_equal(vg_event_replay(&fake.event, NULL), 1);
  assert_int_equal(vg_event_replay(&fake.event, &late.base), 1);
  assert_int_equal(vg_event_replay(&fake.event, &late.base), 1);
  assert_int_equal(late.calls, 2); /* any number of times, the same */
  assert_int_equal(late.value, 4);
  /* EV-11: told at once and not kept, though the event is closed. */
  assert_int_equal(vg_event_add_callback(&fake.event, &late.base), 0);
  assert_int_equal(late.calls, 3);
  assert_int_equal(late.base.ref_count, 0);
  assert_int_equal(fake.event.callbacks.length, 1);
  vg_event_release(&fake.event);
}

static void test_subscribing_to_a_closed_event(void **state) {
  world_t *w = *state;
  fake_t fake;
  listener_t listener;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  listener_init(&listener);
  vg_event_notify_and_close(&fake.event, 0, 0);
  assert_int_equal(vg_event_add_callback(&fake.event, &listener.base),
                   VG_ECLOSED);
  assert_int_equal(listener.base.ref_count, 0);
  vg_event_del_callback(&fake.event, &listener.base); /* harmless */
}

static void test_subscribing_without_memory(void **state) {
  world_t *w = *state;
  fake_t fake;
  listener_t listeners[2];

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  listener_init(&listeners[0]);
  listener_init(&listeners[1]);
  vg_event_add_callback(&fake.event, &listeners[0].base);
  memory_fail_at(&w->memory, 1);
  assert_int_equal(vg_event_add_callback(&fake.event, &listeners[1].base),
                   UV_ENOMEM);
  vg_event_notify(&fake.event, 0, 0);
  assert_int_equal(listeners[0].calls, 1);
  assert_int_equal(listeners[1].calls, 0);
  vg_event_release(&fake.event);
}


static void test_references_of_a_counted_event(void **state) {
  world_t *w = *state;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  assert_int_equal(fake.event.ref_count, 1);
  vg_event_add_ref(&fake.event);
  vg_event_add_ref(&fake.event);
  vg_event_release(&fake.event);
  vg_event_release(&fake.event);
  assert_int_equal(fake.disposed, 0);
  vg_event_release(&fake.event);
  assert_int_equal(fake.disposed, 1);
  assert_int_equal(w->pins + w->unpins, 0);
}

static void test_references_of_a_lua_object(void **state) {
  world_t *w = *state;
  fake_t fake;

  fake_init(w, &fake, "a", FAKE_PASSIVE, VG_EVENT_LUA_OBJECT);
  assert_int_equal(fake.event.ref_count, 0);
  vg_event_add_ref(&fake.event);
  assert_int_equal(w->pins, 1);
  vg_event_add_ref(&fake.event);
  assert_int_equal(w->pins, 1); /* once for all of them */
  vg_event_release(&fake.event);
  assert_int_equal(w->unpins, 0);
  vg_event_release(&fake.event);
  assert_int_equal(w->unpins, 1);
  vg_event_add_ref(&fake.event); /* and again */
  vg_event_release(&fake.event);
  assert_int_equal(w->pins, 2);
  assert_int_equal(w->unpins, 2);
  assert_int_equal(fake.disposed, 0); /* its memory is the collector's */
}

/* A notification pins nothing: no Lua runs below it. */
static void test_notify_of_a_lua_object(void **state) {
  world_t *w = *state;
  fake_t fake;
  listener_t listener;

  fake_init(w, &fake, "a", FAKE_PASSIVE, VG_EVENT_LUA_OBJECT);
  listener_init(&listener);
  vg_event_add_callback(&fake.event, &listener.base);
  vg_event_notify(&fake.event, 0, 0);
  vg_event_notify_and_close(&fake.event, 0, 0);
  assert_int_equal(listener.calls, 2);
  assert_int_equal(w->pins, 0);
  vg_event_del_callback(&fake.event, &listener.base);
}

static void test_host_without_pins(void **state) {
  vg_scheduler_t *s = vg_scheduler_new(NULL, NULL, NULL, NULL);
  world_t other = {.s = s};
  fake_t fake;

  VG_UNUSED(state);
  assert_non_null(s);
  fake_init(&other, &fake, "a", FAKE_PASSIVE, VG_EVENT_LUA_OBJECT);
  vg_event_add_ref(&fake.event);
  vg_event_release(&fake.event);
  vg_scheduler_free(s, 0);
}

static void drop_event(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  vg_event_release(event);
}

/* CB-07: it lives until all have been told. */
static void test_last_reference_dropped_by_a_callback(void **state) {
  world_t *w = *state;
  listener_t listeners[3];
  size_t who, i;

  for (who = 0; who < 3; who++) {
    fake_t *fake = fake_new(w, "a", FAKE_ACTIVE);
    size_t bytes;
    for (i = 0; i < 3; i++) {
      listener_init(&listeners[i]);
      vg_event_add_callback(&fake->event, &listeners[i].base);
    }
    bytes = w->memory.bytes;
    listeners[who].act = drop_event;
    assert_int_equal(who % 2 ? vg_event_notify(&fake->event, 0, 0)
                             : vg_event_notify_and_close(&fake->event, 0, 0),
                     0);
    assert_true(w->memory.bytes + sizeof *fake <= bytes);
    for (i = 0; i < 3; i++) {
      assert_int_equal(listeners[i].calls, 1);
      assert_int_equal(listeners[i].disposed, 1);
    }
    assert_null(w->s->walk);
  }
}

/* Disposing may tell the last subscribers, and does not dispose again. */
static void closing_dispose(vg_event_t *event) {
  dispose_count++;
  vg_event_notify_and_close(event, VG_ECLOSED, 0);
  vg__callbacks_clear(event->scheduler, &event->callbacks);
}

static void test_dispose_once(void **state) {
  static const vg_event_methods_t methods = {.name = "own",
                                             .dispose = closing_dispose};
  world_t *w = *state;
  vg_event_t event;
  listener_t listener;

  vg_event_init(&event, w->s, &methods, 0);
  listener_init(&listener);
  vg_event_add_callback(&event, &listener.base);
  dispose_count = 0;
  vg_event_release(&event);
  assert_int_equal(dispose_count, 1);
  assert_int_equal(listener.calls, 1);
  assert_int_equal(listener.status, VG_ECLOSED);
  assert_int_equal(listener.disposed, 1);
  assert_true(event.flags & VG_EVENT_DISPOSED);
}

/* The callbacks go before the event: each owner lets go once. */
static void test_dispose_order(void **state) {
  world_t *w = *state;
  fake_t *fake = fake_new(w, "a", FAKE_PASSIVE);
  listener_t listener;

  listener_init(&listener);
  listener.base.ref_count = 1; /* ours */
  vg_event_add_callback(&fake->event, &listener.base);
  assert_int_equal(listener.base.ref_count, 2);
  vg_event_release(&fake->event);
  assert_int_equal(listener.disposed, 0);
  vg__callback_release(&listener.base);
  assert_int_equal(listener.disposed, 1);
}


static void test_info(void **state) {
  world_t *w = *state;
  fake_t fake, handled;
  char text[64], little[5];

  fake_init(w, &fake, "a", FAKE_PASSIVE, 0);
  fake_init_handled(w, &handled, "b");
  assert_int_equal(vg_event_info(&fake.event, text, sizeof text), 6);
  assert_string_equal(text, "fake a");
  assert_int_equal(vg_event_info(&fake.event, little, sizeof little), 6);
  assert_string_equal(little, "fake");
  vg_event_info(&handled.event, text, sizeof text);
  assert_string_equal(text, "handled"); /* the type's name */
}

/* An own table may add and delete its own way. */
static vg_callback_t *kept;

static int own_add(vg_event_t *event, vg_callback_t *callback) {
  VG_UNUSED(event);
  if (kept != NULL) return UV_EBUSY;
  kept = callback;
  return 0;
}

static void own_del(vg_event_t *event, vg_callback_t *callback) {
  VG_UNUSED(event);
  if (kept == callback) kept = NULL;
}

static void test_own_add_and_del(void **state) {
  static const vg_event_methods_t methods = {.name = "own",
                                             .add_callback = own_add,
                                             .del_callback = own_del,
                                             .dispose = closing_dispose};
  world_t *w = *state;
  vg_event_t event;
  listener_t a, b;

  kept = NULL;
  vg_event_init(&event, w->s, &methods, 0);
  listener_init(&a);
  listener_init(&b);
  assert_int_equal(vg_event_add_callback(&event, &a.base), 0);
  assert_int_equal(vg_event_add_callback(&event, &b.base), UV_EBUSY);
  vg_event_del_callback(&event, &b.base);
  assert_ptr_equal(kept, &a.base);
  vg_event_del_callback(&event, &a.base);
  assert_null(kept);
  event.flags |= VG_EVENT_CLOSED;
  assert_int_equal(vg_event_add_callback(&event, &a.base), VG_ECLOSED);
}

static void test_error_names(void **state) {
  VG_UNUSED(state);
  assert_string_equal(vg_error_name(VG_EDEADLOCK), "EDEADLOCK");
  assert_string_equal(vg_error_name(VG_ETOKEN), "ECANCELED");
  assert_string_equal(vg_error_name(UV_ECONNRESET), "ECONNRESET");
  assert_string_equal(vg_error_message(VG_ECLOSED), "closed");
  assert_string_equal(vg_error_message(UV_ECONNRESET),
                      "connection reset by peer");
  assert_string_equal(vg_version(), VIGIL_VERSION);
}


int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_start_and_stop_nest),
      world_test(test_start_that_fails),
      world_test(test_start_of_a_closed_event),
      world_test(test_passive_event),
      world_test(test_hidden_events_do_not_count),
      world_test(test_hidden_before_it_starts),
      world_test(test_notify_reaches_all),
      world_test(test_handler_changes_the_outcome),
      world_test(test_handler_without_subscribers),
      world_test(test_handler_drops_the_last_reference),
      world_test(test_closed_before_anybody_is_told),
      world_test(test_nested_notification),
      world_test(test_nested_through_another),
      world_test(test_handled_and_caught),
      world_test(test_replay),
      world_test(test_subscribing_to_a_closed_event),
      world_test(test_subscribing_without_memory),
      world_test(test_references_of_a_counted_event),
      world_test(test_references_of_a_lua_object),
      world_test(test_notify_of_a_lua_object),
      world_test(test_host_without_pins),
      world_test(test_last_reference_dropped_by_a_callback),
      world_test(test_dispose_once),
      world_test(test_dispose_order),
      world_test(test_info),
      world_test(test_own_add_and_del),
      world_test(test_error_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
** test_scope.c: which coroutines belong together (SP, SO); and the future.
*/

#include "support.h"

static vg_scope_t *scope_new(world_t *w, vg_scope_t *parent) {
  vg_scope_t *scope;
  assert_int_equal(vg_scope_new(w->s, parent, &scope), 0);
  return scope;
}

static void spawn(world_t *w, routine_t *r, const char *name, body_t body,
                  void *data, vg_scope_t *scope) {
  routine_init(w, r, name, body, data);
  assert_int_equal(vg_coroutine_spawn(&r->co, scope, 0), 0);
}

/*
** {== Scopes
*/

static void test_counts(void **state) {
  world_t *w = *state;
  vg_scope_t *parent = scope_new(w, w->s->root);
  vg_scope_t *child = scope_new(w, parent);
  routine_t a, b, c;

  spawn(w, &a, "a", body_completes, NULL, parent);
  spawn(w, &b, "b", body_completes, NULL, child);
  spawn(w, &c, "c", body_completes, NULL, child);
  assert_int_equal(child->count, 2);
  assert_int_equal(parent->count, 3); /* here and below */
  assert_int_equal(w->s->root->count, 3);
  assert_ptr_equal(b.co.scope, child);
  world_run(w);
  assert_int_equal(child->count, 0);
  assert_int_equal(parent->count, 0);
  assert_int_equal(w->s->root->count, 0);
  assert_null(b.co.scope);
  vg_event_release(&parent->event); /* the child keeps it */
  vg_event_release(&child->event);
}

static void test_join(void **state) {
  world_t *w = *state;
  vg_scope_t *scope = scope_new(w, w->s->root);
  routine_t main, a, b;

  routine_main(w, &main);
  assert_int_equal(main_await(&main, &scope->event), 0); /* empty: done */
  spawn(w, &a, "a", body_completes, NULL, scope);
  spawn(w, &b, "b", body_completes, NULL, scope);
  assert_int_equal(main_await(&main, &scope->event), 0);
  assert_log(w, "a b");
  spawn(w, &a, "a", body_completes, NULL, scope); /* and again */
  assert_int_equal(main_await(&main, &scope->event), 0);
  assert_log(w, "a");
  vg_event_release(&scope->event);
}

static void test_join_waits_for_children(void **state) {
  world_t *w = *state;
  vg_scope_t *parent = scope_new(w, w->s->root);
  vg_scope_t *child = scope_new(w, parent);
  routine_t joiner, a;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  spawn(w, &a, "a", body_awaits, &fake.event, child);
  spawn(w, &joiner, "joiner", body_awaits, &parent->event, w->s->root);
  vg__drain(w->s);
  vg__drain(w->s);
  assert_log(w, "");
  fake_fire(&fake, 0, 0);
  world_run(w);
  assert_log(w, "a:ok joiner:ok");
  vg_event_release(&child->event);
  vg_event_release(&parent->event);
}

static void test_cancel(void **state) {
  world_t *w = *state;
  vg_scope_t *parent = scope_new(w, w->s->root);
  vg_scope_t *child = scope_new(w, parent);
  vg_scope_t *other = scope_new(w, w->s->root);
  routine_t a, b, c, fresh;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_ACTIVE, 0);
  spawn(w, &a, "a", body_awaits, &fake.event, parent);
  spawn(w, &b, "b", body_awaits, &fake.event, child);
  spawn(w, &c, "c", body_awaits, &fake.event, other);
  vg__drain(w->s);
  spawn(w, &fresh, "fresh", body_completes, NULL, child);
  vg_scope_cancel(parent);
  vg_scope_cancel(parent); /* twice */
  assert_true(parent->cancelled);
  assert_true(child->cancelled);
  assert_false(other->cancelled);
  vg__drain(w->s);
  assert_log(w, "b:ECANCELED a:ECANCELED"); /* children first */
  assert_int_equal(fresh.discarded, 1);
  assert_int_equal(fresh.runs, 0);
  assert_int_equal(c.co.state, VG_COROUTINE_SUSPENDED);
  fake_fire(&fake, 0, 0);
  world_run(w);
  assert_log(w, "c:ok");
  vg_event_release(&child->event);
  vg_event_release(&parent->event);
  vg_event_release(&other->event);
}

static int body_cancels_its_scope(routine_t *self) {
  if (self->step++ == 0) {
    vg_scope_cancel(self->co.scope);
    assert_true(self->co.flags & VG_CO_CANCEL_ACTIVE);
    return routine_yield(self);
  }
  world_log(self->world, "%s", self->name);
  return routine_end(self, VG_COROUTINE_CANCELLED);
}

static void test_cancel_from_inside(void **state) {
  world_t *w = *state;
  vg_scope_t *scope = scope_new(w, w->s->root);
  routine_t a, b;

  spawn(w, &a, "a", body_cancels_its_scope, NULL, scope);
  spawn(w, &b, "b", body_completes, NULL, scope);
  vg_event_release(&scope->event); /* its coroutines keep it */
  world_run(w);
  assert_log(w, "a");
  assert_int_equal(b.discarded, 1);
}

static void test_closed(void **state) {
  world_t *w = *state;
  vg_scope_t *scope = scope_new(w, w->s->root);
  routine_t a, b;

  spawn(w, &a, "a", body_completes, NULL, scope);
  vg_scope_close(scope);
  routine_init(w, &b, "b", body_completes, NULL);
  assert_int_equal(vg_coroutine_spawn(&b.co, scope, 0), VG_ECLOSED); /* SP-02 */
  assert_int_equal(scope->count, 1);
  world_run(w); /* the one that is in goes on */
  assert_log(w, "a");
  vg_event_release(&scope->event);
}

/* The last reference is a coroutine's: the scope goes when that one ends, and
** its parent after it. */
static void test_references(void **state) {
  world_t *w = *state;
  size_t bytes = w->memory.bytes;
  vg_scope_t *parent = scope_new(w, w->s->root);
  vg_scope_t *child = scope_new(w, parent);
  routine_t a;

  assert_int_equal(w->s->root->event.ref_count, 2);
  spawn(w, &a, "a", body_completes, NULL, child);
  vg_event_release(&parent->event);
  vg_event_release(&child->event);
  assert_int_equal(w->s->root->event.ref_count, 2);
  world_run(w);
  assert_int_equal(w->memory.bytes, bytes);
  assert_int_equal(w->s->root->event.ref_count, 1);
  assert_true(vg_list_empty(&w->s->root->children));
}

static void release_scope(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  vg_event_release(event);
}

/* ... or goes while it tells that it is empty. */
static void test_released_by_its_own_callback(void **state) {
  world_t *w = *state;
  size_t bytes = w->memory.bytes;
  vg_scope_t *parent = scope_new(w, w->s->root);
  vg_scope_t *child = scope_new(w, parent);
  listener_t on_parent, on_child;
  routine_t a;

  listener_init(&on_parent);
  listener_init(&on_child);
  on_parent.act = on_child.act = release_scope;
  spawn(w, &a, "a", body_completes, NULL, child); /* before: empty replays */
  vg_event_add_callback(&parent->event, &on_parent.base);
  vg_event_add_callback(&child->event, &on_child.base);
  world_run(w);
  assert_int_equal(on_parent.calls, 1);
  assert_int_equal(on_child.calls, 1);
  assert_int_equal(on_child.disposed, 1);
  assert_int_equal(w->memory.bytes, bytes);
}

static int body_waits_for_ever(routine_t *self) {
  if (self->step++ == 0) return routine_await(self, self->data);
  fail();
  return VG_FINISHED;
}

static void test_freed_with_the_scheduler(void **state) {
  world_t *w = *state;
  vg_scope_t *parent = scope_new(w, w->s->root);
  vg_scope_t *child = scope_new(w, parent);
  routine_t a, b, c;
  fake_t fake;

  fake_init(w, &fake, "f", FAKE_PASSIVE, 0);
  spawn(w, &a, "a", body_waits_for_ever, &fake.event, child);
  spawn(w, &b, "b", body_waits_for_ever, &parent->event, w->s->root);
  spawn(w, &c, "c", body_waits_for_ever, &child->event, parent);
  vg__drain(w->s);
  assert_int_equal(parent->event.callbacks.length, 1);
  world_free(w); /* whoever else owns them */
  assert_null(a.co.scope);
}

static void test_new_without_memory(void **state) {
  world_t *w = *state;
  vg_scope_t *scope;
  memory_fail_at(&w->memory, 1);
  assert_int_equal(vg_scope_new(w->s, w->s->root, &scope), UV_ENOMEM);
  assert_int_equal(w->s->root->event.ref_count, 1);
  assert_true(vg_list_empty(&w->s->root->children));
}

static void test_scope_info(void **state) {
  world_t *w = *state;
  vg_scope_t *scope = scope_new(w, w->s->root);
  routine_t a, b;
  char text[64];

  spawn(w, &a, "a", body_completes, NULL, scope);
  vg_event_info(&scope->event, text, sizeof text);
  assert_string_equal(text, "scope (1 coroutine)");
  spawn(w, &b, "b", body_completes, NULL, scope);
  vg_scope_cancel(scope);
  vg_event_info(&scope->event, text, sizeof text);
  assert_string_equal(text, "scope (2 coroutines, cancelled)");
  world_run(w);
  vg_event_release(&scope->event);
}

/* }================================================================= */


/*
** {== Futures
*/

static void test_future_settles_once(void **state) {
  world_t *w = *state;
  static const vg_future_state_t hows[] = {
      VG_FUTURE_COMPLETED, VG_FUTURE_FAILED, VG_FUTURE_CANCELLED};
  static const char *const logs[] = {"a:ok b:ok late:ok",
                                     "a:EFAILED b:EFAILED late:EFAILED",
                                     "a:EFAILED b:EFAILED late:EFAILED"};
  static const char *const infos[] = {"future (completed)", "future (failed)",
                                      "future (cancelled)"};
  size_t i;

  for (i = 0; i < LENGTH(hows); i++) {
    vg_future_t future;
    routine_t a, b, late;
    char text[64];

    vg_future_init(&future, w->s, VG_EVENT_NO_FREE);
    vg_event_info(&future.event, text, sizeof text);
    assert_string_equal(text, "future (pending)");
    assert_int_equal(vg_event_replay(&future.event, NULL), 0);
    routine_spawn(w, &a, "a", body_awaits, &future.event);
    routine_spawn(w, &b, "b", body_awaits, &future.event);
    vg__drain(w->s);
    assert_int_equal(vg_future_settle(&future, hows[i]), 0); /* FU-01 */
    assert_int_equal(vg_future_settle(&future, VG_FUTURE_COMPLETED), VG_ESTATE);
    vg__drain(w->s);
    routine_spawn(w, &late, "late", body_awaits, &future.event);
    world_run(w);
    assert_int_equal(late.runs, 1); /* the outcome is there (EV-09) */
    assert_log(w, logs[i]);
    vg_event_info(&future.event, text, sizeof text);
    assert_string_equal(text, infos[i]);
    assert_int_equal(vg_event_replay(&future.event, NULL), 1);
  }
}

static void settle_again(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  assert_int_equal(vg_future_settle((vg_future_t *)event, VG_FUTURE_FAILED),
                   VG_ESTATE);
}

static void test_future_and_callbacks(void **state) {
  world_t *w = *state;
  vg_future_t future, *owned = vg__alloc(w->s, sizeof *owned);
  listener_t early, late;

  vg_future_init(&future, w->s, VG_EVENT_NO_FREE);
  listener_init(&early);
  listener_init(&late);
  early.act = settle_again; /* from inside its own notification */
  vg_event_add_callback(&future.event, &early.base);
  vg_future_settle(&future, VG_FUTURE_COMPLETED);
  assert_int_equal(early.calls, 1);
  vg_event_add_callback(&future.event, &late.base); /* EV-11 */
  assert_int_equal(late.calls, 1);
  vg_event_del_callback(&future.event, &early.base);
  assert_int_equal(future.event.callbacks.length, 0);

  assert_non_null(owned);
  vg_future_init(owned, w->s, 0);
  vg_event_release(&owned->event); /* frees it */
}

/* }================================================================= */


int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_counts),
      world_test(test_join),
      world_test(test_join_waits_for_children),
      world_test(test_cancel),
      world_test(test_cancel_from_inside),
      world_test(test_closed),
      world_test(test_references),
      world_test(test_released_by_its_own_callback),
      world_test(test_freed_with_the_scheduler),
      world_test(test_new_without_memory),
      world_test(test_scope_info),
      world_test(test_future_settles_once),
      world_test(test_future_and_callbacks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

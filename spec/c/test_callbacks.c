/*
** test_callbacks.c: the vector of subscribers while it changes (CB).
*/

#include "support.h"

#define N 6

typedef struct scene {
  world_t *w;
  vg_callbacks_t vector;
  listener_t listeners[N + 64];
} scene_t;

static scene_t scene; /* one test at a time */

static void begin(void **state, size_t count) {
  size_t i;
  memset(&scene, 0, sizeof scene);
  scene.w = *state;
  for (i = 0; i < LENGTH(scene.listeners); i++)
    listener_init(&scene.listeners[i]);
  for (i = 0; i < count; i++)
    assert_int_equal(
        vg__callbacks_add(scene.w->s, &scene.vector, &scene.listeners[i].base),
        0);
}

static int notify(void) {
  return vg__callbacks_notify(scene.w->s, &scene.vector, NULL, 0, 0);
}

static void add(listener_t *listener) {
  assert_int_equal(
      vg__callbacks_add(scene.w->s, &scene.vector, &listener->base), 0);
}

static void del(listener_t *listener) {
  vg__callbacks_del(scene.w->s, &scene.vector, &listener->base);
}

/* Every element knows its place. */
static void check_vector(void) {
  uint32_t i;
  vg_callback_t **items = scene.vector.capacity > 0 ? scene.vector.items.many
                                                    : &scene.vector.items.one;
  for (i = 0; i < scene.vector.length; i++) {
    if (items[i] == NULL) /* a hole, closed at the end of the walk */
      assert_true(scene.vector.walking);
    else
      assert_int_equal(items[i]->index, i);
  }
}

static void end(void) {
  check_vector();
  assert_null(scene.w->s->walk);
  assert_false(scene.vector.walking);
  vg__callbacks_clear(scene.w->s, &scene.vector);
  assert_int_equal(scene.vector.length, 0);
  assert_int_equal(scene.vector.capacity, 0);
}

static void expect_calls(const int *calls, size_t count) {
  size_t i;
  for (i = 0; i < count; i++)
    assert_int_equal(scene.listeners[i].calls, calls[i]);
}


static void test_one_needs_no_memory(void **state) {
  size_t calls = ((world_t *)*state)->memory.calls;
  begin(state, 1);
  assert_int_equal(scene.w->memory.calls, calls);
  assert_int_equal(notify(), 0);
  assert_int_equal(scene.listeners[0].calls, 1);
  add(&scene.listeners[1]); /* the one moves into the array */
  assert_int_equal(scene.w->memory.calls, calls + 1);
  assert_int_equal(notify(), 0);
  expect_calls((int[]){2, 1}, 2);
  end();
}

static void log_name(listener_t *self, vg_event_t *event) {
  VG_UNUSED(event);
  world_log(scene.w, "%d", (int)(self - scene.listeners));
}

static void test_order_is_subscription_order(void **state) {
  size_t i;
  begin(state, N);
  for (i = 0; i < N; i++) scene.listeners[i].act = log_name;
  notify();
  assert_log(scene.w, "0 1 2 3 4 5");
  notify();
  assert_log(scene.w, "0 1 2 3 4 5");
  end();
}

static void test_empty(void **state) {
  begin(state, 0);
  assert_int_equal(notify(), 0);
  del(&scene.listeners[0]); /* not in it */
  vg__callbacks_clear(scene.w->s, &scene.vector);
  end();
}

static void test_removing_what_is_not_in(void **state) {
  begin(state, 3);
  scene.listeners[5].base.index = 1;
  del(&scene.listeners[5]);
  assert_int_equal(scene.vector.length, 3);
  assert_int_equal(scene.listeners[5].disposed, 0);
  end();
}

static void remove_self(listener_t *self, vg_event_t *event) {
  VG_UNUSED(event);
  del(self);
}

static void test_remove_self(void **state) {
  size_t who;
  for (who = 0; who < N; who++) {
    begin(state, N);
    scene.listeners[who].act = remove_self;
    notify();
    expect_calls((int[]){1, 1, 1, 1, 1, 1}, N);
    assert_int_equal(scene.listeners[who].disposed, 1);
    assert_int_equal(scene.vector.length, N - 1);
    notify();
    assert_int_equal(scene.listeners[who].calls, 1);
    end();
  }
}

static void test_everyone_removes_itself(void **state) {
  size_t i;
  begin(state, N);
  for (i = 0; i < N; i++) scene.listeners[i].act = remove_self;
  notify();
  expect_calls((int[]){1, 1, 1, 1, 1, 1}, N);
  assert_int_equal(scene.vector.length, 0);
  assert_int_equal(scene.vector.capacity, 0); /* and its memory has gone */
  end();
}

static void remove_other(listener_t *self, vg_event_t *event) {
  VG_UNUSED(event);
  if (self->data != NULL) del(self->data);
  self->data = NULL;
}

/* Each in turn removes each other: the visited ones were called, the others
** are not, and nobody else is skipped or called twice. */
static void test_remove_another(void **state) {
  int who, whom, i;
  for (who = 0; who < N; who++)
    for (whom = 0; whom < N; whom++) {
      begin(state, N);
      scene.listeners[who].act = remove_other;
      scene.listeners[who].data = &scene.listeners[whom];
      notify();
      for (i = 0; i < N; i++)
        assert_int_equal(scene.listeners[i].calls,
                         i == whom && whom > who ? 0 : 1);
      assert_int_equal(scene.listeners[whom].disposed, 1);
      assert_int_equal(scene.vector.length, N - 1);
      end();
    }
}

static void remove_all(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  VG_UNUSED(event);
  vg__callbacks_clear(scene.w->s, &scene.vector);
}

static void test_remove_all(void **state) {
  int who, i;
  for (who = 0; who < N; who++) {
    begin(state, N);
    scene.listeners[who].act = remove_all;
    notify();
    for (i = 0; i < N; i++) {
      assert_int_equal(scene.listeners[i].calls, i <= who);
      assert_int_equal(scene.listeners[i].disposed, 1);
    }
    end();
  }
}

static void add_other(listener_t *self, vg_event_t *event) {
  VG_UNUSED(event);
  if (self->data != NULL) add(self->data);
  self->data = NULL;
}

static void test_added_is_not_called_in_that_pass(void **state) {
  int who;
  for (who = 0; who < 5; who++) { /* ruling 29 */
    begin(state, 5);
    scene.listeners[who].act = add_other;
    scene.listeners[who].data = &scene.listeners[5];
    notify();
    expect_calls((int[]){1, 1, 1, 1, 1, 0}, N);
    notify();
    expect_calls((int[]){2, 2, 2, 2, 2, 1}, N);
    end();
  }
}

static void add_many(listener_t *self, vg_event_t *event) {
  size_t i;
  VG_UNUSED(event);
  self->act = NULL;
  for (i = 0; i < 64; i++) add(&scene.listeners[N + i]);
}

static void test_growth_during_a_walk(void **state) {
  size_t count, i;
  for (count = 1; count <= N; count++) { /* from the one, and the array */
    begin(state, count);
    scene.listeners[0].act = add_many;
    notify();
    for (i = 0; i < count; i++) assert_int_equal(scene.listeners[i].calls, 1);
    for (i = 0; i < 64; i++) assert_int_equal(scene.listeners[N + i].calls, 0);
    notify();
    for (i = 0; i < 64; i++) assert_int_equal(scene.listeners[N + i].calls, 1);
    end();
  }
}

static void rejoin(listener_t *self, vg_event_t *event) {
  VG_UNUSED(event);
  self->base.ref_count++;
  del(self);
  add(self);
  vg__callback_release(&self->base);
}

static void test_leaving_and_coming_back(void **state) {
  size_t i;
  begin(state, N);
  for (i = 0; i < N; i++) scene.listeners[i].act = rejoin;
  notify(); /* ends */
  expect_calls((int[]){1, 1, 1, 1, 1, 1}, N);
  notify();
  expect_calls((int[]){2, 2, 2, 2, 2, 2}, N);
  end();
}


/* Random changes in each callback, against a model that knows who has still
** to be called. */

enum { CROWD = 48, ROUNDS = 10000 };

typedef struct member {
  listener_t listener;
  int present; /* in the vector */
  int pending; /* was there when the pass began, and not called yet */
} member_t;

static member_t crowd[CROWD];
static uint32_t seed;

static void crowd_add(member_t *m) {
  add(&m->listener);
  m->present = 1;
}

static void crowd_del(member_t *m) {
  del(&m->listener);
  m->present = m->pending = 0;
}

static void crowd_act(listener_t *self, vg_event_t *event) {
  member_t *m = VG_CONTAINER(self, member_t, listener);
  uint32_t changes = dice(&seed) % 5;

  VG_UNUSED(event);
  assert_true(m->present);
  assert_true(m->pending); /* neither added in this pass nor told before */
  m->pending = 0;
  if (dice(&seed) % 4 == 0) crowd_del(m);
  while (changes-- > 0) {
    member_t *other = &crowd[dice(&seed) % CROWD];
    if (other->present)
      crowd_del(other);
    else
      crowd_add(other);
  }
  check_vector();
}

static void test_random_changes(void **state) {
  int round, i;
  uint32_t present;

  begin(state, 0);
  seed = 20240229;
  memset(crowd, 0, sizeof crowd);
  for (i = 0; i < CROWD; i++) {
    listener_init(&crowd[i].listener);
    crowd[i].listener.base.dispose = NULL;
    crowd[i].listener.act = crowd_act;
  }
  for (round = 0; round < ROUNDS; round++) {
    for (i = 0; i < CROWD; i++) {
      if (!crowd[i].present && dice(&seed) % 3 == 0) crowd_add(&crowd[i]);
      crowd[i].pending = crowd[i].present;
    }
    assert_int_equal(notify(), 0);
    present = 0;
    for (i = 0; i < CROWD; i++) {
      assert_false(crowd[i].pending); /* who stayed has been told */
      present += (uint32_t)crowd[i].present;
      assert_int_equal(crowd[i].listener.base.ref_count, crowd[i].present);
    }
    assert_int_equal(scene.vector.length, present);
  }
  end();
}


static int nested_result;

static void fire_again(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  VG_UNUSED(event);
  nested_result = notify();
}

static void test_nested_notification_is_refused(void **state) {
  begin(state, 3);
  scene.listeners[1].act = fire_again;
  nested_result = 0;
  assert_int_equal(notify(), 0);
  assert_int_equal(nested_result, VG_ENESTED);
  expect_calls((int[]){1, 1, 1}, 3);
  assert_int_equal(notify(), 0); /* and possible again afterwards */
  end();
}

/* Two vectors walked at once, the outer one changed from the inner walk. */
static vg_callbacks_t second;

static void fire_second(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  assert_int_equal(vg__callbacks_notify(scene.w->s, &second, event, 0, 0), 0);
}

static void test_walks_nest(void **state) {
  listener_t inner;
  begin(state, 4);
  memset(&second, 0, sizeof second);
  listener_init(&inner);
  inner.act = remove_other;
  inner.data = &scene.listeners[2];
  vg__callbacks_add(scene.w->s, &second, &inner.base);
  scene.listeners[1].act = fire_second;
  notify();
  expect_calls((int[]){1, 1, 0, 1}, 4);
  assert_int_equal(inner.calls, 1);
  vg__callbacks_clear(scene.w->s, &second);
  end();
}

static void test_two_owners(void **state) {
  listener_t *first, *other;
  begin(state, 2);
  first = &scene.listeners[0];
  other = &scene.listeners[1];
  first->base.ref_count++; /* a waker's */
  del(first);
  assert_int_equal(first->disposed, 0);
  vg__callback_release(&first->base);
  assert_int_equal(first->disposed, 1);
  other->base.ref_count++; /* the other way round */
  vg__callback_release(&other->base);
  assert_int_equal(other->disposed, 0);
  del(other);
  assert_int_equal(other->disposed, 1);
  del(other); /* not in it any more: no effect */
  assert_int_equal(other->disposed, 1);
  end();
}

static void test_clear_drops_one_reference_each(void **state) {
  size_t i;
  begin(state, N);
  scene.listeners[3].base.ref_count++;
  vg__callbacks_clear(scene.w->s, &scene.vector);
  for (i = 0; i < N; i++) assert_int_equal(scene.listeners[i].disposed, i != 3);
  vg__callback_release(&scene.listeners[3].base);
  assert_int_equal(scene.listeners[3].disposed, 1);
  end();
}

static void fail_to_add(listener_t *self, vg_event_t *event) {
  VG_UNUSED(self);
  VG_UNUSED(event);
  memory_fail_at(&scene.w->memory, 1);
  nested_result =
      vg__callbacks_add(scene.w->s, &scene.vector, &scene.listeners[N].base);
}

static void test_out_of_memory(void **state) {
  size_t count;
  for (count = 1; count <= 4; count += 3) { /* one to array, array to larger */
    begin(state, count);
    memory_fail_at(&scene.w->memory, 1);
    assert_int_equal(
        vg__callbacks_add(scene.w->s, &scene.vector, &scene.listeners[N].base),
        UV_ENOMEM);
    assert_int_equal(scene.listeners[N].base.ref_count, 0);
    assert_int_equal(scene.vector.length, count);
    scene.listeners[0].act = fail_to_add; /* the same during a walk */
    notify();
    assert_int_equal(nested_result, UV_ENOMEM);
    expect_calls((int[]){1, count > 1, count > 1, count > 1}, 4);
    scene.listeners[0].act = NULL;
    add(&scene.listeners[N]); /* and it works again */
    notify();
    assert_int_equal(scene.listeners[N].calls, 1);
    end();
  }
}


int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_one_needs_no_memory),
      world_test(test_order_is_subscription_order),
      world_test(test_empty),
      world_test(test_removing_what_is_not_in),
      world_test(test_remove_self),
      world_test(test_everyone_removes_itself),
      world_test(test_remove_another),
      world_test(test_remove_all),
      world_test(test_added_is_not_called_in_that_pass),
      world_test(test_growth_during_a_walk),
      world_test(test_leaving_and_coming_back),
      world_test(test_random_changes),
      world_test(test_nested_notification_is_refused),
      world_test(test_walks_nest),
      world_test(test_two_owners),
      world_test(test_clear_drops_one_reference_each),
      world_test(test_out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
** test_signal.c: signals where Lua does not reach (SI, ruling 24): several
** loops in several threads, a host that uses libuv too, subscribers that act
** while others are told.
*/

#include <signal.h>
#include <unistd.h>

#include "events.h"
#include "support.h"

static vg_signal_t *new_signal(world_t *w, int signum) {
  vg_signal_t *signal;
  assert_int_equal(vg_signal_new(w->s, signum, &signal), 0);
  return signal;
}

static void turn(world_t *w) {
  int i;
  for (i = 0; i < 4; i++) vg__reactor_turn(w->s->reactor, 0);
}

typedef struct watch {
  listener_t listener;
  vg_signal_t *signal;
} watch_t;

static void watch(world_t *w, watch_t *x, int signum) {
  listener_init(&x->listener);
  x->signal = new_signal(w, signum);
  assert_int_equal(vg_event_add_callback(&x->signal->event, &x->listener.base),
                   0);
  assert_int_equal(vg_event_start(&x->signal->event), 0);
}

static void unwatch(watch_t *x) {
  vg_event_del_callback(&x->signal->event, &x->listener.base);
  vg_event_stop(&x->signal->event);
  vg_event_release(&x->signal->event);
}

static struct sigaction disposition(int signum) {
  struct sigaction now;
  assert_int_equal(sigaction(signum, NULL, &now), 0);
  return now;
}

static volatile sig_atomic_t own_calls;

static void own_handler(int signum) {
  VG_UNUSED(signum);
  own_calls++;
}

static void set_handler(int signum, void (*handler)(int)) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  assert_int_equal(sigaction(signum, &action, NULL), 0);
}


static void test_what_was_found_is_put_back(void **state) {
  void (*const handlers[])(int) = {SIG_IGN, own_handler, SIG_DFL};
  world_t *w = *state;
  size_t i;

  for (i = 0; i < LENGTH(handlers); i++) {
    watch_t a, b;
    set_handler(SIGUSR1, handlers[i]);
    watch(w, &a, SIGUSR1);
    watch(w, &b, SIGUSR1);
    assert_true(disposition(SIGUSR1).sa_handler != handlers[i]);
    raise(SIGUSR1);
    turn(w);
    assert_int_equal(a.listener.calls, 1);
    assert_int_equal(b.listener.calls, 1);
    unwatch(&a);
    assert_true(disposition(SIGUSR1).sa_handler != handlers[i]);
    unwatch(&b);
    assert_true(disposition(SIGUSR1).sa_handler == handlers[i]);
  }
  assert_int_equal(own_calls, 0);
}

static void test_put_back_when_the_scheduler_goes(void **state) {
  world_t *w = *state;
  watch_t a;

  set_handler(SIGUSR1, SIG_IGN);
  watch(w, &a, SIGUSR1);
  unwatch(&a); /* closing, not closed */
  world_free(w);
  assert_true(disposition(SIGUSR1).sa_handler == SIG_IGN);
  set_handler(SIGUSR1, SIG_DFL);
}

static int host_calls;

static void host_signal(uv_signal_t *handle, int signum) {
  VG_UNUSED(handle);
  VG_UNUSED(signum);
  host_calls++;
}

/* The host's own uv_signal_t is there before, and stays longer: it goes on
** getting its signals. */
static void test_beside_a_host_that_stays(void **state) {
  world_t *w = *state;
  uv_loop_t loop;
  uv_signal_t handle;
  watch_t a;

  uv_loop_init(&loop);
  uv_signal_init(&loop, &handle);
  uv_signal_start(&handle, host_signal, SIGUSR2);
  watch(w, &a, SIGUSR2);
  unwatch(&a);
  host_calls = 0;
  raise(SIGUSR2);
  uv_run(&loop, UV_RUN_NOWAIT);
  assert_int_equal(host_calls, 1);
  uv_close((uv_handle_t *)&handle, NULL);
  uv_run(&loop, UV_RUN_DEFAULT);
  uv_loop_close(&loop);
  assert_true(disposition(SIGUSR2).sa_handler == SIG_DFL);
}

/* It goes first: libuv's handler must not be what is put back. */
static void test_beside_a_host_that_goes_first(void **state) {
  world_t *w = *state;
  uv_loop_t loop;
  uv_signal_t handle;
  watch_t a;

  uv_loop_init(&loop);
  uv_signal_init(&loop, &handle);
  uv_signal_start(&handle, host_signal, SIGUSR2);
  watch(w, &a, SIGUSR2);
  uv_close((uv_handle_t *)&handle, NULL);
  uv_run(&loop, UV_RUN_DEFAULT);
  uv_loop_close(&loop);
  raise(SIGUSR2);
  turn(w);
  assert_int_equal(a.listener.calls, 1);
  unwatch(&a);
  assert_true(disposition(SIGUSR2).sa_handler == SIG_DFL);
}

static void test_no_signal(void **state) {
  world_t *w = *state;
  vg_signal_t *signal;

  assert_int_equal(vg_signal_new(w->s, SIGKILL, &signal), UV_EINVAL);
  assert_int_equal(vg_signal_new(w->s, SIGSTOP, &signal), UV_EINVAL);
  assert_int_equal(vg_signal_new(w->s, 0, &signal), UV_EINVAL);
  assert_int_equal(vg_signal_new(w->s, NSIG, &signal), UV_EINVAL);
  assert_null(w->s->reactor->signals);
  turn(w);
  assert_int_equal(w->s->reactor->handle_count, 1);
}

static void test_no_memory(void **state) {
  world_t *w = *state;
  vg_signal_t *signal;

  memory_fail_at(&w->memory, 1);
  assert_int_equal(vg_signal_new(w->s, SIGUSR1, &signal), UV_ENOMEM);
  memory_fail_at(&w->memory, 0);
}


/*
** {== Acting while others are told
*/

enum { WATCHES = 4 };

static void close_all(listener_t *self, vg_event_t *event) {
  watch_t *all = self->data;
  int i;
  VG_UNUSED(event);
  for (i = 0; i < WATCHES; i++) vg_signal_close(all[i].signal);
}

static void test_all_closed_by_the_first(void **state) {
  world_t *w = *state;
  watch_t all[WATCHES];
  int i;

  for (i = 0; i < WATCHES; i++) {
    watch(w, &all[i], SIGUSR1);
    all[i].listener.act = close_all;
    all[i].listener.data = all;
  }
  raise(SIGUSR1);
  turn(w);
  assert_true(disposition(SIGUSR1).sa_handler == SIG_DFL);
  for (i = 0; i < WATCHES; i++) {
    assert_int_equal(all[i].listener.calls, 1);
    unwatch(&all[i]);
  }
  assert_int_equal(w->s->active, 0);
  assert_int_equal(w->s->reactor->handle_count, 1);
}

static void test_a_subscriber_that_stays(void **state) {
  world_t *w = *state;
  watch_t a;

  watch(w, &a, SIGUSR1);
  raise(SIGUSR1);
  turn(w);
  raise(SIGUSR1);
  turn(w);
  assert_int_equal(a.listener.calls, 2);
  assert_int_equal(a.listener.value, 1);
  assert_int_equal(vg__tally_pending(&a.signal->tally), 0); /* seen */
  unwatch(&a);
}

/* }================================================================= */


/*
** {== Threads
*/

typedef struct party {
  uv_thread_t thread;
  uv_sem_t *ready, *done;
  int told;
} party_t;

static void on_told(vg_callback_t *cb, vg_event_t *event, int status,
                    intptr_t value) {
  VG_UNUSED(cb);
  VG_UNUSED(event);
  VG_UNUSED(status);
  VG_UNUSED(value);
}

static void take_part(void *data) {
  party_t *party = data;
  vg_callback_t callback = {on_told, NULL, 0, 1};
  vg_scheduler_t *s = vg_scheduler_new(NULL, NULL, NULL, NULL);
  vg_signal_t *signal;

  if (s != NULL && vg_signal_new(s, SIGUSR1, &signal) == 0) {
    vg_event_add_callback(&signal->event, &callback);
    vg_event_start(&signal->event);
    uv_sem_post(party->ready);
    while (signal->tally.arrived == 0) vg__reactor_turn(s->reactor, 1);
    party->told = (int)signal->tally.arrived;
    vg_event_del_callback(&signal->event, &callback);
    vg_event_stop(&signal->event);
    uv_sem_wait(party->done);
    vg_event_release(&signal->event);
  }
  if (s != NULL) vg_scheduler_free(s, 0);
}

static void test_every_loop_is_told(void **state) {
  enum { PARTIES = 4 };
  party_t parties[PARTIES];
  uv_sem_t ready, done;
  int i;

  VG_UNUSED(state);
  set_handler(SIGUSR1, SIG_IGN);
  uv_sem_init(&ready, 0);
  uv_sem_init(&done, 0);
  for (i = 0; i < PARTIES; i++) { /* SI-08 */
    parties[i].ready = &ready;
    parties[i].done = &done;
    parties[i].told = 0;
    uv_thread_create(&parties[i].thread, take_part, &parties[i]);
  }
  for (i = 0; i < PARTIES; i++) uv_sem_wait(&ready);
  kill(getpid(), SIGUSR1);
  for (i = 0; i < PARTIES; i++) uv_sem_post(&done);
  for (i = 0; i < PARTIES; i++) {
    uv_thread_join(&parties[i].thread);
    assert_int_equal(parties[i].told, 1);
  }
  assert_true(disposition(SIGUSR1).sa_handler == SIG_IGN);
  set_handler(SIGUSR1, SIG_DFL);
  uv_sem_destroy(&ready);
  uv_sem_destroy(&done);
}

static void come_and_go(void *data) {
  vg_scheduler_t *s = vg_scheduler_new(NULL, NULL, NULL, NULL);
  vg_signal_t *signal;
  int i;

  VG_UNUSED(data);
  if (s == NULL) return;
  for (i = 0; i < 500; i++) {
    if (vg_signal_new(s, SIGUSR1, &signal) < 0) continue;
    if (i % 7 == 0) vg__reactor_turn(s->reactor, 0);
    vg_event_release(&signal->event);
  }
  vg_scheduler_free(s, 0);
}

/* First and last in the process change all the time; what was there at the
** beginning is there in the end.  (No signal is sent meanwhile: libuv leaves
** SIG_DFL for a moment when the last handle stops, and only the thread that
** stops it can be kept from taking a signal then.) */
static void test_threads_come_and_go(void **state) {
  enum { THREADS = 4 };
  uv_thread_t threads[THREADS];
  int i;

  VG_UNUSED(state);
  set_handler(SIGUSR1, SIG_IGN);
  for (i = 0; i < THREADS; i++)
    uv_thread_create(&threads[i], come_and_go, NULL);
  for (i = 0; i < THREADS; i++) uv_thread_join(&threads[i]);
  assert_true(disposition(SIGUSR1).sa_handler == SIG_IGN);
  set_handler(SIGUSR1, SIG_DFL);
}

/* }================================================================= */


int main(void) {
  const struct CMUnitTest tests[] = {
      world_test(test_what_was_found_is_put_back),
      world_test(test_put_back_when_the_scheduler_goes),
      world_test(test_beside_a_host_that_stays),
      world_test(test_beside_a_host_that_goes_first),
      world_test(test_no_signal),
      world_test(test_no_memory),
      world_test(test_all_closed_by_the_first),
      world_test(test_a_subscriber_that_stays),
      world_test(test_every_loop_is_told),
      world_test(test_threads_come_and_go),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

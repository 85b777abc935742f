/*
** support.c: see support.h.
*/

#include <stdlib.h>

#include "support.h"

/*
** {== Memory.  Each block has its size in front, to check what is given back.
*/

typedef union head {
  size_t size;
  max_align_t align;
} head_t;

void *memory_alloc(void *data, void *ptr, size_t old_size, size_t new_size) {
  memory_t *memory = data;
  head_t *head = NULL;

  if (ptr != NULL) {
    head = (head_t *)ptr - 1;
    assert_int_equal(head->size, old_size);
  }
  if (new_size == 0) {
    if (head != NULL) {
      memory->bytes -= old_size;
      memory->blocks--;
      free(head);
    }
    return NULL;
  }
  memory->calls++;
  if (memory->fail_at > 0 && --memory->fail_at == 0) {
    if (memory->fail_all) memory->fail_at = 1;
    return NULL;
  }
  /* Always somewhere else, so that a stale pointer is one. */
  head = malloc(sizeof *head + new_size);
  assert_non_null(head);
  head->size = new_size;
  memset(head + 1, 0xa5, new_size);
  if (ptr != NULL) {
    memcpy(head + 1, ptr, old_size < new_size ? old_size : new_size);
    memory->bytes -= old_size;
    memory->blocks--;
    free((head_t *)ptr - 1);
  }
  memory->bytes += new_size;
  memory->blocks++;
  return head + 1;
}

void memory_fail_at(memory_t *memory, size_t call) {
  memory->fail_at = call;
  memory->fail_all = 0;
}

/* }================================================================= */


/*
** {== World
*/

static void host_pin(void *data, vg_event_t *event) {
  VG_UNUSED(event);
  ((world_t *)data)->pins++;
}

static void host_unpin(void *data, vg_event_t *event) {
  VG_UNUSED(event);
  ((world_t *)data)->unpins++;
}

static void host_unhandled(void *data, vg_coroutine_t *co) {
  VG_UNUSED(co);
  ((world_t *)data)->unhandled++;
}

static void host_stuck(void *data, vg_coroutine_t *co) {
  assert_int_equal(co->state, VG_COROUTINE_SUSPENDED); /* not yet woken */
  ((world_t *)data)->stuck++;
}

static void host_deadlock(void *data, size_t count) {
  ((world_t *)data)->verdicts++;
  ((world_t *)data)->last_verdict = count;
}

int world_setup(void **state) {
  world_t *w = calloc(1, sizeof *w);
  vg_host_t host = {w,          host_pin,      host_unpin, host_unhandled,
                    host_stuck, host_deadlock, NULL};

  if (w == NULL) return -1;
  w->s = vg_scheduler_new(NULL, memory_alloc, &w->memory, &host);
  *state = w;
  return w->s != NULL ? 0 : -1;
}

void world_free(world_t *w) {
  assert_null(w->s->walk);
  assert_int_equal(w->memory.bytes, w->s->bytes + sizeof *w->s);
  vg_scheduler_free(w->s, 100);
  w->s = NULL;
  assert_int_equal(w->memory.bytes, 0);
  assert_int_equal(w->memory.blocks, 0);
}

int world_teardown(void **state) {
  world_t *w = *state;
  if (w->s != NULL) world_free(w);
  assert_int_equal(w->pins, w->unpins);
  free(w);
  return 0;
}

void world_log(world_t *w, const char *format, ...) {
  char *end = w->log + w->log_used;
  size_t room = sizeof w->log - w->log_used;
  va_list arguments;
  int n;

  if (w->log_used > 0) {
    *end++ = ' ';
    room--;
    w->log_used++;
  }
  va_start(arguments, format);
  n = vsnprintf(end, room, format, arguments);
  va_end(arguments);
  assert_true(n >= 0 && (size_t)n < room);
  w->log_used += (size_t)n;
}

void world_assert_log(world_t *w, const char *text, const char *file,
                      int line) {
  _assert_string_equal(w->log, text, file, line);
  w->log[0] = '\0';
  w->log_used = 0;
}

void world_run(world_t *w) {
  assert_int_equal(vg_scheduler_run(w->s, NULL), 0);
  assert_int_equal(w->s->live, 0);
  assert_int_equal(w->s->active, 0);
  assert_int_equal(w->s->heap_count, 0);
}

/* }================================================================= */


/*
** {== Fakes
*/

static int fake_start(vg_event_t *event) {
  fake_t *fake = (fake_t *)event;
  fake->starts++;
  if (fake->start_error < 0) return fake->start_error;
  assert_false(fake->is_armed);
  fake->is_armed = 1;
  if (fake->start_fires == FIRE_NOTIFY)
    vg_event_notify(event, fake->status, fake->value);
  else if (fake->start_fires == FIRE_CLOSE)
    vg_event_notify_and_close(event, fake->status, fake->value);
  return 0;
}

static void fake_stop(vg_event_t *event) {
  fake_t *fake = (fake_t *)event;
  fake->stops++;
  fake->is_armed = 0;
}

static int fake_replay(vg_event_t *event, vg_callback_t *callback) {
  fake_t *fake = (fake_t *)event;
  if (!fake->stored) return 0;
  if (callback != NULL)
    callback->notify(callback, event, fake->status, fake->value);
  return 1;
}

static void fake_dispose(vg_event_t *event) {
  fake_t *fake = (fake_t *)event;
  fake->disposed++;
  vg__callbacks_clear(event->scheduler, &event->callbacks);
  if (fake->on_heap) vg__free(event->scheduler, fake, sizeof *fake);
}

static int fake_info(const vg_event_t *event, char *buffer, size_t size) {
  return snprintf(buffer, size, "fake %s", ((const fake_t *)event)->name);
}

static int fake_handler(vg_event_t *event, int *status, intptr_t *value) {
  fake_t *fake = (fake_t *)event;
  VG_UNUSED(value);
  fake->handler_calls++;
  if (fake->handler_status != 0) *status = fake->handler_status;
  return fake->handler_result;
}

static void fake_revoke(vg_event_t *event, vg_wait_t *wait) {
  ((fake_t *)event)->revoked++;
  vg_list_remove(&wait->link);
}

static const vg_event_methods_t fake_methods[] = {
    {.name = "passive",
     .dispose = fake_dispose,
     .info = fake_info,
     .revoke = fake_revoke},
    {.name = "active",
     .start = fake_start,
     .stop = fake_stop,
     .dispose = fake_dispose,
     .info = fake_info},
    {.name = "stored",
     .start = fake_start,
     .stop = fake_stop,
     .replay = fake_replay,
     .dispose = fake_dispose,
     .info = fake_info},
    {.name = "handled",
     .dispose = fake_dispose,
     .notify_handler = fake_handler}};

void fake_init(world_t *w, fake_t *fake, const char *name, fake_kind_t kind,
               uint32_t flags) {
  memset(fake, 0, sizeof *fake);
  vg_event_init(&fake->event, w->s, &fake_methods[kind], flags);
  fake->world = w;
  fake->name = name;
}

fake_t *fake_new(world_t *w, const char *name, fake_kind_t kind) {
  fake_t *fake = vg__alloc(w->s, sizeof *fake);
  assert_non_null(fake);
  fake_init(w, fake, name, kind, 0);
  fake->on_heap = 1;
  return fake;
}

void fake_init_handled(world_t *w, fake_t *fake, const char *name) {
  fake_init(w, fake, name, FAKE_PASSIVE, 0);
  fake->event.methods = &fake_methods[LENGTH(fake_methods) - 1];
}

int fake_fire(fake_t *fake, int status, intptr_t value) {
  return vg_event_notify(&fake->event, status, value);
}

/* }================================================================= */


/*
** {== Listeners
*/

static void listener_notify(vg_callback_t *callback, vg_event_t *event,
                            int status, intptr_t value) {
  listener_t *listener = (listener_t *)callback;
  listener->calls++;
  listener->status = status;
  listener->value = value;
  if (listener->act != NULL) listener->act(listener, event);
}

static void listener_dispose(vg_callback_t *callback) {
  ((listener_t *)callback)->disposed++;
}

void listener_init(listener_t *listener) {
  memset(listener, 0, sizeof *listener);
  listener->base.notify = listener_notify;
  listener->base.dispose = listener_dispose;
}

/* }================================================================= */


/*
** {== Routines
*/

static routine_t *routine_of(vg_coroutine_t *co) {
  return VG_CONTAINER(co, routine_t, co);
}

static void take_outcome(routine_t *r) {
  r->error = r->co.waker.error;
  r->value = r->co.waker.value;
  r->ordinal = r->co.waker.ordinal;
}

static int routine_resume(vg_coroutine_t *co) {
  routine_t *r = routine_of(co);
  int result;

  assert_int_equal(co->waker.status, VG_WAKER_RESULT);
  assert_ptr_equal(vg_scheduler_current(co->event.scheduler), co);
  r->runs++;
  take_outcome(r);
  while ((result = r->body(r)) == AGAIN) take_outcome(r);
  return result;
}

static void routine_discard(vg_coroutine_t *co) {
  routine_t *r = routine_of(co);
  r->discarded++;
  vg_coroutine_finish(co, VG_COROUTINE_CANCELLED);
}

static int routine_where(const vg_coroutine_t *co, char *buffer, size_t size) {
  return snprintf(buffer, size, "%s.c:%d",
                  ((const routine_t *)(const void *)co)->name,
                  ((const routine_t *)(const void *)co)->step);
}

static void routine_dispose(vg_event_t *event) {
  routine_t *r = routine_of((vg_coroutine_t *)event);
  r->disposed++;
  vg__callbacks_clear(event->scheduler, &event->callbacks);
  if (r->on_heap) vg__free(event->scheduler, r, sizeof *r);
}

static const vg_coroutine_methods_t routine_methods = {
    .event = {.name = "routine",
              .replay = vg__coroutine_replay,
              .dispose = routine_dispose,
              .info = vg__coroutine_info},
    .resume = routine_resume,
    .discard = routine_discard,
    .where = routine_where};

void routine_init(world_t *w, routine_t *r, const char *name, body_t body,
                  void *data) {
  memset(r, 0, sizeof *r);
  vg_coroutine_init(&r->co, w->s, &routine_methods, 0);
  r->world = w;
  r->name = name;
  r->body = body;
  r->data = data;
}

routine_t *routine_new(world_t *w, const char *name, body_t body, void *data) {
  routine_t *r = vg__alloc(w->s, sizeof *r);
  assert_non_null(r);
  routine_init(w, r, name, body, data);
  r->on_heap = 1;
  return r;
}

void routine_spawn(world_t *w, routine_t *r, const char *name, body_t body,
                   void *data) {
  routine_init(w, r, name, body, data);
  assert_int_equal(vg_coroutine_spawn(&r->co, w->s->root, 0), 0);
}

int routine_park(routine_t *self) {
  return vg_waker_park(&self->co) > 0 ? VG_SUSPENDED : AGAIN;
}

int routine_yield(routine_t *self) {
  vg_waker_new(&self->co);
  self->co.waker.status = VG_WAKER_QUEUED;
  vg__enqueue(&self->co);
  return VG_SUSPENDED;
}

int routine_await(routine_t *self, vg_event_t *event) {
  vg_waker_new(&self->co);
  assert_int_equal(vg_resume_when(&self->co, event, 0, NULL, NULL), 0);
  return routine_park(self);
}

int routine_sleep(routine_t *self, uint64_t ns) {
  vg_waker_new(&self->co);
  assert_int_equal(vg__waker_timer(&self->co, uv_hrtime() + ns, 1), 0);
  return routine_park(self);
}

int routine_end(routine_t *self, vg_coroutine_state_t how) {
  vg_coroutine_finish(&self->co, how);
  return VG_FINISHED;
}

void routine_main(world_t *w, routine_t *r) {
  routine_init(w, r, "main", NULL, NULL);
  r->co.flags |= VG_CO_MAIN | VG_CO_STARTED;
  r->co.state = VG_COROUTINE_RUNNING;
}

int main_park(routine_t *main) {
  vg_scheduler_t *s = main->world->s;
  if (vg_waker_park(&main->co) > 0)
    assert_int_equal(vg_scheduler_run(s, &main->co), 0);
  assert_null(vg_scheduler_current(s));
  take_outcome(main);
  return main->error;
}

int main_await(routine_t *main, vg_event_t *event) {
  vg_waker_new(&main->co);
  assert_int_equal(vg_resume_when(&main->co, event, 0, NULL, NULL), 0);
  return main_park(main);
}

int body_completes(routine_t *self) {
  world_log(self->world, "%s", self->name);
  return routine_end(self, VG_COROUTINE_COMPLETED);
}

int body_awaits(routine_t *self) {
  if (self->step++ == 0) return routine_await(self, self->data);
  world_log(self->world, "%s:%s", self->name,
            self->error == 0 ? "ok" : vg_error_name(self->error));
  return routine_end(
      self, self->error == 0 ? VG_COROUTINE_COMPLETED : VG_COROUTINE_CANCELLED);
}

/* }================================================================= */

uint32_t dice(uint32_t *state) {
  uint32_t x = *state != 0 ? *state : 1; /* xorshift */
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return *state = x;
}

/*
** scheduler.c: who runs next.
**
** One tick: microtasks, then the coroutine at the head of the ready queue,
** then its result.  While the queue has work the reactor is looked at every
** VG_RESUMES_PER_POLL ticks, without waiting; when it is empty, with waiting.
** So a busy queue still polls, and a busy reactor still drains.
**
** When nothing can run and nothing that is active could change that, it is
** the end, or a deadlock.
**
** After resuming a coroutine the scheduler does not touch it: it may be gone.
*/

#include <stdlib.h>
#include <string.h>

#include "events.h"

/*
** {== Memory
*/

static void *default_alloc(void *data, void *ptr, size_t old_size,
                           size_t new_size) {
  VG_UNUSED(data);
  VG_UNUSED(old_size);
  if (new_size == 0) {
    free(ptr);
    return NULL;
  }
  return realloc(ptr, new_size);
}

void *vg__alloc(vg_scheduler_t *s, size_t size) {
  return vg__realloc(s, NULL, 0, size);
}

void *vg__realloc(vg_scheduler_t *s, void *ptr, size_t old, size_t size) {
  /* With no block, lua_Alloc's second size tells a kind of object: 0. */
  void *block = s->alloc(s->alloc_data, ptr, ptr != NULL ? old : 0, size);
  if (block != NULL) s->bytes = s->bytes - (ptr != NULL ? old : 0) + size;
  return block;
}

void vg__free(vg_scheduler_t *s, void *ptr, size_t size) {
  if (ptr == NULL) return;
  s->bytes -= size;
  s->alloc(s->alloc_data, ptr, size, 0);
}

/* }================================================================= */


/*
** {== Ready queue
*/

int vg__ring_reserve(vg_scheduler_t *s, size_t count) {
  vg_ring_t *ring = &s->ready;
  size_t size = ring->mask + 1, i;
  vg_coroutine_t **items;

  if (count <= size) return 0;
  while (size < count) size *= 2;
  items = vg__alloc(s, size * sizeof(*items));
  if (items == NULL) return UV_ENOMEM;
  for (i = 0; i < ring->count; i++)
    items[i] = ring->items[(ring->head + i) & ring->mask];
  vg__free(s, ring->items, (ring->mask + 1) * sizeof(*items));
  ring->items = items;
  ring->mask = size - 1;
  ring->head = 0;
  return 0;
}

void vg__enqueue(vg_coroutine_t *co) {
  vg_scheduler_t *s = co->event.scheduler;
  if (!vg__coroutine_ended(co)) co->state = VG_COROUTINE_QUEUED;
  if (co->flags & VG_CO_HIGH_PRIORITY)
    vg_ring_push_front(&s->ready, co);
  else
    vg_ring_push(&s->ready, co);
}

/* }================================================================= */


/*
** {== Microtasks
*/

void vg_microtask_add(vg_scheduler_t *s, vg_microtask_t *task) {
  task->cancelled = 0; /* one that was cancelled and is still queued, too */
  if (task->queued) return;
  task->queued = 1;
  task->next = NULL;
  task->ref_count++;
  *s->micro_last = task;
  s->micro_last = &task->next;
}

void vg_microtask_cancel(vg_microtask_t *task) { task->cancelled = 1; }

void vg_microtask_release(vg_microtask_t *task) {
  if (--task->ref_count == 0 && task->dispose != NULL) task->dispose(task);
}

static vg_microtask_t *take_microtask(vg_scheduler_t *s) {
  vg_microtask_t *task = s->micro_first;
  if (task == NULL) return NULL;
  s->micro_first = task->next;
  if (s->micro_first == NULL) s->micro_last = &s->micro_first;
  task->queued = 0;
  return task;
}

static void run_microtasks(vg_scheduler_t *s) {
  vg_microtask_t *task;
  while ((task = take_microtask(s)) != NULL) {
    int err = task->cancelled ? 0 : task->run(task);
    vg_microtask_release(task);
    if (err < 0) {
      vg_scheduler_shutdown(s);
      return; /* the rest stay queued */
    }
  }
}

/* }================================================================= */


/*
** {== Running
*/

static void step(vg_scheduler_t *s, vg_coroutine_t *co) {
  const vg_coroutine_methods_t *methods = vg__comethods(co);

  if (co->waker.status == VG_WAKER_IGNORED) {
    s->current = co;
    methods->discard(co);
  } else {
    vg__begin(s, co);
    if (co->flags & VG_CO_SWITCH_HANDLERS) {
      vg__coroutine_switched(co, VG_SWITCH_ENTER);
      if (methods->resume(co) == VG_SUSPENDED &&
          (co->flags & VG_CO_SWITCH_HANDLERS))
        vg__coroutine_switched(co, VG_SWITCH_LEAVE);
    } else {
      methods->resume(co);
    }
  }
  s->current = NULL;
}

/* The coroutines that nothing can wake, or that nobody would miss. */
typedef struct verdict {
  vg_scheduler_t *scheduler;
  size_t stuck, idle;
  enum { COUNT, WAKE_STUCK, END_IDLE } act;
} verdict_t;

static void judge(vg_coroutine_t *co, void *data) {
  verdict_t *v = data;

  if (co->state != VG_COROUTINE_SUSPENDED) return;
  if (vg__waker_is_idle(co)) {
    v->idle++;
    if (v->act != END_IDLE) return;
    vg_coroutine_cancel(co);
    /* Cancelled before and idle again, inside a protection: cut it short. */
    if (co->state == VG_COROUTINE_SUSPENDED)
      vg_waker_wake(co, NULL, VG_EDEADLOCK, 0);
    return;
  }
  v->stuck++;
  if (v->act != WAKE_STUCK) return;
  if (v->scheduler->host.stuck != NULL)
    v->scheduler->host.stuck(v->scheduler->host.data, co);
  if (co->flags & VG_CO_DEADLOCKED) vg_coroutine_cancel(co);
  co->flags |= VG_CO_DEADLOCKED;
  if (co->state == VG_COROUTINE_SUSPENDED)
    vg_waker_wake(co, NULL, VG_EDEADLOCK, 0);
}

/* Nothing runs, nothing is active.  Whether anybody was woken by the verdict.
** `until` set: the main chunk waits too.  While anybody is stuck it is not the
** end yet, and the idle ones are left alone. */
static int resolve_standstill(vg_scheduler_t *s, vg_coroutine_t *until) {
  verdict_t v = {s, 0, 0, COUNT};
  int main_stuck = until != NULL && until->state == VG_COROUTINE_SUSPENDED;

  vg__each_coroutine(s, judge, &v);
  if (v.stuck > 0 || main_stuck) {
    s->deadlocks = 1;
    if (s->host.deadlock != NULL)
      s->host.deadlock(s->host.data, v.stuck + (main_stuck ? 1 : 0));
    v.act = WAKE_STUCK;
    vg__each_coroutine(s, judge, &v);
    if (main_stuck) {
      if (s->host.stuck != NULL) s->host.stuck(s->host.data, until);
      vg_waker_wake(until, NULL, VG_EDEADLOCK, 0);
    }
    return 1;
  }
  if (v.idle > 0) {
    v.act = END_IDLE;
    vg__each_coroutine(s, judge, &v);
    return 1;
  }
  return 0;
}

/* After a shutdown every coroutine has ended, and something goes on: bytes
** that nobody reads, a lookup.  It has so long. */
#define GRACE_NS 5000000000u

typedef struct grace {
  vg_alarm_t alarm;
  enum { NO_HURRY, LIMITED, OVER } state;
  int collected;
} grace_t;

static void grace_over(vg_alarm_t *alarm) {
  VG_CONTAINER(alarm, grace_t, alarm)->state = OVER;
}

static int is_over(vg_scheduler_t *s, grace_t *grace) {
  if (s->active == 0) return 1;
  if (!grace->collected && s->host.collect != NULL) {
    grace->collected = 1;
    s->host.collect(s->host.data);
    if (s->live > 0) return 0; /* a finalizer has spawned */
    if (s->active == 0) return 1;
  }
  if (s->stopping && grace->state == NO_HURRY) {
    vg_alarm_t alarm = {{0, 0, VG_NODE_CALL, 1}, grace_over};
    grace->alarm = alarm;
    grace->state = LIMITED;
    if (vg__timer_arm(s, &grace->alarm.node, uv_hrtime() + GRACE_NS) < 0)
      grace->state = OVER;
  }
  return grace->state == OVER;
}

int vg_scheduler_run(vg_scheduler_t *s, vg_coroutine_t *until) {
  grace_t grace = {.state = NO_HURRY};

  if (s->running || s->closed) return VG_ESTATE;
  s->running = 1;
  s->stopping = 0;
  s->until = until;
  for (;;) {
    vg_coroutine_t *co;

    if (s->micro_first != NULL) run_microtasks(s);
    co = vg_ring_take(&s->ready);
    if (co != NULL) {
      if (co == until) {
        vg__begin(s, co);
        s->current = NULL; /* the main chunk is no coroutine */
        break;
      }
      step(s, co);
      if (++s->since_poll < VG_RESUMES_PER_POLL) continue;
      s->since_poll = 0;
      vg__reactor_turn(s->reactor, 0);
      continue;
    }
    s->since_poll = 0;
    if (until == NULL && s->live == 0 && is_over(s, &grace)) break;
    vg__reactor_turn(s->reactor, s->active > 0 && s->ready.count == 0);
    if (s->ready.count > 0 || s->active > 0 || s->micro_first != NULL) continue;
    if (until == NULL && s->live == 0) break;
    if (!resolve_standstill(s, until)) break;
  }
  if (grace.state == LIMITED) vg__timer_disarm(s, &grace.alarm.node);
  vg__polls_settle(s->reactor); /* no descriptor is held until the next run */
  s->running = 0;
  s->until = NULL;
  return 0;
}

void vg__drain(vg_scheduler_t *s) {
  size_t round;

  if (s->running || s->closed) return;
  s->running = 1;
  for (round = s->ready.count; round > 0; round--) {
    vg_coroutine_t *co;
    if (s->micro_first != NULL) run_microtasks(s);
    co = vg_ring_take(&s->ready);
    if (co == NULL) break;
    step(s, co);
  }
  if (s->micro_first != NULL) run_microtasks(s);
  s->running = 0;
}

void vg_scheduler_shutdown(vg_scheduler_t *s) {
  if (s->closed || s->live == 0) return; /* nothing to shut down */
  s->shutting_down = s->stopping = 1;
  vg_scope_cancel(s->root);
}

vg_coroutine_t *vg_scheduler_current(vg_scheduler_t *s) { return s->current; }

uv_loop_t *vg_scheduler_loop(vg_scheduler_t *s) { return s->reactor->loop; }

/* }================================================================= */


vg_scheduler_t *vg_scheduler_new(uv_loop_t *loop, vg_alloc_t alloc,
                                 void *alloc_data, const vg_host_t *host) {
  vg_scheduler_t *s;

  if (alloc == NULL) alloc = default_alloc;
  s = alloc(alloc_data, NULL, 0, sizeof *s);
  if (s == NULL) return NULL;
  memset(s, 0, sizeof *s);
  s->alloc = alloc;
  s->alloc_data = alloc_data;
  if (host != NULL) s->host = *host;
  s->micro_last = &s->micro_first;
  s->ready.mask = 63;
  s->ready.items = vg__alloc(s, 64 * sizeof(*s->ready.items));
  s->reactor = s->ready.items != NULL ? vg__reactor_new(loop) : NULL;
  if (s->reactor != NULL) {
    s->reactor->scheduler = s;
    if (vg_scope_new(s, NULL, &s->root) == 0) return s;
    vg__reactor_free(s->reactor, 0);
  }
  vg__free(s, s->ready.items, 64 * sizeof(*s->ready.items));
  alloc(alloc_data, s, sizeof *s, 0);
  return NULL;
}

/* A coroutine of a state that closes: what it waited for lets go of it. */
static void drop(vg_coroutine_t *co, void *data) {
  VG_UNUSED(data);
  vg_waker_clean(co);
  vg__callbacks_clear(co->event.scheduler, &co->event.callbacks);
}

static void free_scopes(vg_scope_t *scope) {
  while (!vg_list_empty(&scope->children))
    free_scopes(VG_CONTAINER(scope->children.next, vg_scope_t, link));
  while (!vg_list_empty(&scope->coroutines)) {
    vg_coroutine_t *co =
        VG_CONTAINER(scope->coroutines.next, vg_coroutine_t, link);
    vg_list_remove(&co->link);
    co->scope = NULL;
    if (!(co->event.flags & VG_EVENT_LUA_OBJECT)) vg_event_release(&co->event);
  }
  vg__callbacks_clear(scope->event.scheduler, &scope->event.callbacks);
  if (vg_linked(&scope->link)) vg_list_remove(&scope->link);
  vg__free(scope->event.scheduler, scope, sizeof *scope);
}

void vg_scheduler_free(vg_scheduler_t *s, unsigned budget_ms) {
  vg_microtask_t *task;
  vg_wait_t *wait;

  s->closed = 1;
  vg__each_coroutine(s, drop, NULL);
  while ((task = take_microtask(s)) != NULL) vg_microtask_release(task);
  s->heap_count = 0; /* the nodes are others' memory */
  vg__reactor_free(s->reactor, budget_ms);
  free_scopes(s->root);
  vg__coroutine_forget_switches(s);
  while ((wait = s->free_waits) != NULL) {
    s->free_waits = wait->next;
    vg__free(s, wait, sizeof *wait);
  }
  vg__free(s, s->heap, s->heap_size * sizeof *s->heap);
  vg__free(s, s->ready.items, (s->ready.mask + 1) * sizeof(*s->ready.items));
  s->alloc(s->alloc_data, s, sizeof *s, 0);
}

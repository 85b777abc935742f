/*
** reactor.c: the libuv loop, and the events that live in it.
**
** libuv's callbacks only fire events, and events only queue coroutines; no
** Lua code ever runs below uv_run.  Time is the heap's (timer.c): one
** uv_timer_t makes uv_run return when its first node is due.
**
** The reactor and its events come from malloc: on a host's loop they outlive
** the scheduler until their close callbacks have run.
*/

#include <stdlib.h>
#include <string.h>

#include "internal.h"

/*
** {== Events that libuv knows
*/

void *vg__uv_event_new(vg_scheduler_t *s, size_t size,
                       const vg_event_methods_t *methods, uint32_t flags,
                       void (*shut)(vg_uv_event_t *event)) {
  vg_uv_event_t *event = calloc(1, size);
  if (event == NULL) return NULL;
  vg_event_init(&event->event, s, methods, flags);
  event->reactor = s->reactor;
  event->shut = shut;
  return event;
}

void vg__uv_event_attach(vg_uv_event_t *event) {
  vg_list_append(&event->reactor->handles, &event->link);
  event->reactor->handle_count++;
}

/* An orphan goes with its last handle and its last request. */
static void free_if_orphan(vg_reactor_t *r) {
  if (r->orphan && r->handle_count == 0 && r->request_count == 0) free(r);
}

void vg__uv_event_detach(vg_uv_event_t *event) {
  vg_reactor_t *r = event->reactor;

  vg_list_remove(&event->link);
  r->handle_count--;
  /* Without a scheduler its Lua state has gone, and every owner with it. */
  if (event->event.ref_count == 0 || !vg__reactor_alive(r)) free(event);
  free_if_orphan(r);
}

void vg__uv_event_dispose(vg_event_t *event) {
  vg_uv_event_t *uv_event = (vg_uv_event_t *)event;
  event->flags |= VG_EVENT_CLOSED;
  if (vg_linked(&uv_event->link))
    uv_event->shut(uv_event);
  else
    free(uv_event);
}

void vg__request_end(vg_reactor_t *r) {
  r->request_count--;
  free_if_orphan(r);
}

/* }================================================================= */


/* uv_run looks at timers first and then waits for descriptors: without this
** it would wait although the first node is due. */
static void timer_due(uv_timer_t *timer) {
  vg_reactor_t *r = timer->data;
  if (r->turning) uv_stop(r->loop);
}

static void timer_closed(uv_handle_t *handle) {
  vg_reactor_t *r = handle->data;
  r->handle_count--;
  free_if_orphan(r);
}

vg_reactor_t *vg__reactor_new(uv_loop_t *loop) {
  vg_reactor_t *r = calloc(1, sizeof *r);

  if (r == NULL) return NULL;
  vg_list_init(&r->handles);
  r->loop = loop;
  if (loop == NULL) {
    if (uv_loop_init(&r->own_loop) < 0) {
      free(r);
      return NULL;
    }
    r->loop = &r->own_loop;
    r->owns_loop = 1;
  }
  uv_timer_init(r->loop, &r->timer); /* cannot fail */
  r->timer.data = r;
  r->handle_count = 1;
  return r;
}

/* Makes uv_run return when the first node is due.  Both clocks count from the
** same origin; rounding up, and rounding libuv's down, is never early. */
static void arm(vg_reactor_t *r, uint64_t due_ns) {
  uint64_t due_ms = due_ns / 1000000 + (due_ns % 1000000 != 0);
  uint64_t now_ms = uv_now(r->loop);

  if (due_ns == r->armed_ns) return;
  r->armed_ns = due_ns;
  if (due_ns == 0)
    uv_timer_stop(&r->timer);
  else
    uv_timer_start(&r->timer, timer_due, due_ms > now_ms ? due_ms - now_ms : 0,
                   0);
}

void vg__reactor_turn(vg_reactor_t *r, int wait) {
  uint64_t next = vg__timers_next(r->scheduler);

  if (wait && next != 0 && next <= uv_hrtime()) wait = 0; /* due already */
  if (wait) arm(r, next);
  if (uv_loop_alive(r->loop)) {
    r->turning = 1;
    uv_run(r->loop, wait ? UV_RUN_ONCE : UV_RUN_NOWAIT);
    r->turning = 0;
  }
  if (r->armed_ns != 0 && !uv_is_active((uv_handle_t *)&r->timer))
    r->armed_ns = 0;
  if (r->scheduler->heap_count > 0) vg__timers_expire(r->scheduler);
}

static void shut_all(vg_reactor_t *r) {
  vg_link_t *link, *next;
  for (link = r->handles.next; link != &r->handles; link = next) {
    vg_uv_event_t *event = VG_CONTAINER(link, vg_uv_event_t, link);
    next = link->next;
    event->event.flags |= VG_EVENT_CLOSED;
    vg__callbacks_clear(r->scheduler, &event->event.callbacks);
    event->shut(event);
  }
  uv_close((uv_handle_t *)&r->timer, timer_closed);
}

void vg__reactor_free(vg_reactor_t *r, unsigned budget_ms) {
  unsigned waited_ms = 0;

  r->closing = 1;
  shut_all(r);
  if (r->owns_loop && !r->turning) {
    while (r->handle_count > 0 || r->request_count > 0) {
      uv_run(r->loop, UV_RUN_NOWAIT);
      if (r->handle_count == 0 && r->request_count == 0) break;
      if (waited_ms >= budget_ms) break; /* a worker is still busy */
      uv_sleep(1);
      waited_ms++;
    }
  }
  r->scheduler = NULL;
  if (r->handle_count == 0 && r->request_count == 0) {
    if (r->owns_loop) uv_loop_close(r->loop);
    free(r);
  } else {
    r->orphan = !r->owns_loop;
  }
}

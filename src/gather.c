/*
** gather.c: one event over many others: all of them, or enough of them.
*/

#include <stdio.h>

#include "internal.h"

int vg_gather_done(const vg_gather_t *g) {
  return g->succeeded >= g->need || g->settled == g->count ||
         (g->fail_fast && g->settled > g->succeeded);
}

static void member_settled(vg_callback_t *cb, vg_event_t *event, int status,
                           intptr_t value);

void vg_gather_member(vg_gather_t *g, uint32_t index, vg_event_t *event) {
  vg_gather_member_t *m = &g->members[index];
  m->base.notify = member_settled;
  m->base.dispose = NULL;
  m->base.index = 0;
  m->base.ref_count = 1;
  m->gather = g;
  m->event = event;
  m->value = 0;
  m->status = 0;
  m->subscribed = m->started = m->settled = m->owned = 0;
}

static void leave(vg_gather_member_t *m) {
  if (m->subscribed) {
    m->subscribed = 0;
    vg_event_del_callback(m->event, &m->base);
  }
  if (m->started) {
    m->started = 0;
    vg_event_stop(m->event);
  }
}

static void member_settled(vg_callback_t *cb, vg_event_t *event, int status,
                           intptr_t value) {
  vg_gather_member_t *m = (vg_gather_member_t *)cb;
  vg_gather_t *g = m->gather;

  if (m->settled || vg_gather_done(g)) return;
  m->settled = 1;
  m->status = status;
  m->value = value;
  event->flags |= VG_EVENT_RESULT_USED;
  if (status < 0)
    event->flags |= VG_EVENT_ERROR_HANDLED;
  else
    g->succeeded++;
  g->order[g->settled++] = (uint32_t)(m - g->members);
  leave(m);
  if (vg_gather_done(g)) vg_event_notify(&g->event, 0, 0);
}

void vg_gather_ready(vg_gather_t *g, uint32_t index) {
  vg_gather_member_t *m = &g->members[index];
  int closed = m->event->flags & VG_EVENT_CLOSED;
  if (!vg_event_replay(m->event, &m->base))
    member_settled(&m->base, m->event, closed ? VG_ECLOSED : 0, 0);
}

/* An owned coroutine is cancelled as soon as the wait is over: what it was
** handed and has not seen yet goes on to others. */
static void gather_stop(vg_event_t *event) {
  vg_gather_t *g = (vg_gather_t *)event;
  uint32_t i;
  for (i = 0; i < g->count; i++) {
    vg_gather_member_t *m = &g->members[i];
    leave(m);
    if (m->owned && !m->settled)
      vg_coroutine_cancel((vg_coroutine_t *)m->event);
  }
}

/* Some may settle while this goes on; when that is enough, the waker has its
** outcome and nothing more need be subscribed. */
static int gather_start(vg_event_t *event) {
  vg_gather_t *g = (vg_gather_t *)event;
  uint32_t i;

  for (i = 0; i < g->count && !vg_gather_done(g); i++) {
    vg_gather_member_t *m = &g->members[i];
    int err;
    if (m->settled) continue;
    m->subscribed = 1;
    err = vg_event_add_callback(m->event, &m->base);
    if (err == 0 && !m->settled) {
      err = vg_event_start(m->event);
      if (err == 0 && m->settled)
        vg_event_stop(m->event); /* it delivered while it was started */
      else if (err == 0)
        m->started = 1;
    }
    if (err == UV_ENOMEM) {
      gather_stop(event);
      return err;
    }
    if (err < 0) member_settled(&m->base, m->event, err, 0);
  }
  return 0;
}

static int gather_replay(vg_event_t *event, vg_callback_t *callback) {
  if (!vg_gather_done((vg_gather_t *)event)) return 0;
  if (callback != NULL) callback->notify(callback, event, 0, 0);
  return 1;
}

/* Lists what it still waits for. */
static int gather_info(const vg_event_t *event, char *buffer, size_t size) {
  const vg_gather_t *g = (const vg_gather_t *)event;
  char text[160];
  uint32_t i;
  for (i = 0; i < g->count; i++) {
    if (g->members[i].settled) continue;
    vg_event_info(g->members[i].event, text, sizeof text);
    return snprintf(buffer, size, "%u of %u (%u settled), first: %s", g->need,
                    g->count, g->settled, text);
  }
  return snprintf(buffer, size, "%u of %u", g->need, g->count);
}

static void gather_dispose(vg_event_t *event) { gather_stop(event); }

static const vg_event_methods_t gather_methods = {
    .name = "gather",
    .start = gather_start,
    .stop = gather_stop,
    .replay = gather_replay,
    .dispose = gather_dispose,
    .info = gather_info,
};

void vg_gather_init(vg_gather_t *g, vg_scheduler_t *s, uint32_t flags) {
  vg_event_init(&g->event, s, &gather_methods, flags | VG_EVENT_COMPOSITE);
  g->count = g->need = g->settled = g->succeeded = 0;
  g->fail_fast = 0;
  g->order = NULL;
  g->members = NULL;
}

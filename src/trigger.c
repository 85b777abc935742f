/*
** trigger.c: an event that any thread may fire.
**
** libuv merges wake-ups, so a firing is counted before it is sent, and the
** loop's side reads the count: firings merge, none is lost.  A wait finds what
** was fired before it began (replay), while it began (the wake-up is still to
** come) and after.
**
** An armed trigger does not keep the loop alive; one that is waited for does.
*/

#include <stdio.h>

#include "events.h"

#define GATE_CLOSED 0x80000000u

static void on_wake(uv_async_t *async) {
  vg_trigger_t *t = async->data;
  t->tally.arrived = atomic_load(&t->fired);
  vg__tally_tell(&t->tally, &t->base.event);
}

static void on_closed(uv_handle_t *handle) {
  vg_trigger_t *t = handle->data;
  vg__uv_event_detach(&t->base);
}

static int trigger_start(vg_event_t *event) {
  uv_ref((uv_handle_t *)&((vg_trigger_t *)event)->async);
  return 0;
}

static void trigger_stop(vg_event_t *event) {
  uv_unref((uv_handle_t *)&((vg_trigger_t *)event)->async);
}

static int trigger_replay(vg_event_t *event, vg_callback_t *callback) {
  vg_trigger_t *t = (vg_trigger_t *)event;
  t->tally.arrived = atomic_load(&t->fired);
  return vg__tally_replay(&t->tally, event, callback);
}

static int trigger_info(const vg_event_t *event, char *buffer, size_t size) {
  const vg_trigger_t *t = (const vg_trigger_t *)event;
  size_t pending = atomic_load(&t->fired) - t->tally.taken;
  if (event->flags & VG_EVENT_CLOSED)
    return snprintf(buffer, size, "trigger (closed)");
  if (pending > 0)
    return snprintf(buffer, size, "trigger (fired %zu times)", pending);
  return snprintf(buffer, size, "trigger");
}

/* Shuts threads out, then closes.  One that is inside leaves soon: all it does
** there is one write. */
static void trigger_shut(vg_uv_event_t *event) {
  vg_trigger_t *t = (vg_trigger_t *)event;

  if (uv_is_closing((uv_handle_t *)&t->async)) return;
  atomic_fetch_or(&t->gate, GATE_CLOSED);
  while (atomic_load(&t->gate) != GATE_CLOSED) uv_sleep(0);
  uv_close((uv_handle_t *)&t->async, on_closed);
}

static void trigger_dispose(vg_event_t *event) {
  vg__event_end(event, VG_ECLOSED);
  vg__uv_event_dispose(event); /* shuts it, if it was ever open */
}

static const vg_event_methods_t trigger_methods = {
    .name = "trigger",
    .start = trigger_start,
    .stop = trigger_stop,
    .replay = trigger_replay,
    .dispose = trigger_dispose,
    .info = trigger_info,
};

int vg_trigger_new(vg_scheduler_t *s, vg_trigger_t **trigger) {
  vg_trigger_t *t =
      vg__uv_event_new(s, sizeof *t, &trigger_methods, 0, trigger_shut);
  int err;

  if (t == NULL) return UV_ENOMEM;
  err = uv_async_init(s->reactor->loop, &t->async, on_wake);
  if (err < 0) {
    vg_event_release(&t->base.event);
    return err;
  }
  t->async.data = t;
  uv_unref((uv_handle_t *)&t->async);
  vg__uv_event_attach(&t->base);
  *trigger = t;
  return 0;
}

int vg_trigger_fire(vg_trigger_t *t) {
  int err = VG_ECLOSED;

  if (atomic_load(&t->gate) & GATE_CLOSED) return err; /* lets shut go on */
  if (!(atomic_fetch_add(&t->gate, 1) & GATE_CLOSED)) {
    atomic_fetch_add(&t->fired, 1);
    /* uv_async_send begins with a plain read of what the loop's side resets
    ** before it reads `fired`: that read must not come first. */
    atomic_thread_fence(memory_order_seq_cst);
    err = uv_async_send(&t->async);
  }
  atomic_fetch_sub(&t->gate, 1);
  return err;
}

size_t vg_trigger_take(vg_trigger_t *t) {
  t->tally.arrived = atomic_load(&t->fired);
  return vg__tally_take(&t->tally);
}

void vg_trigger_close(vg_trigger_t *t) {
  if (t->base.event.flags & VG_EVENT_CLOSED) return;
  vg__event_end(&t->base.event, VG_ECLOSED);
  trigger_shut(&t->base);
}

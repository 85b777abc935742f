/*
** future.c: one outcome, set once, for any number of waiters.
*/

#include <stdio.h>

#include "internal.h"

static int status_of(const vg_future_t *future) {
  return future->state == VG_FUTURE_COMPLETED ? 0 : VG_EFAILED;
}

static int future_replay(vg_event_t *event, vg_callback_t *callback) {
  vg_future_t *future = (vg_future_t *)event;
  if (future->state == VG_FUTURE_PENDING) return 0;
  if (callback != NULL) callback->notify(callback, event, status_of(future), 0);
  return 1;
}

const char *vg__future_state_name(uint8_t state) {
  static const char *const names[] = {"pending", "completed", "failed",
                                      "cancelled"};
  return names[state];
}

static int future_info(const vg_event_t *event, char *buffer, size_t size) {
  return snprintf(buffer, size, "future (%s)",
                  vg__future_state_name(((const vg_future_t *)event)->state));
}

static void future_dispose(vg_event_t *event) {
  if (!(event->flags & (VG_EVENT_NO_FREE | VG_EVENT_LUA_OBJECT)))
    vg__free(event->scheduler, event, sizeof(vg_future_t));
}

static const vg_event_methods_t future_methods = {
    .name = "future",
    .replay = future_replay,
    .dispose = future_dispose,
    .info = future_info,
};

void vg_future_init(vg_future_t *future, vg_scheduler_t *s, uint32_t flags) {
  vg_event_init(&future->event, s, &future_methods, flags);
  future->state = VG_FUTURE_PENDING;
}

int vg_future_settle(vg_future_t *future, vg_future_state_t how) {
  if (future->state != VG_FUTURE_PENDING) return VG_ESTATE;
  future->state = (uint8_t)how;
  return vg_event_notify_and_close(&future->event, status_of(future), 0);
}

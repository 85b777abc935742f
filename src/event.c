/*
** event.c: the base of every event.
**
** The functions here are what callers use; each does what all types have in
** common (nesting, counting, flags) and hands the rest to the type's table.
*/

#include <stdio.h>
#include <string.h>

#include "internal.h"

void vg_event_init(vg_event_t *event, vg_scheduler_t *scheduler,
                   const vg_event_methods_t *methods, uint32_t flags) {
  memset(event, 0, sizeof *event);
  event->methods = methods;
  event->scheduler = scheduler;
  event->flags = flags;
  event->ref_count = (flags & VG_EVENT_LUA_OBJECT) ? 0 : 1;
}

void vg_event_add_ref(vg_event_t *event) {
  vg_host_t *host = &event->scheduler->host;
  if (event->ref_count++ == 0 && (event->flags & VG_EVENT_LUA_OBJECT) &&
      host->pin != NULL)
    host->pin(host->data, event);
}

void vg_event_release(vg_event_t *event) {
  vg_host_t *host = &event->scheduler->host;

  if (--event->ref_count > 0) return;
  if (event->flags & VG_EVENT_LUA_OBJECT) {
    if (host->unpin != NULL) host->unpin(host->data, event);
  } else if (!(event->flags & VG_EVENT_DISPOSED)) {
    event->flags |= VG_EVENT_DISPOSED;
    event->methods->dispose(event);
  }
}

int vg_event_add_callback(vg_event_t *event, vg_callback_t *callback) {
  if (event->methods->replay != NULL && event->methods->replay(event, callback))
    return 0; /* it has been told; there is nothing more to wait for */
  if (event->flags & VG_EVENT_CLOSED) return VG_ECLOSED;
  if (event->methods->add_callback != NULL)
    return event->methods->add_callback(event, callback);
  return vg__callbacks_add(event->scheduler, &event->callbacks, callback);
}

void vg_event_del_callback(vg_event_t *event, vg_callback_t *callback) {
  if (event->methods->del_callback != NULL)
    event->methods->del_callback(event, callback);
  else
    vg__callbacks_del(event->scheduler, &event->callbacks, callback);
}

/* Whether a started event keeps the program going. */
static int counts(const vg_event_t *event) {
  return !(event->flags & (VG_EVENT_HIDDEN | VG_EVENT_COMPOSITE));
}

int vg_event_start(vg_event_t *event) {
  if (event->flags & VG_EVENT_CLOSED) return 0;
  if (event->methods->start == NULL) return 0;
  if (event->loop_ref_count == 0) {
    int err = event->methods->start(event);
    if (err < 0) return err;
    if (counts(event)) vg__activate(event->scheduler);
  }
  event->loop_ref_count++;
  return 0;
}

void vg_event_stop(vg_event_t *event) {
  if (event->loop_ref_count == 0) return;
  if (--event->loop_ref_count > 0) return;
  if (counts(event)) vg__deactivate(event->scheduler);
  if (event->methods->stop != NULL) event->methods->stop(event);
}

int vg_event_replay(vg_event_t *event, vg_callback_t *callback) {
  return event->methods->replay != NULL &&
         event->methods->replay(event, callback);
}

int vg_event_notify(vg_event_t *event, int status, intptr_t value) {
  const vg_event_methods_t *methods = event->methods;
  int counted = !(event->flags & VG_EVENT_LUA_OBJECT);
  int err = 0;

  if (event->callbacks.walking) return VG_ENESTED;
  event->flags &= ~(uint32_t)VG_EVENT_ERROR_HANDLED;
  if (counted) event->ref_count++; /* outlives the handler and the walk */
  if (methods->notify_handler == NULL ||
      methods->notify_handler(event, &status, &value) >= 0)
    err = vg__callbacks_notify(event->scheduler, &event->callbacks, event,
                               status, value);
  if (event->flags & VG_EVENT_ERROR_HANDLED)
    event->flags |= VG_EVENT_ERROR_CAUGHT;
  if (counted) vg_event_release(event);
  return err;
}

int vg_event_notify_and_close(vg_event_t *event, int status, intptr_t value) {
  if (event->callbacks.walking) return VG_ENESTED;
  while (event->loop_ref_count > 0) vg_event_stop(event);
  event->flags |= VG_EVENT_CLOSED;
  if (event->callbacks.length == 0 && event->methods->notify_handler == NULL)
    return 0;
  return vg_event_notify(event, status, value);
}

void vg_event_hide(vg_event_t *event) {
  int counted = counts(event) && event->loop_ref_count > 0;
  event->flags |= VG_EVENT_HIDDEN;
  if (counted) vg__deactivate(event->scheduler);
}

int vg_event_info(const vg_event_t *event, char *buffer, size_t size) {
  if (event->methods->info != NULL)
    return event->methods->info(event, buffer, size);
  return snprintf(buffer, size, "%s", event->methods->name);
}

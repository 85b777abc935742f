/*
** report.c: coroutines and what they wait for, in words.
*/

#include <stdio.h>
#include <string.h>

#include "internal.h"

const char *vg__state_name(uint8_t state) {
  static const char *const names[] = {"queued",    "running", "suspended",
                                      "completed", "failed",  "cancelled"};
  return names[state];
}

/* Appends as snprintf would write it all: `used` may pass `size`. */
static size_t append(char *buffer, size_t size, size_t used, const char *text) {
  size_t length = strlen(text);
  if (used < size) {
    size_t room = size - used - 1;
    size_t part = length < room ? length : room;
    memcpy(buffer + used, text, part);
    buffer[used + part] = '\0';
  }
  return used + length;
}

int vg__describe_wait(const vg_coroutine_t *co, char *buffer, size_t size) {
  const vg_waker_t *w = &co->waker;
  const vg_wait_t *wait;
  char text[256];
  size_t used = 0;

  if (size > 0) buffer[0] = '\0';
  if (w->status != VG_WAKER_WAITING) return 0;
  if (w->first.flags & VG_WAIT_USED) {
    for (wait = &w->first; wait != NULL; wait = wait->next) {
      if (wait->event == &co->event)
        snprintf(text, sizeof text, "itself");
      else
        vg_event_info(wait->event, text, sizeof text);
      if (used > 0) used = append(buffer, size, used, ", ");
      used = append(buffer, size, used, text);
    }
  }
  if (w->timer.index != 0) {
    uint64_t now = uv_hrtime(), due = w->timer.due_ns;
    double left = due > now ? (double)(due - now) / 1e9 : 0.0;
    if (used > 0) used = append(buffer, size, used, ", ");
    snprintf(text, sizeof text,
             (w->flags & VG_WAKER_F_SLEEP) ? "sleep (%.3fs left)"
                                           : "timeout (in %.3fs)",
             left);
    used = append(buffer, size, used, text);
  }
  return (int)used;
}

int vg__identify(const vg_coroutine_t *co, const char *name, char *buffer,
                 size_t size) {
  char text[512];
  size_t used = 0;

  if (size > 0) buffer[0] = '\0';
  if (co->flags & VG_CO_MAIN)
    snprintf(text, sizeof text, "main chunk");
  else if (name != NULL)
    snprintf(text, sizeof text, "coroutine #%llu '%s'",
             (unsigned long long)co->id, name);
  else
    snprintf(text, sizeof text, "coroutine #%llu", (unsigned long long)co->id);
  used = append(buffer, size, used, text);
  snprintf(text, sizeof text, " %s", vg__state_name(co->state));
  used = append(buffer, size, used, text);
  if (co->spawn_source != NULL) {
    snprintf(text, sizeof text, ", spawned at %s:%d", co->spawn_source,
             (int)co->spawn_line);
    used = append(buffer, size, used, text);
  }
  return (int)used;
}

int vg__describe(const vg_coroutine_t *co, const char *name, char *buffer,
                 size_t size) {
  const vg_coroutine_methods_t *methods = vg__comethods(co);
  char text[512];
  size_t used = (size_t)vg__identify(co, name, buffer, size);

  if (co->state != VG_COROUTINE_SUSPENDED) return (int)used;
  if (methods->where != NULL && methods->where(co, text, sizeof text) > 0) {
    used = append(buffer, size, used, ", waits at ");
    used = append(buffer, size, used, text);
  }
  if (vg__describe_wait(co, text, sizeof text) == 0)
    snprintf(text, sizeof text, "nothing");
  used = append(buffer, size, used, " for ");
  used = append(buffer, size, used, text);
  return (int)used;
}

static void each(vg_scope_t *scope,
                 void (*visit)(vg_coroutine_t *co, void *data), void *data) {
  vg_link_t *link, *next;
  for (link = scope->coroutines.next; link != &scope->coroutines; link = next) {
    next = link->next;
    visit(VG_CONTAINER(link, vg_coroutine_t, link), data);
  }
  for (link = scope->children.next; link != &scope->children; link = next) {
    next = link->next;
    each(VG_CONTAINER(link, vg_scope_t, link), visit, data);
  }
}

void vg__each_coroutine(vg_scheduler_t *s,
                        void (*visit)(vg_coroutine_t *co, void *data),
                        void *data) {
  if (s->root != NULL) each(s->root, visit, data);
}

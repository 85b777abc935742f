/*
** scope.c: which coroutines belong together: root, child, cancel, join.
**
** A scope is an event that fires when no coroutine is left in it or below.
*/

#include <stdio.h>

#include "internal.h"

static int scope_replay(vg_event_t *event, vg_callback_t *callback) {
  vg_scope_t *scope = (vg_scope_t *)event;
  if (scope->count > 0) return 0;
  if (callback != NULL) callback->notify(callback, event, 0, 0);
  return 1;
}

static int scope_info(const vg_event_t *event, char *buffer, size_t size) {
  const vg_scope_t *scope = (const vg_scope_t *)event;
  return snprintf(buffer, size, "scope (%zu coroutine%s%s)", scope->count,
                  scope->count == 1 ? "" : "s",
                  scope->cancelled ? ", cancelled" : "");
}

static void scope_dispose(vg_event_t *event) {
  vg_scope_t *scope = (vg_scope_t *)event;
  vg_scope_t *parent = scope->parent;
  vg_scheduler_t *s = event->scheduler;

  vg__callbacks_clear(s, &event->callbacks);
  if (vg_linked(&scope->link)) vg_list_remove(&scope->link);
  vg__free(s, scope, sizeof *scope);
  if (parent != NULL) vg_event_release(&parent->event);
}

static const vg_event_methods_t scope_methods = {
    .name = "scope",
    .replay = scope_replay,
    .dispose = scope_dispose,
    .info = scope_info,
};

int vg_scope_new(vg_scheduler_t *s, vg_scope_t *parent, vg_scope_t **result) {
  vg_scope_t *scope = vg__alloc(s, sizeof *scope);

  if (scope == NULL) return UV_ENOMEM;
  vg_event_init(&scope->event, s, &scope_methods, 0);
  scope->parent = parent;
  scope->link.prev = scope->link.next = NULL;
  vg_list_init(&scope->children);
  vg_list_init(&scope->coroutines);
  scope->count = 0;
  scope->cancelled = scope->closed = 0;
  if (parent != NULL) {
    vg_event_add_ref(&parent->event);
    vg_list_append(&parent->children, &scope->link);
  }
  *result = scope;
  return 0;
}

void vg_scope_cancel(vg_scope_t *scope) {
  vg_link_t *link;
  scope->cancelled = 1;
  for (link = scope->children.next; link != &scope->children; link = link->next)
    vg_scope_cancel(VG_CONTAINER(link, vg_scope_t, link));
  /* Nothing ends inside vg_coroutine_cancel: the list stays as it is. */
  for (link = scope->coroutines.next; link != &scope->coroutines;
       link = link->next) {
    vg_coroutine_t *co = VG_CONTAINER(link, vg_coroutine_t, link);
    if (!(co->flags & VG_CO_CLEANUP)) vg_coroutine_cancel(co);
  }
}

void vg_scope_close(vg_scope_t *scope) { scope->closed = 1; }

void vg__scope_enter(vg_scope_t *scope, vg_coroutine_t *co) {
  co->scope = scope;
  vg_event_add_ref(&scope->event);
  vg_list_append(&scope->coroutines, &co->link);
  for (; scope != NULL; scope = scope->parent) scope->count++;
}

void vg__scope_leave(vg_scope_t *scope, vg_coroutine_t *co) {
  vg_scope_t *each;
  vg_list_remove(&co->link);
  co->scope = NULL;
  for (each = scope; each != NULL; each = each->parent)
    if (--each->count == 0) vg_event_notify(&each->event, 0, 0);
  vg_event_release(&scope->event);
}

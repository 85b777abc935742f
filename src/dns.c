/*
** dns.c: a name lookup as an event.
**
** It runs in libuv's thread pool, which cannot be interrupted: whoever gives
** up leaves at once, and the late answer is thrown away when it comes.  The
** request owns one reference meanwhile.
*/

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io.h"

static void destroy(vg_resolve_t *r) {
  if (r->addresses != NULL) uv_freeaddrinfo(r->addresses);
  free(r->host);
  free(r);
}

static void resolved(uv_getaddrinfo_t *request, int status,
                     struct addrinfo *addresses) {
  vg_resolve_t *r = VG_CONTAINER(request, vg_resolve_t, request);
  vg_reactor_t *reactor = r->reactor;

  r->in_flight = 0;
  r->done = 1;
  r->status = status;
  r->addresses = addresses;
  if (vg__reactor_alive(reactor)) {
    vg_event_notify_and_close(&r->event, status, 0);
    vg_event_release(&r->event);
  } else { /* its owners have gone with the scheduler */
    destroy(r);
  }
  vg__request_end(reactor);
}

static int resolve_start(vg_event_t *event) {
  vg_resolve_t *r = (vg_resolve_t *)event;
  struct addrinfo hints;
  int err;

  if (r->in_flight) return 0;
  memset(&hints, 0, sizeof hints);
  hints.ai_socktype = SOCK_STREAM;
  err = uv_getaddrinfo(r->reactor->loop, &r->request, resolved, r->host, NULL,
                       &hints);
  if (err < 0) return err;
  r->in_flight = 1;
  vg_event_add_ref(event);
  vg__request_begin(r->reactor);
  return 0;
}

/* One that waits for a free worker can still be called off. */
static void resolve_stop(vg_event_t *event) {
  vg_resolve_t *r = (vg_resolve_t *)event;
  if (r->in_flight) uv_cancel((uv_req_t *)&r->request);
}

static int resolve_replay(vg_event_t *event, vg_callback_t *callback) {
  vg_resolve_t *r = (vg_resolve_t *)event;
  if (!r->done) return 0;
  if (callback != NULL) callback->notify(callback, event, r->status, 0);
  return 1;
}

static void resolve_dispose(vg_event_t *event) {
  destroy((vg_resolve_t *)event);
}

static int resolve_info(const vg_event_t *event, char *buffer, size_t size) {
  const vg_resolve_t *r = (const vg_resolve_t *)event;
  return snprintf(buffer, size, "lookup of %s%s", r->host,
                  r->done ? " (done)" : "");
}

static const vg_event_methods_t resolve_methods = {
    .name = "dns",
    .start = resolve_start,
    .stop = resolve_stop,
    .replay = resolve_replay,
    .dispose = resolve_dispose,
    .info = resolve_info,
};

int vg_resolve_new(vg_scheduler_t *s, const char *host, vg_resolve_t **result) {
  vg_resolve_t *r = calloc(1, sizeof *r);
  size_t size = strlen(host) + 1;

  if (r != NULL) r->host = malloc(size);
  if (r == NULL || r->host == NULL) {
    free(r);
    return UV_ENOMEM;
  }
  memcpy(r->host, host, size);
  vg_event_init(&r->event, s, &resolve_methods, 0);
  r->reactor = s->reactor;
  *result = r;
  return 0;
}

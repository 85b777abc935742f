/*
** signal.c: POSIX signals.  Any number of events for one signal number share
** one uv_signal_t, armed from the first to the last of them.
**
** An event counts what arrives whether anybody waits or not; only while
** somebody does it keeps the loop alive.  Each counts for itself, so what one
** takes is not missing elsewhere.
*/

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "events.h"

/* libuv's side of one signal number in one loop.
**   - in reactor->signals until it is shut;
**   - waiting: how many of `watchers` are started. */
typedef struct vg_signal_handle {
  vg_uv_event_t base;
  struct vg_signal_handle *next;
  uv_signal_t handle;
  vg_link_t watchers;
  size_t waiting;
  int signum;
  unsigned armed : 1;
} vg_signal_handle_t;


/*
** {== Dispositions
**
** libuv does not put back what it found: when the last handle of a signal
** stops it leaves SIG_DFL.  So vigil remembers.  A disposition belongs to the
** process, not to a loop, and any loop of any thread may be the first to need
** a signal or the last to leave it.  This table is therefore the one thing
** here that all states share, under its own lock, which is held around libuv's
** own changes, too.
**
** The host may use libuv for the same signal.  What was found is put back only
** where libuv has just left SIG_DFL, and not if it was libuv's own handler.
*/
static struct disposition {
  struct sigaction found;
  size_t users;
  int is_libuv; /* `found` was libuv's handler already */
} dispositions[NSIG];

static uv_mutex_t dispositions_lock;
static uv_once_t dispositions_once = UV_ONCE_INIT;
static int dispositions_error;

static void init_dispositions(void) {
  dispositions_error = uv_mutex_init(&dispositions_lock);
}

static int same_handler(const struct sigaction *a, const struct sigaction *b) {
  return (a->sa_flags & SA_SIGINFO) == (b->sa_flags & SA_SIGINFO) &&
         a->sa_handler == b->sa_handler;
}

static void on_signal(uv_signal_t *handle, int signum);

static int arm(vg_signal_handle_t *h) {
  struct disposition *d = &dispositions[h->signum];
  struct sigaction found, now;
  int err;

  uv_once(&dispositions_once, init_dispositions);
  if (dispositions_error < 0) return dispositions_error;
  uv_mutex_lock(&dispositions_lock);
  err = sigaction(h->signum, NULL, &found) < 0 ? UV_EINVAL : 0;
  if (err == 0) err = uv_signal_start(&h->handle, on_signal, h->signum);
  if (err == 0) {
    h->armed = 1;
    if (d->users++ == 0) {
      d->found = found;
      d->is_libuv =
          sigaction(h->signum, NULL, &now) == 0 && same_handler(&found, &now);
    }
  }
  uv_mutex_unlock(&dispositions_lock);
  return err;
}

static void disarm(vg_signal_handle_t *h) {
  struct disposition *d = &dispositions[h->signum];
  struct sigaction now;
  sigset_t mask, old_mask;

  if (!h->armed) return;
  h->armed = 0;
  /* Between the two dispositions the signal shall not kill: this thread, at
  ** least, does not take it. */
  sigemptyset(&mask);
  sigaddset(&mask, h->signum);
  pthread_sigmask(SIG_BLOCK, &mask, &old_mask);
  uv_mutex_lock(&dispositions_lock);
  uv_signal_stop(&h->handle);
  if (--d->users == 0 && !d->is_libuv &&
      sigaction(h->signum, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
      now.sa_handler == SIG_DFL)
    sigaction(h->signum, &d->found, NULL);
  uv_mutex_unlock(&dispositions_lock);
  pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
}

/* }================================================================= */


/*
** {== The handle of a number
*/

/* Watchers may come and go while they are told: each is moved over to the list
** before its turn, so it is found once, wherever it goes. */
static void on_signal(uv_signal_t *handle, int signum) {
  vg_signal_handle_t *h = handle->data;
  vg_link_t todo, *link;

  VG_UNUSED(signum);
  vg_event_add_ref(&h->base.event);
  vg_list_move(&todo, &h->watchers);
  while (!vg_list_empty(&todo)) {
    vg_signal_t *signal;
    link = todo.next;
    vg_list_remove(link);
    vg_list_append(&h->watchers, link);
    signal = VG_CONTAINER(link, vg_signal_t, link);
    signal->tally.arrived++;
    vg__tally_tell(&signal->tally, &signal->event);
  }
  vg_event_release(&h->base.event);
}

static void on_closed(uv_handle_t *handle) {
  vg_signal_handle_t *h = handle->data;
  vg__uv_event_detach(&h->base);
}

/* libuv calls back once it has taken from its pipe every signal that it caught
** for this handle. */
static void handle_shut(vg_uv_event_t *event) {
  vg_signal_handle_t *h = (vg_signal_handle_t *)event;
  vg_signal_handle_t **at = &h->base.reactor->signals;

  if (uv_is_closing((uv_handle_t *)&h->handle)) return;
  while (*at != NULL && *at != h) at = &(*at)->next;
  if (*at == h) *at = h->next;
  disarm(h);
  uv_close((uv_handle_t *)&h->handle, on_closed);
}

static const vg_event_methods_t handle_methods = {
    .name = "signal handle",
    .dispose = vg__uv_event_dispose,
};

/* The armed handle of a number; the caller owns a reference. */
static int get_handle(vg_scheduler_t *s, int signum,
                      vg_signal_handle_t **handle) {
  vg_reactor_t *r = s->reactor;
  vg_signal_handle_t *h;
  int err;

  for (h = r->signals; h != NULL; h = h->next) {
    if (h->signum != signum) continue;
    vg_event_add_ref(&h->base.event);
    *handle = h;
    return 0;
  }
  h = vg__uv_event_new(s, sizeof *h, &handle_methods, VG_EVENT_HIDDEN,
                       handle_shut);
  if (h == NULL) return UV_ENOMEM;
  vg_list_init(&h->watchers);
  h->signum = signum;
  err = uv_signal_init(r->loop, &h->handle);
  if (err == 0) {
    h->handle.data = h;
    uv_unref((uv_handle_t *)&h->handle);
    vg__uv_event_attach(&h->base);
    err = arm(h);
  }
  if (err < 0) {
    vg_event_release(&h->base.event);
    return err;
  }
  h->next = r->signals;
  r->signals = h;
  *handle = h;
  return 0;
}

/* }================================================================= */


/*
** {== The event
*/

static int signal_start(vg_event_t *event) {
  vg_signal_handle_t *h = ((vg_signal_t *)event)->handle;
  if (h->waiting++ == 0) uv_ref((uv_handle_t *)&h->handle);
  return 0;
}

static void signal_stop(vg_event_t *event) {
  vg_signal_handle_t *h = ((vg_signal_t *)event)->handle;
  if (--h->waiting == 0) uv_unref((uv_handle_t *)&h->handle);
}

static int signal_replay(vg_event_t *event, vg_callback_t *callback) {
  return vg__tally_replay(&((vg_signal_t *)event)->tally, event, callback);
}

static int signal_info(const vg_event_t *event, char *buffer, size_t size) {
  const vg_signal_t *signal = (const vg_signal_t *)event;
  size_t pending = vg__tally_pending(&signal->tally);
  char name[24];

  vg_signal_name(signal->signum, name);
  if (event->flags & VG_EVENT_CLOSED)
    return snprintf(buffer, size, "signal %s (closed)", name);
  if (pending > 0)
    return snprintf(buffer, size, "signal %s (%zu arrived)", name, pending);
  return snprintf(buffer, size, "signal %s", name);
}

static void signal_dispose(vg_event_t *event) {
  vg_signal_close((vg_signal_t *)event);
  vg__free(event->scheduler, event, sizeof(vg_signal_t));
}

static const vg_event_methods_t signal_methods = {
    .name = "signal",
    .start = signal_start,
    .stop = signal_stop,
    .replay = signal_replay,
    .dispose = signal_dispose,
    .info = signal_info,
};

int vg_signal_new(vg_scheduler_t *s, int signum, vg_signal_t **result) {
  vg_signal_t *signal;
  int err;

  if (signum <= 0 || signum >= NSIG) return UV_EINVAL;
  signal = vg__alloc(s, sizeof *signal);
  if (signal == NULL) return UV_ENOMEM;
  memset(signal, 0, sizeof *signal);
  vg_event_init(&signal->event, s, &signal_methods, 0);
  signal->signum = signum;
  err = get_handle(s, signum, &signal->handle);
  if (err < 0) {
    vg__free(s, signal, sizeof *signal);
    return err;
  }
  vg_list_append(&signal->handle->watchers, &signal->link);
  *result = signal;
  return 0;
}

void vg_signal_close(vg_signal_t *signal) {
  vg_signal_handle_t *h = signal->handle;

  if (!vg_linked(&signal->link)) return;
  vg_list_remove(&signal->link);
  vg__event_end(&signal->event, VG_ECLOSED); /* stops it, too */
  signal->handle = NULL;
  if (vg_list_empty(&h->watchers)) handle_shut(&h->base); /* disarmed now */
  vg_event_release(&h->base.event);
}

/* }================================================================= */


/*
** {== Names
*/

static const struct {
  int signum;
  const char *name;
} names[] = {
    {SIGHUP, "HUP"},       {SIGINT, "INT"},   {SIGQUIT, "QUIT"},
    {SIGILL, "ILL"},       {SIGTRAP, "TRAP"}, {SIGABRT, "ABRT"},
    {SIGBUS, "BUS"},       {SIGFPE, "FPE"},   {SIGKILL, "KILL"},
    {SIGUSR1, "USR1"},     {SIGSEGV, "SEGV"}, {SIGUSR2, "USR2"},
    {SIGPIPE, "PIPE"},     {SIGALRM, "ALRM"}, {SIGTERM, "TERM"},
    {SIGCHLD, "CHLD"},     {SIGCONT, "CONT"}, {SIGSTOP, "STOP"},
    {SIGTSTP, "TSTP"},     {SIGTTIN, "TTIN"}, {SIGTTOU, "TTOU"},
    {SIGURG, "URG"},       {SIGXCPU, "XCPU"}, {SIGXFSZ, "XFSZ"},
    {SIGVTALRM, "VTALRM"}, {SIGPROF, "PROF"}, {SIGWINCH, "WINCH"},
    {SIGIO, "IO"},         {SIGSYS, "SYS"},
#ifdef SIGSTKFLT
    {SIGSTKFLT, "STKFLT"},
#endif
#ifdef SIGPWR
    {SIGPWR, "PWR"},
#endif
};

const char *vg_signal_name(int signum, char text[24]) {
  size_t i;
  for (i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (names[i].signum != signum) continue;
    snprintf(text, 24, "SIG%s", names[i].name);
    return text;
  }
#ifdef SIGRTMIN
  if (signum >= SIGRTMIN && signum <= SIGRTMAX) {
    snprintf(text, 24, "SIGRTMIN+%d", signum - SIGRTMIN);
    return text;
  }
#endif
  snprintf(text, 24, "SIG%d", signum);
  return text;
}

int vg_signal_number(const char *name) {
  char upper[24], full[24];
  size_t i;
  int signum;

  for (i = 0; name[i] != '\0'; i++) {
    if (i == sizeof upper - 1) return 0;
    upper[i] = (char)toupper((unsigned char)name[i]);
  }
  upper[i] = '\0';
  for (signum = 1; signum < NSIG; signum++) {
    vg_signal_name(signum, full);
    if (strcmp(full, upper) == 0 || strcmp(full + 3, upper) == 0) return signum;
  }
  return 0;
}

/* }================================================================= */

/* n libuv timers at the same time, see sleepers.lua.  The limit for the CPU.
 *
 * usage: sleepers N SECONDS
 */
#include <uv.h>

#include "support.h"

static long awake;

static void on_close(uv_handle_t *handle) { free(handle); }

static void on_timer(uv_timer_t *timer) {
  awake++;
  uv_close((uv_handle_t *)timer, on_close);
}

static void start_timer(uv_loop_t *loop, long i, double seconds) {
  uint64_t timeout_ms = (uint64_t)(seconds * 1000) + (uint64_t)(i * 7919 % 500);
  uv_timer_t *timer = malloc(sizeof *timer);
  if (!timer) abort();
  uv_timer_init(loop, timer);
  uv_timer_start(timer, on_timer, timeout_ms, 0);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  long n = strtol(argv[1], NULL, 10);
  double seconds = strtod(argv[2], NULL);
  uv_loop_t *loop = uv_default_loop();
  double before = resident("self");
  double started = seconds_on(CLOCK_PROCESS_CPUTIME_ID);

  for (long i = 1; i <= n; i++) start_timer(loop, i, seconds);
  uv_run(loop, UV_RUN_NOWAIT);
  if (awake > 0) {
    fprintf(stderr, "not all asleep at once: give them more time\n");
    return 1;
  }
  printf("bytes %.9g\n", (resident("self") - before) / (double)n);
  uv_run(loop, UV_RUN_DEFAULT);
  printf("cpu %.9g\n",
         (seconds_on(CLOCK_PROCESS_CPUTIME_ID) - started) * 1e6 / (double)n);
  return awake != n;
}

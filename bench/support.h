/* What the C yardsticks share.  Linux only. */
#ifndef BENCH_SUPPORT_H
#define BENCH_SUPPORT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline double seconds_on(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Resident bytes of the process with this id, or "self". */
static inline double resident(const char *process) {
  char line[256];
  double kilobytes = -1;

  /* smaps_rollup is exact; VmRSS may lag by some pages for each CPU. */
  snprintf(line, sizeof line, "/proc/%s/smaps_rollup", process);
  FILE *file = fopen(line, "r");
  while (file && kilobytes < 0 && fgets(line, sizeof line, file)) {
    if (strncmp(line, "Rss:", 4) == 0) kilobytes = strtod(line + 4, NULL);
  }
  if (file) fclose(file);
  return kilobytes * 1024;
}

#endif

/* Sets the wall clock of one process and of what it starts, as a test says: loaded by LD_PRELOAD (wall_clock.py).

   The file that STATEHOUSE_WALL_CLOCK names holds one number, by how many nanoseconds the clock is ahead. What reads the
   wall clock gets it added. A wait until a time of the wall clock becomes longer if the clock is set back meanwhile, as the
   kernel has it. (It doesn't become shorter if it is set ahead.) Waits by other clocks aren't touched. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define SLICE (20 * SECOND / 1000) /* how soon a lengthened wait learns that the clock was set again */
#define DATE 1000000000LL          /* seconds that a clock since the machine's start doesn't reach */

static const volatile int64_t *ahead;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void begin(void) {
  if (ahead) return;
  real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  real_syscall = dlsym(RTLD_NEXT, "syscall");
  const char *path = getenv("STATEHOUSE_WALL_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
  if (found == MAP_FAILED) abort(); /* a test with the machine's own clock would prove nothing */
  close(file);
  ahead = found;
}

static int64_t of(const struct timespec *at) { return at->tv_sec * SECOND + at->tv_nsec; }

static struct timespec as_time(int64_t ns) {
  return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

static int64_t shown(clockid_t clock) {
  struct timespec now;
  begin();
  real_clock_gettime(clock, &now);
  return of(&now) + (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ? *ahead : 0);
}

/* What is left until a time of the wall clock. */
static int64_t left(const struct timespec *until) { return of(until) - shown(CLOCK_REALTIME); }

/* When to look at the wall clock again, monotonic time: first where the wait ends if nobody sets the clock. */
static struct timespec look_at(const struct timespec *until, int is_lengthened) {
  int64_t for_ns = left(until);
  return as_time(shown(CLOCK_MONOTONIC) + (for_ns < 0 ? 0 : is_lengthened && for_ns > SLICE ? SLICE : for_ns));
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  begin();
  int failed = real_clock_gettime(clock, at);
  if (!failed) *at = as_time(shown(clock));
  return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
  (void)zone;
  int64_t now = shown(CLOCK_REALTIME);
  *at = (struct timeval){.tv_sec = now / SECOND, .tv_usec = now % SECOND / 1000};
  return 0;
}

time_t time(time_t *at) {
  time_t now = shown(CLOCK_REALTIME) / SECOND;
  if (at) *at = now;
  return now;
}

int timespec_get(struct timespec *at, int base) {
  if (base != TIME_UTC) return 0;
  *at = as_time(shown(CLOCK_REALTIME));
  return base;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  if (until->tv_sec < DATE) return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, until);
  for (int is_lengthened = 0;; is_lengthened = 1) {
    struct timespec end = look_at(until, is_lengthened);
    int failed = pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &end);
    if (failed != ETIMEDOUT || left(until) <= 0) return failed;
  }
}

int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *until) {
  int failed = pthread_cond_timedwait((pthread_cond_t *)condition, (pthread_mutex_t *)mutex, until);
  return !failed ? thrd_success : failed == ETIMEDOUT ? thrd_timedout : thrd_error;
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
  for (int is_lengthened = 0;; is_lengthened = 1) {
    struct timespec end = look_at(until, is_lengthened);
    int failed = sem_clockwait(semaphore, CLOCK_MONOTONIC, &end);
    if (!failed || errno != ETIMEDOUT || left(until) <= 0) return failed;
  }
}

/* Libraries that wait by the kernel's own call (RocksDB's and gRPC's). */
long syscall(long number, ...) {
  long a[6];
  va_list given;
  va_start(given, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(given, long);
  va_end(given);
  begin();
  int is_dated = number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && a[3];
  if (!is_dated) return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  const struct timespec *until = (const struct timespec *)a[3];
  for (int is_lengthened = 0;; is_lengthened = 1) {
    struct timespec end = look_at(until, is_lengthened);
    long failed = real_syscall(number, a[0], a[1] & ~FUTEX_CLOCK_REALTIME, a[2], (long)&end, a[4], a[5]);
    if (!failed || errno != ETIMEDOUT || left(until) <= 0) return failed;
  }
}

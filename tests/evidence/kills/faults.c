/* Preloaded into a process: its disk is full, or damaged, or its clock steps. What is to happen stands in a file that
   all processes share, named by FAULTS; only files below a folder fail. What is mapped into memory is not watched, nor
   are files and folders made anew. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NOTHING, FULL, DAMAGED, CLOCK };

/* As `Control` in faults.py. */
struct control {
  int64_t mode, at, writes, reads, seed;
  char top[1024], source[1024];
};
static struct control *control;

__attribute__((constructor)) static void open_control(void) {
  const char *path = getenv("FAULTS");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *memory = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory != MAP_FAILED) control = memory;
}

static int is_watched(int file) {
  char link[64], path[2048];
  if (!control || !control->top[0] || file < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size <= 0) return 0;
  path[size] = 0;
  return !strncmp(path, control->top, strlen(control->top)) ||
         (control->source[0] && !strncmp(path, control->source, strlen(control->source)));
}

/* From the write of this number on, the disk stays full. */
static int is_full(int file) {
  if (!is_watched(file)) return 0;
  int64_t number = __atomic_fetch_add(&control->writes, 1, __ATOMIC_SEQ_CST);
  if (control->mode != FULL || number < control->at) return 0;
  errno = ENOSPC;
  return 1;
}

/* One read fails. */
static int is_damaged(int file) {
  if (!is_watched(file)) return 0;
  int64_t number = __atomic_fetch_add(&control->reads, 1, __ATOMIC_SEQ_CST);
  if (control->mode != DAMAGED || number != control->at) return 0;
  errno = EIO;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(kind, name, failed, file, wrong, parameters, arguments) \
  kind name parameters {                                             \
    static __typeof__(&name) real;                                   \
    if (!real) real = REAL(name);                                    \
    if (failed(file)) return wrong;                                  \
    return real arguments;                                           \
  }

WRAP(ssize_t, write, is_full, file, -1, (int file, const void *from, size_t size), (file, from, size))
WRAP(ssize_t, pwrite, is_full, file, -1, (int file, const void *from, size_t size, off_t at), (file, from, size, at))
WRAP(ssize_t, pwrite64, is_full, file, -1, (int file, const void *from, size_t size, off64_t at), (file, from, size, at))
WRAP(ssize_t, writev, is_full, file, -1, (int file, const struct iovec *from, int count), (file, from, count))
WRAP(ssize_t, sendfile, is_full, file, -1, (int file, int from, off_t *at, size_t size), (file, from, at, size))
WRAP(ssize_t, sendfile64, is_full, file, -1, (int file, int from, off64_t *at, size_t size), (file, from, at, size))
WRAP(ssize_t, copy_file_range, is_full, file, -1,
     (int from, off64_t *from_at, int file, off64_t *at, size_t size, unsigned flags),
     (from, from_at, file, at, size, flags))
WRAP(size_t, fwrite, is_full, fileno(file), 0, (const void *from, size_t size, size_t count, FILE *file),
     (from, size, count, file))
WRAP(ssize_t, read, is_damaged, file, -1, (int file, void *to, size_t size), (file, to, size))
WRAP(ssize_t, pread, is_damaged, file, -1, (int file, void *to, size_t size, off_t at), (file, to, size, at))
WRAP(ssize_t, pread64, is_damaged, file, -1, (int file, void *to, size_t size, off64_t at), (file, to, size, at))
WRAP(ssize_t, readv, is_damaged, file, -1, (int file, const struct iovec *to, int count), (file, to, count))
WRAP(size_t, fread, is_damaged, fileno(file), 0, (void *to, size_t size, size_t count, FILE *file),
     (to, size, count, file))

/* Seconds by which the clock is wrong now, from -3600 to 3600; others twice a second. */
static int64_t step(const struct timespec *now) {
  if (!control || control->mode != CLOCK) return 0;
  uint64_t mixed = (uint64_t)now->tv_sec * 2 + (now->tv_nsec >= 500000000) + (uint64_t)control->seed * 1000003;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return (int64_t)((mixed ^ (mixed >> 31)) % 7201) - 3600;
}

int clock_gettime(clockid_t which, struct timespec *now) {
  static __typeof__(&clock_gettime) real;
  if (!real) real = REAL(clock_gettime);
  int result = real(which, now);
  if (!result && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += step(now);
  return result;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now) *now = exact.tv_sec;
  return exact.tv_sec;
}

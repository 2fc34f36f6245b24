/* Moves the system's time of a program that preloads this library (LD_PRELOAD): CLOCK_REALTIME, by the seconds in the
 * file that MUXTUNNEL_TEST_CLOCK names. The file is read at each call, so the time of a running program can change.
 * The other clocks are unchanged. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* A program without the file would run with the real time, and its test would show nothing. */
static void fail(void)
{
    static const char text[] = "MUXTUNNEL_TEST_CLOCK names no file with seconds\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(70);
}

static time_t moved(void)
{
    const char *path = getenv("MUXTUNNEL_TEST_CLOCK");
    char text[32], *end = text;
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (length < 1)
        fail();
    close(file);
    text[length] = '\0';
    time_t seconds = strtoll(text, &end, 10);
    if (end == text)
        fail();
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += moved();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int result = syscall(SYS_gettimeofday, now, zone);
    if (result == 0)
        now->tv_sec += moved();
    return result;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL)
        *at = now.tv_sec;
    return now.tv_sec;
}

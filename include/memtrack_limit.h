/* memtrack_limit.h: how much memory a part of a program needs at most, for tests with limits.
 *
 *   memtrack_span span = memtrack_span_begin();
 *   work();
 *   assert(memtrack_span_fits(span, 1000000));
 *
 * The peak is that of what was allocated within the span, by all threads, and was live at one moment of it. It is asked
 * from the program memtrack: $MEMTRACK, else the one in PATH. Run the tests with
 *
 *   memtrack run --allocation-timestamps --follow -o tests.bin ./tests
 *
 * Without exact times no span is measured: a line on stderr says so.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef MEMTRACK_LIMIT_H
#define MEMTRACK_LIMIT_H

/* In strict modes of C (-std=c11), what it needs of POSIX is declared only where this is defined before any other header. */
#if defined(__STRICT_ANSI__) && !defined(__cplusplus) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif

#include "memtrack.h"

#include <time.h>

#ifndef CLOCK_MONOTONIC
#error "memtrack_limit.h: include it before other headers, or compile with -D_POSIX_C_SOURCE=200809L or -std=gnu11"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A span of time that has begun. */
struct memtrack_span {
    long long begin_ns;
};
typedef struct memtrack_span memtrack_span;

/* CLOCK_MONOTONIC, in nanoseconds. */
static inline long long memtrack_now_(void) {
    struct timespec now;
    return clock_gettime(CLOCK_MONOTONIC, &now) == 0 ? now.tv_sec * 1000000000LL + now.tv_nsec : 0;
}

static inline struct memtrack_span memtrack_span_begin(void) {
    struct memtrack_span span;
    span.begin_ns = memtrack_now_();
    return span;
}

/* Reads the fourth list of the answer's row of spans: the peak; -1 where there is no such row. */
static inline long long memtrack_peak_in_(FILE *answer) {
    char line[65536];
    long long peak = -1;
    while (fgets(line, sizeof line, answer)) {
        const char *row = strstr(line, "[\"spans\"");
        int lists = 0;
        for (; row && *row && lists < 4; row++)
            lists += row[0] == ',' && row[1] == '[';
        if (row && lists == 4)
            peak = strtoll(row + 1, NULL, 10);
    }
    return peak;
}

/* The largest number of bytes of this span that were live at one moment; -1: nothing is recorded, or it cannot be measured,
 * which a line on stderr says. The time that this takes does not belong to the span; in one around it, and in those of other
 * threads, it needs some 5 kB. */
static inline long long memtrack_span_peak(struct memtrack_span span) {
    char directory[] = "/tmp/memtrack-span-XXXXXX", capture[64], spans[64], command[4608];
    const char *program = getenv("MEMTRACK");
    long long end_ns = memtrack_now_(), peak = -1;
    FILE *file;
    if (!memtrack_is_recording || !memtrack_is_recording() || !mkdtemp(directory))
        return -1;
    (void)snprintf(capture, sizeof capture, "%s/now.bin", directory);
    (void)snprintf(spans, sizeof spans, "%s/spans", directory);
    file = fopen(spans, "w");
    if (file) {
        (void)fprintf(file, "%lld %lld\n", span.begin_ns, end_ns);
        if (fclose(file) == 0 && memtrack_snapshot(capture) == MEMTRACK_OK) {
            (void)snprintf(command, sizeof command, "'%s' transform records --table spans --spans '%s' -o - '%s'",
                           program ? program : "memtrack", spans, capture);
            file = popen(command, "r");
            if (file) {
                peak = memtrack_peak_in_(file);
                int ended = pclose(file);
                if (ended == 0 && peak < 0)
                    peak = 0; /* nothing was allocated in the span */
                /* Where SIGCHLD is ignored, how it ended is not known: the answer's row has to do. */
                if (ended != 0 && !(ended == -1 && errno == ECHILD))
                    peak = -1;
            }
        } else {
            (void)fputs("memtrack_limit.h: the span was not measured: there is no snapshot of the recording\n", stderr);
        }
    }
    (void)unlink(capture);
    (void)unlink(spans);
    (void)rmdir(directory);
    return peak;
}

/* Whether the peak of this span is known and at most `limit` bytes. Where nothing is recorded, or the span cannot be measured,
 * it is not: a test that asks for it cannot pass by mistake. */
static inline int memtrack_span_fits(struct memtrack_span span, long long limit) {
    long long peak = memtrack_span_peak(span);
    if (!memtrack_is_recording || !memtrack_is_recording())
        (void)fputs("memtrack_limit.h: nothing is recorded: run this with 'memtrack run --allocation-timestamps --follow'\n",
                    stderr);
    else if (peak < 0)
        (void)fputs("memtrack_limit.h: the span could not be measured, and so it does not fit\n", stderr);
    else if (peak > limit)
        (void)fprintf(stderr, "memtrack_limit.h: the span had %lld bytes at its peak, its limit is %lld\n", peak, limit);
    return peak >= 0 && peak <= limit;
}

#ifdef __cplusplus
}
#endif

#endif

/* memtrack_limit.h: how much memory a part of a program needs at most, for tests with limits.
 *
 *   struct memtrack_span span = memtrack_span_begin();
 *   work();
 *   long long peak = memtrack_span_peak(span);
 *   assert(peak < 1000000);            -- memtrack_span_peak is -1 where nothing is recorded
 *
 * The peak is that of what was allocated within the span, by all threads, and was live at one moment of it. It is asked
 * from the program memtrack: $MEMTRACK, else the one in PATH. Run the tests with
 *
 *   memtrack run --allocation-timestamps --follow -o tests.bin ./tests
 *
 * since without exact times a span is accurate to some milliseconds only.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef MEMTRACK_LIMIT_H
#define MEMTRACK_LIMIT_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <time.h>

#include "memtrack.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A span of time that has begun. */
struct memtrack_span {
    long long begin_ns;
};

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

/* Reads the fourth list of the answer's row of spans: the peak. 0: nothing was allocated in the span. */
static inline long long memtrack_peak_in_(FILE *answer) {
    char line[65536];
    long long peak = 0;
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

/* The largest number of bytes of this span that were live at one moment; -1: nothing is recorded, or memtrack cannot be
 * asked. The time that this takes does not belong to the span. */
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
            (void)snprintf(command, sizeof command, "'%s' transform records --table spans --spans '%s' -o - '%s' 2>/dev/null",
                           program ? program : "memtrack", spans, capture);
            file = popen(command, "r");
            if (file) {
                peak = memtrack_peak_in_(file);
                if (pclose(file) != 0)
                    peak = -1;
            }
        }
    }
    (void)unlink(capture);
    (void)unlink(spans);
    (void)rmdir(directory);
    return peak;
}

#ifdef __cplusplus
}
#endif

#endif

/* Threads that allocate after pauses, each block of a size of its own, and free it after another. Prints what pauses.py
 * prints; standard output has no buffer to be allocated in between. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { FIRST_SIZE = 3000000, BLOCKS = 5, MOST_THREADS = 8 };

static const long pauses_us[] = {50000, 400000, 3000, 700000, 1500};
static long long lines[MOST_THREADS][BLOCKS][5];

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void pause_for(long number) {
    long us = pauses_us[number % 5];
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void *work(void *argument) {
    long number = (long)argument;
    for (long at = 0; at < BLOCKS; at++) {
        long long *line = lines[number][at];
        line[0] = FIRST_SIZE + number * 1000 + at;
        pause_for(number + at);
        line[1] = now();
        char *volatile block = malloc(line[0]);
        line[2] = now();
        pause_for(number + at + 1);
        line[3] = now();
        free(block);
        line[4] = now();
    }
    return NULL;
}

int main(int count, char **arguments) {
    long threads = count > 1 ? atol(arguments[1]) : 0;
    pthread_t ids[MOST_THREADS];
    for (long number = 1; number <= threads; number++)
        pthread_create(&ids[number], NULL, work, (void *)number);
    work(NULL);
    for (long number = 1; number <= threads; number++)
        pthread_join(ids[number], NULL);
    for (long number = 0; number <= threads; number++)
        for (int at = 0; at < BLOCKS; at++) {
            long long *line = lines[number][at];
            printf("%lld %lld %lld %lld %lld\n", line[0], line[1], line[2], line[3], line[4]);
        }
}

/* Threads that hand over every block: producers allocate, consumers free, with a ring between each two.
 *
 *     threads_handover THREADS EVENTS [RING]
 *
 * EVENTS allocations in all, and as many frees; half of the threads produce. A ring has RING places (1024). Sizes are
 * drawn with a fixed seed; most blocks are so small that glibc frees them without a lock. Each side says every 32 blocks how far it is; one whose ring is full or empty yields. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct ring {
    _Alignas(128) atomic_ulong written;
    _Alignas(128) atomic_ulong taken;
    _Alignas(128) uint64_t state;
    char **places;
};

enum { BATCH = 32 };

static unsigned long rounds, length;

static uint32_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

static size_t draw_size(uint64_t *state) {
    uint32_t kind = draw(state) & 1023, more = draw(state);
    if (kind < 1000) return 8 + more % 113;
    if (kind < 1020) return 128 + (more & 511);
    return 512 + (more & 4095);
}

static void *produce(void *argument) {
    struct ring *ring = argument;
    for (unsigned long round = 0, taken = 0; round < rounds; round++) {
        while (round - taken >= length) {
            taken = atomic_load_explicit(&ring->taken, memory_order_acquire);
            if (round - taken >= length) sched_yield();
        }
        char *block = malloc(draw_size(&ring->state));
        if (!block) abort();
        *block = (char)round;
        ring->places[round % length] = block;
        if (round % BATCH == BATCH - 1 || round + 1 == rounds)
            atomic_store_explicit(&ring->written, round + 1, memory_order_release);
    }
    return NULL;
}

static void *consume(void *argument) {
    struct ring *ring = argument;
    for (unsigned long round = 0, written = 0; round < rounds; round++) {
        while (round == written) {
            written = atomic_load_explicit(&ring->written, memory_order_acquire);
            if (round == written) sched_yield();
        }
        free(ring->places[round % length]);
        if (round % BATCH == BATCH - 1) atomic_store_explicit(&ring->taken, round + 1, memory_order_release);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: threads_handover THREADS EVENTS [RING]\n"), 2;
    int pairs = atoi(argv[1]) / 2;
    if (pairs < 1) pairs = 1;
    length = argc > 3 ? strtoul(argv[3], NULL, 10) : 1024;
    rounds = strtoul(argv[2], NULL, 10) / (unsigned long)pairs;
    struct ring *rings = aligned_alloc(128, (size_t)pairs * sizeof *rings);
    pthread_t *threads = calloc((size_t)pairs * 2, sizeof *threads);
    for (int at = 0; at < pairs; at++) {
        rings[at] = (struct ring){.state = 88172645463325252u + (uint64_t)at * 1000003};
        rings[at].places = calloc(length, sizeof *rings[at].places);
    }
    for (int at = 0; at < pairs * 2; at++)
        pthread_create(&threads[at], NULL, at % 2 ? consume : produce, &rings[at / 2]);
    for (int at = 0; at < pairs * 2; at++) pthread_join(threads[at], NULL);
    for (int at = 0; at < pairs; at++) free(rings[at].places);
    free(rings);
    free(threads);
    return 0;
}

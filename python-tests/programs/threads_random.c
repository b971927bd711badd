/* Threads at full rate with random sizes and lifetimes: each frees a random one of its blocks and allocates another.
 *
 *     threads_random THREADS EVENTS [BLOCKS]
 *
 * EVENTS allocations in all, and as many frees; each thread has up to BLOCKS live blocks (4000). Sizes are drawn with a
 * fixed seed: most are small, one in a thousand is above 32 KiB. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static long rounds, blocks;

static uint32_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

static size_t draw_size(uint64_t *state) {
    uint32_t kind = draw(state) & 1023, more = draw(state);
    if (kind < 640) return 8 + (more & 63);
    if (kind < 920) return 64 + (more & 511);
    if (kind < 1003) return 512 + (more & 4095);
    if (kind < 1023) return 4096 + (more & 16383);
    return 32768 + (more & 65535);
}

static void *work(void *number) {
    uint64_t state = 88172645463325252u + (uint64_t)(uintptr_t)number * 1000003;
    char **table = calloc((size_t)blocks, sizeof *table);
    for (long round = 0; round < rounds; round++) {
        char **place = &table[draw(&state) % (uint32_t)blocks];
        free(*place);
        *place = malloc(draw_size(&state));
        if (!*place) abort();
        **place = (char)round;
    }
    for (long at = 0; at < blocks; at++) free(table[at]);
    free(table);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: threads_random THREADS EVENTS [BLOCKS]\n"), 2;
    int count = atoi(argv[1]);
    blocks = argc > 3 ? atol(argv[3]) : 4000;
    rounds = atol(argv[2]) / count;
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    for (int at = 0; at < count; at++) pthread_create(&threads[at], NULL, work, (void *)(uintptr_t)(at + 1));
    for (int at = 0; at < count; at++) pthread_join(threads[at], NULL);
    free(threads);
    return 0;
}

// The best case: one line allocates, its sizes repeat. repeated PAIRS [THREADS].
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

static void *work(void *argument) {
    long pairs = (intptr_t)argument;
    void *blocks[64] = {0};
    for (long i = 0; i < pairs; i++) {
        void **block = &blocks[i % 64];
        free(*block);
        *block = malloc(16 + i % 512);
    }
    return NULL;
}

int main(int argc, char **argv) {
    void *pairs = (void *)(intptr_t)atol(argv[1]);
    if (argc == 2) {
        work(pairs);
        return 0;
    }
    pthread_t threads[64];
    int count = atoi(argv[2]);
    for (int at = 0; at < count; at++) pthread_create(&threads[at], NULL, work, pairs);
    for (int at = 0; at < count; at++) pthread_join(threads[at], NULL);
    return 0;
}

/* Threads that wait for ever and have nothing but the C library on their stacks, and a first thread that waits with a time limit for its
 * input to end: unusable_threads NUMBER. */
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    for (int left = count > 1 ? atoi(words[1]) : 0; left > 0; left--) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, (void *(*)(void *))(uintptr_t)pause, NULL) != 0)
            return 2;
    }
    puts("ready");
    fflush(stdout);
    return poll(&input, 1, 3600 * 1000) == 1 ? 0 : 1;
}

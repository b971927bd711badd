/* Threads that change their names when they have allocated already. Each allocates a block of a size of its own; prints
 * "size name" for each. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

enum { FIRST_SIZE = 2000003 };
static void *volatile blocks[3];

static void *by_pthread(void *unused) {
    blocks[0] = malloc(FIRST_SIZE);
    pthread_setname_np(pthread_self(), "early");
    pthread_setname_np(pthread_self(), "by pthread");
    return unused;
}

static void *by_prctl(void *unused) {
    blocks[1] = malloc(FIRST_SIZE + 1);
    prctl(PR_SET_NAME, "by prctl", 0, 0, 0);
    return unused;
}

int main(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, by_pthread, NULL);
    pthread_create(&threads[1], NULL, by_prctl, NULL);
    blocks[2] = malloc(FIRST_SIZE + 2);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    printf("%d by pthread\n%d by prctl\n%d the main one\n", FIRST_SIZE, FIRST_SIZE + 1, FIRST_SIZE + 2);
    prctl(PR_SET_NAME, "the main one", 0, 0, 0);
}

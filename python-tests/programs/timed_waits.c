/* Waits with time limits, one after the other, while other threads allocate; prints how many were interrupted. Ends with its input. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { KINDS = 9 };

static volatile int done;

static void *allocate(void *argument) {
    unsigned state = (unsigned)(long)argument;
    void *ring[256] = {0};
    while (!done) {
        for (int i = 0; i < 3000; i++) {
            state = state * 1103515245 + 12345;
            free(ring[state >> 16 & 255]);
            ring[state >> 16 & 255] = malloc(16 + (state >> 20) % 700);
        }
        usleep(200);
    }
    return NULL;
}

static void *await_end(void *argument) {
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    done = 1;
    return argument;
}

/* One wait for 50 ms; whether it was interrupted. */
static int interrupted(int kind, int pipe_end, int socket, int epoll) {
    struct timespec limit = {0, 50 * 1000 * 1000}, until;
    struct pollfd waited = {pipe_end, POLLIN, 0};
    struct epoll_event event;
    sigset_t set;
    sem_t semaphore;
    char byte;
    int word = 0;
    errno = 0;
    switch (kind) {
    case 0: return nanosleep(&limit, NULL) != 0;
    case 1: return clock_nanosleep(CLOCK_MONOTONIC, 0, &limit, NULL) != 0;
    case 2: return poll(&waited, 1, 50) < 0;
    case 3: return ppoll(&waited, 1, &limit, NULL) < 0;
    case 4: return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &limit, NULL, 0) < 0 && errno == EINTR;
    case 5:
        sem_init(&semaphore, 0, 0);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 50 * 1000 * 1000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        return sem_timedwait(&semaphore, &until) < 0 && errno == EINTR;
    /* These the kernel ends at a stop. */
    case 6: return recv(socket, &byte, 1, 0) < 0 && errno == EINTR;
    case 7:
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        return sigtimedwait(&set, NULL, &limit) < 0 && errno == EINTR;
    default: return epoll_wait(epoll, &event, 1, 50) < 0;
    }
}

int main(int count, char **arguments) {
    int ends[2], sockets[2], epoll = epoll_create1(0), found[KINDS] = {0};
    struct timeval limit = {0, 50 * 1000};
    pthread_t thread;
    if (count != 2 || pipe(ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        return 1;
    setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (long i = atol(arguments[1]); i > 0; i--)
        pthread_create(&thread, NULL, allocate, (void *)i);
    pthread_create(&thread, NULL, await_end, NULL);
    puts("ready");
    fflush(stdout);
    while (!done)
        for (int kind = 0; kind < KINDS; kind++)
            found[kind] += interrupted(kind, ends[0], sockets[0], epoll);
    for (int kind = 0; kind < KINDS; kind++)
        printf("%d ", found[kind]);
    fflush(stdout);
    _exit(0);
}

/* The first thread holds a lock of the loader and cannot be stopped: it waits for the child of a vfork, which ends when a byte comes on
 * the descriptor that is named. Another one waits for room in a pipe, of which it loses nothing, so that both are equally good. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile pid_t child;
static int held, room[2];

static int hold(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)info, (void)size, (void)unused;
    char byte;
    child = vfork();
    if (child == 0) {
        if (write(1, "h", 1) != 1 || read(held, &byte, 1) != 1)
            _exit(1);
        _exit(0);
    }
    return 1;
}

static void *wait_for_room(void *unused) {
    (void)unused;
    return write(room[1], "x", 1) == 1 ? NULL : "failed";
}

int main(int count, char **words) {
    static char bytes[4096];
    pthread_t thread;
    void *failed;
    int status;
    held = count > 1 ? atoi(words[1]) : 0;
    if (pipe2(room, O_NONBLOCK) != 0)
        return 2;
    while (write(room[1], bytes, sizeof bytes) > 0)
        ;
    fcntl(room[1], F_SETFL, 0);
    if (pthread_create(&thread, NULL, wait_for_room, NULL) != 0)
        return 3;
    dl_iterate_phdr(hold, NULL);
    if (waitpid(child, &status, 0) != child || status != 0)
        return 4;
    while (read(room[0], bytes, sizeof bytes) > 0)
        ;
    pthread_join(thread, &failed);
    free(malloc(100));
    return failed == NULL ? 0 : 5;
}

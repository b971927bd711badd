/* Forbids itself one system call, on pain of death, and works on: attach_filter NUMBER. Each line that it reads lets it allocate in
 * new threads and in this one. With "wait" instead it waits without a limit for what comes when the line comes. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { THREADS = 4, BLOCKS = 3000 };

static void *work(void *unused) {
    (void)unused;
    void *held[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        held[i] = malloc(i + 1);
    for (int i = 0; i < BLOCKS; i++)
        free(held[i]);
    return NULL;
}

static void work_in_all(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    work(NULL);
    free(realloc(malloc(1000), 30000000));
}

/* Waits in a call that the kernel ends when a thread is stopped; returns the error. */
static int wait_once(void) {
    int queue = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(queue, EPOLL_CTL_ADD, 0, &event);
    return epoll_wait(queue, &event, 1, -1) == 1 ? 0 : errno;
}

int main(int count, char **words) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(words[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    setvbuf(stdout, NULL, _IONBF, 0);
    work_in_all();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 2;
    puts("ready");
    if (count > 2 && strcmp(words[2], "wait") == 0)
        return wait_once();
    for (char line[100]; fgets(line, sizeof line, stdin) != NULL;) {
        work_in_all();
        puts("done");
    }
    return 0;
}

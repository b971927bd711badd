/* A program that allows itself what it needs itself, and no other system call: HOW THREADS
 *
 * HOW: by which function the filter is installed: prctl, seccomp (syscall), syscall-prctl; or "forbidden", which makes a
 * forbidden call afterwards; or "none". A filter ends the process at any call that is not in its list, so not one of
 * memtrack's may be made that is not. What is allocated after that is counted by the test. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *volatile block;
static volatile int done;

static __attribute__((noinline)) void keep(int count, size_t size) {
    for (int at = 0; at < count; at++)
        block = memset(malloc(size), 1, size);
}

/* Far more events than the rings hold. */
static __attribute__((noinline)) void churn(int count) {
    for (int at = 0; at < count; at++) {
        block = malloc(64 + at % 512);
        free(block);
    }
}

static void *thread(void *unused) {
    keep(1000, 400);
    churn(100000);
    __sync_fetch_and_add(&done, 1);
    return unused;
}

#define ALLOWED(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static long install(const char *how) {
    static struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOWED(SYS_write),
        ALLOWED(SYS_exit),
        ALLOWED(SYS_exit_group),
        ALLOWED(SYS_brk),
        ALLOWED(SYS_mmap),
        ALLOWED(SYS_munmap),
        ALLOWED(SYS_mprotect),
        ALLOWED(SYS_clone),
#ifdef SYS_clone3
        ALLOWED(SYS_clone3),
#endif
        ALLOWED(SYS_set_robust_list),
        ALLOWED(SYS_madvise),
        ALLOWED(SYS_rt_sigaction),
#ifdef SYS_rseq
        ALLOWED(SYS_rseq),
#endif
        /* Blocks signals around the creation of a thread; what memtrack asks by it has another first argument. */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigprocmask, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SIG_SETMASK, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    static struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (strcmp(how, "prctl") == 0 || strcmp(how, "forbidden") == 0)
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    if (strcmp(how, "seccomp") == 0)
        return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    return syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

int main(int count, char **arguments) {
    if (count != 3 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return 2;
    keep(10, 1000);
    int threads = atoi(arguments[2]);
    if (strcmp(arguments[1], "none") != 0) {
        /* One that fails changes nothing. */
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == 0 || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == 0)
            return 3;
        if (install(arguments[1]) != 0)
            return 4;
    }
    keep(100000, 200);
    churn(400000);
    for (int at = 0; at < threads; at++) {
        pthread_t created;
        if (pthread_create(&created, NULL, thread, NULL) != 0)
            return 5;
    }
    while (done < threads)
        ;
    if (strcmp(arguments[1], "forbidden") == 0)
        getppid();
    write(1, "done\n", 5);
    _exit(8);
}

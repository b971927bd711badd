/* What the hooks of the calling thread ask of the system, and of the arena that memtrack's library takes its own memory
 * from, between hook_path_begin and hook_path_end. A library for Python programs, and with -DPROGRAM a program that does
 * nothing but malloc and free.
 *
 * A filter of system calls, set without the C library so that nobody notices, turns every system call into a signal. Its
 * handler counts it and lets it be: a futex that is waited for is looked at until it has changed, at most for as long as
 * memtrack waits, and one that is woken wakes up by itself. So what is counted is not done, and what cannot be left out is allowed: to sleep, to say the counts, to end. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static volatile int counting;
static volatile long futexes, others, other_number = -1;
static unsigned long arena_before;

/* As the futex would: a thread that is told too early that nothing has changed asks again, many times on a busy machine. */
static void wait_for_change(volatile const int *word, int value) {
    for (int looks = 0; looks < 50 && *word == value; looks++) {
        struct timespec nap = {0, 1000000};
        nanosleep(&nap, NULL);
    }
}

static void count(int signal, siginfo_t *info, void *context) {
    (void)signal;
    ucontext_t *user = context;
    greg_t *registers = user->uc_mcontext.gregs;
    long result = 0;
    if (info->si_syscall == SYS_futex) {
        futexes += counting;
        if ((registers[REG_RSI] & FUTEX_CMD_MASK) == FUTEX_WAIT) {
            wait_for_change((volatile const int *)registers[REG_RDI], (int)registers[REG_RDX]);
        }
    } else if (counting) {
        others += 1;
        other_number = info->si_syscall;
        result = -ENOSYS;
    }
    registers[REG_RAX] = result;
}

static const unsigned long *arena_allocations(void) {
    static const unsigned long *found;
    if (found == NULL) {
        found = dlsym(RTLD_DEFAULT, "memtrack_arena_allocations");
    }
    return found;
}

/* Installs a filter as a program does that has no use for the C library: memtrack, which makes no call that a filter of the
 * program's forbids, does not see it. */
static long seccomp_unseen(struct sock_fprog *program) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)SYS_seccomp), "D"((long)SECCOMP_SET_MODE_FILTER), "S"(0L), "d"(program)
                     : "rcx", "r11", "memory");
    return result;
}

/* 0; else what is missing. */
int hook_path_begin(void) {
#define ALLOWED(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    static struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOWED(SYS_rt_sigreturn),
        ALLOWED(SYS_write),
        ALLOWED(SYS_nanosleep),
        ALLOWED(SYS_clock_nanosleep),
        ALLOWED(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    static struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = count;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (arena_allocations() == NULL) {
        return 1;
    }
    if (sigaction(SIGSYS, &action, NULL) != 0) {
        return 2;
    }
    if (syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        return 3;
    }
    if (seccomp_unseen(&program) != 0) {
        return 4;
    }
    arena_before = *arena_allocations();
    counting = 1;
    return 0;
}

/* Says what was counted, and ends the process: the filter lets nothing else be done. */
void hook_path_end(void) {
    counting = 0;
    unsigned long arena = *arena_allocations() - arena_before;
    char text[160];
    int length = snprintf(text, sizeof text, "arena %lu futexes %ld others %ld number %ld\n", arena, futexes, others, other_number);
    syscall(SYS_write, 1, text, (size_t)length);
    syscall(SYS_exit_group, 0);
}

#ifdef PROGRAM
static void *volatile block;

static void churn(long rounds) {
    for (long round = 0; round < rounds; round++) {
        block = malloc(600);
        free(block);
    }
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 1;
    churn(rounds / 10);
    int missing = hook_path_begin();
    if (missing != 0) {
        return missing;
    }
    churn(rounds);
    hook_path_end();
}
#endif

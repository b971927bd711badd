/* Stands in for memtrack's library, to have its instructions counted: starts the program anew under callgrind, with the
 * library itself (INSTRUCTIONS_LIBRARY) in it. valgrind's own launcher is left out, for the library would be in that. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the environment, the arguments and the program's path take together on the new program's stack, before PADDING:
 * always the same, for a stack that begins elsewhere shifts which entries of the library's tables share a place. */
enum { STRINGS = 24 * 1024 };

extern char **environ;

/* That of the library, without which memtrack would refuse it. */
const unsigned char memtrack_shim_identity[] = {IDENTITY};

static size_t sizes(char **strings) {
    size_t sum = 0;
    for (; *strings != NULL; strings++) {
        sum += strlen(*strings) + 1;
    }
    return sum;
}

static void fill_up(char **arguments) {
    static char filler[2 * STRINGS];
    const char *padding = getenv("PADDING");
    size_t wanted = STRINGS + (padding == NULL ? 0 : strtoul(padding, NULL, 10));
    setenv("PADDING", "", 1);
    /* The program's path stands there twice: among the arguments, and for the program itself. */
    size_t taken = sizes(environ) + sizes(arguments) + strlen(arguments[0]) + 1;
    if (taken >= wanted) {
        fprintf(stderr, "the environment takes %zu bytes: more than %zu\n", taken, wanted);
        _exit(126);
    }
    memset(filler, 'x', wanted - taken);
    setenv("PADDING", filler, 1);
}

__attribute__((constructor)) static void count(int argc, char **argv) {
    const char *tool = getenv("INSTRUCTIONS_TOOL");
    if (tool == NULL) {
        return;
    }
    char program[4096], out[4096], mark[64];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) {
        _exit(126);
    }
    program[length] = 0;
    snprintf(out, sizeof out, "--callgrind-out-file=%s", getenv("INSTRUCTIONS_OUT"));
    snprintf(mark, sizeof mark, "--dump-before=%s", getenv("INSTRUCTIONS_MARK"));
    char **arguments = calloc((size_t)argc + 7, sizeof *arguments);
    arguments[0] = "valgrind";
    arguments[1] = "--tool=callgrind";
    arguments[2] = "--collect-jumps=yes";
    arguments[3] = "--combine-dumps=yes";
    arguments[4] = mark;
    arguments[5] = out;
    arguments[6] = program;
    for (int index = 1; index < argc; index++) {
        arguments[index + 6] = argv[index];
    }
    setenv("LD_PRELOAD", getenv("INSTRUCTIONS_LIBRARY"), 1);
    setenv("VALGRIND_LAUNCHER", tool, 1);
    unsetenv("INSTRUCTIONS_TOOL");
    fill_up(arguments + 6);
    execve(tool, arguments, environ);
    perror(tool);
    _exit(126);
}

/* A library for LD_PRELOAD. When a program ends, after it and its interpreter have cleaned up, it makes the file `ready` in the
   directory PROBE, waits for `go` while it allocates, writes what its allocator says of itself to `figures`, calls malloc_trim, or what
   jemalloc and tcmalloc have for it, makes `trimmed`, and waits for `end`. */
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));
extern int MallocExtension_GetNumericProperty(const char *, size_t *) __attribute__((weak));
extern void MallocExtension_ReleaseFreeMemory(void) __attribute__((weak));
extern void mi_process_info(size_t *, size_t *, size_t *, size_t *, size_t *, size_t *, size_t *, size_t *) __attribute__((weak));

static char directory[300];

static const char *path(const char *name)
{
    static char all[400];
    snprintf(all, sizeof all, "%s/%s", directory, name);
    return all;
}

static void make(const char *name)
{
    close(open(path(name), O_CREAT | O_WRONLY, 0600));
}

static void await(const char *name)
{
    for (int turn = 0; turn < 600000 && access(path(name), F_OK); turn++)
        usleep(1000);
}

/* The same; the program allocates meanwhile. */
static void await_allocating(const char *name)
{
    for (int turn = 0; turn < 600000 && access(path(name), F_OK); turn++) {
        void *volatile block = malloc(1);
        free(block);
        usleep(1000);
    }
}

static size_t of_jemalloc(const char *name)
{
    size_t value = 0, length = sizeof value;
    mallctl(name, &value, &length, NULL, 0);
    return value;
}

static size_t of_tcmalloc(const char *name)
{
    size_t value = 0;
    MallocExtension_GetNumericProperty(name, &value);
    return value;
}

static void write_figures(void)
{
    char text[600] = "";
    if (mallctl) {
        unsigned long epoch = 1;
        mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
        snprintf(text, sizeof text, "{\"allocated_bytes\": %zu, \"free_page_bytes\": %zu, \"metadata_bytes\": %zu, \"cached_bytes\": %zu}",
                 of_jemalloc("stats.allocated"), of_jemalloc("stats.arenas.4096.pdirty") * of_jemalloc("arenas.page"),
                 of_jemalloc("stats.metadata"), of_jemalloc("stats.arenas.4096.tcache_bytes"));
    } else if (MallocExtension_GetNumericProperty) {
        snprintf(text, sizeof text, "{\"allocated_bytes\": %zu, \"free_page_bytes\": %zu, \"released_bytes\": %zu}",
                 of_tcmalloc("generic.current_allocated_bytes"), of_tcmalloc("tcmalloc.pageheap_free_bytes"),
                 of_tcmalloc("tcmalloc.pageheap_unmapped_bytes"));
    } else if (mi_process_info) {
        size_t committed = 0;
        mi_process_info(NULL, NULL, NULL, NULL, NULL, &committed, NULL, NULL);
        snprintf(text, sizeof text, "{\"committed_bytes\": %zu}", committed);
    }
    int file = open(path("figures"), O_CREAT | O_WRONLY, 0600);
    if (write(file, text, strlen(text)) < 0)
        abort();
    close(file);
}

__attribute__((constructor)) static void begin(void)
{
    char program[300] = "";
    const char *named = getenv("PROBE");
    if (!named || readlink("/proc/self/exe", program, sizeof program - 1) <= 0)
        return;
    const char *name = strrchr(program, '/');
    if (name && strcmp(name, "/memtrack"))
        strncpy(directory, named, sizeof directory - 1);
}

__attribute__((destructor)) static void end(void)
{
    if (!directory[0])
        return;
    make("ready");
    await_allocating("go");
    write_figures();
    if (mallctl) {
        mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
        mallctl("arena.4096.purge", NULL, NULL, NULL, 0);
    } else if (MallocExtension_ReleaseFreeMemory)
        MallocExtension_ReleaseFreeMemory();
    else
        malloc_trim(0);
    make("trimmed");
    await("end");
}

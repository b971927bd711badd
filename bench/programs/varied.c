// Allocates blocks with sizes and lifetimes of recorded programs, from stacks that move by a few frames at each event.
// varied SHAPE PAIRS DEPTH EVENTS: the shapes are calls, random_free and growth; PAIRS is a file of lines "size lifetime".
// A lifetime is a number of further events: each event frees what is due, and makes a block that is due later.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHEEL (1 << 16)
#define MOVING 8
#define LIVE 200000
#define NOINLINE __attribute__((noinline))

struct block {
    struct block *next;
};
static struct block *wheel[WHEEL];
static struct {
    uint32_t size, lifetime;
} drawn[WHEEL];
static long at, events;
static uint64_t state = 88172645463325252u;

static uint64_t chance(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void read_pairs(const char *path) {
    static uint32_t pairs[65536][2];
    FILE *file = fopen(path, "r");
    unsigned count = 0;
    while (file && count < 65536 && fscanf(file, "%u %u", &pairs[count][0], &pairs[count][1]) == 2) count++;
    if (!count) exit(2);
    fclose(file);
    for (int draw = 0; draw < WHEEL; draw++) {
        uint32_t *pair = pairs[chance() % count];
        drawn[draw].size = pair[0] < sizeof(struct block) ? sizeof(struct block) : pair[0] > 16384 ? 16384 : pair[0];
        drawn[draw].lifetime = pair[1] < WHEEL - 2 ? pair[1] + 1 : WHEEL - 1;
    }
}

static void free_due(void) {
    struct block **place = &wheel[at % WHEEL];
    for (struct block *block = *place, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    *place = NULL;
}

static inline void event(void) {
    free_due();
    struct block **place = &wheel[(at + drawn[at % WHEEL].lifetime) % WHEEL];
    struct block *block = malloc(drawn[at % WHEEL].size);
    block->next = *place;
    *place = block;
    at++;
}

static void visit(int depth);

NOINLINE static void parse(int depth) {
    event();
    for (int count = chance() % 3; depth && count; count--) visit(depth - 1);
    asm volatile("");
}

NOINLINE static void visit(int depth) {
    for (int count = 1 + chance() % 2; depth && count; count--) {
        parse(depth - 1);
        event();
    }
    asm volatile("");
}

NOINLINE static void descend(int depth) {
    if (depth > MOVING)
        descend(depth - 1);
    else
        for (int count = 0; count < 200 && at < events; count++) parse(depth);
    asm volatile("");
}

static void random_free(void) {
    static void *blocks[LIVE];
    for (; at < events; at++) {
        void **block = &blocks[chance() % LIVE];
        free(*block);
        *block = malloc(drawn[at % WHEEL].size);
    }
}

static void growth(void) {
    static struct {
        char *text;
        size_t length;
    } buffers[1000];
    for (; at < events; at++) {
        int which = at % 1000;
        buffers[which].length += drawn[at % WHEEL].size;
        buffers[which].text = realloc(buffers[which].text, buffers[which].length);
        if (buffers[which].length > 20000) buffers[which].length = 0;
    }
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    read_pairs(argv[2]);
    int depth = atoi(argv[3]);
    events = atol(argv[4]);
    if (!strcmp(argv[1], "random_free"))
        random_free();
    else if (!strcmp(argv[1], "growth"))
        growth();
    else
        while (at < events) descend(depth);
    return 0;
}

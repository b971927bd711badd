/* Allocates and frees a block as often as the argument says. */

#include <stdlib.h>

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 1;
    for (long round = 0; round < rounds; round++) {
        void *volatile block = malloc(100 + (size_t)(round & 15));
        free(block);
    }
    return 0;
}

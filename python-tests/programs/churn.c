/* Allocates and frees a block as often as the first argument says, and then as often as the second. A call of getpgrp stands
 * before and after the latter, for who counts these alone. */

#include <stdlib.h>
#include <unistd.h>

/* In `main`, so that the stacks are as short as they can be. */
__attribute__((always_inline)) static inline void churn(long rounds) {
    for (long round = 0; round < rounds; round++) {
        void *volatile block = malloc(100 + (size_t)(round & 15));
        free(block);
    }
}

int main(int argc, char **argv) {
    churn(argc > 1 ? atol(argv[1]) : 1);
    getpgrp();
    churn(argc > 2 ? atol(argv[2]) : 0);
    getpgrp();
    return 0;
}

/* Says for each line "f" or "m" what it has: after "f" in a new child, which goes on in its place, where it calls malloc. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    puts("ready");
    for (char line[100]; fgets(line, sizeof line, stdin) != NULL;) {
        if (line[0] == 'f') {
            pid_t child = fork();
            if (child != 0)
                return waitpid(child, NULL, 0) == child ? 0 : 1;
        }
        void *(*volatile called)(size_t) = malloc;
        printf("%d %p\n", getpid(), (void *)called);
        free(called(100));
    }
    return 0;
}

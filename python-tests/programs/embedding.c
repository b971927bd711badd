/* Runs Python code in a library that is loaded for this program alone. Usage: embedding LIBRARY CODE */
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words)
{
    void *library = count == 3 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) {
        fprintf(stderr, "%s\n", count == 3 ? dlerror() : "usage: embedding LIBRARY CODE");
        return 2;
    }
    void (*initialize)(int) = (void (*)(int))dlsym(library, "Py_InitializeEx");
    int (*run)(const char *) = (int (*)(const char *))dlsym(library, "PyRun_SimpleString");
    int (*finalize)(void) = (int (*)(void))dlsym(library, "Py_FinalizeEx");
    initialize(0);
    int status = run(words[2]);
    return finalize() < 0 ? 3 : -status;
}

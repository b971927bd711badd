/* An extension module that calls back into Python and allocates on its side of the boundary. The lines that stand in stacks
 * have labels. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdlib.h>

static void *kept[64];
static int keeps;

__attribute__((noinline)) static void keep(size_t size) {
    void *block = malloc(size); /* @keep */
    kept[keeps++] = block;
}

/* take(size): a block of malloc's. */
static PyObject *take(PyObject *module, PyObject *size) {
    (void)module;
    keep(PyLong_AsSize_t(size)); /* @take */
    Py_RETURN_NONE;
}

__attribute__((noinline)) static PyObject *call(PyObject *function) {
    PyObject *result = PyObject_CallObject(function, NULL); /* @call */
    __asm__ volatile("" : "+r"(result));
    return result;
}

/* around(function, size): a block of `size` bytes, the call, and a block of `size + 1`. */
static PyObject *around(PyObject *module, PyObject *arguments) {
    PyObject *function;
    Py_ssize_t size;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "On", &function, &size))
        return NULL;
    keep((size_t)size);                /* @before */
    PyObject *result = call(function); /* @around */
    keep((size_t)size + 1);            /* @after */
    return result;
}

/* made(size): a block that the interpreter allocates for C code. */
static PyObject *made(PyObject *module, PyObject *size) {
    (void)module;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, PyLong_AsSsize_t(size)); /* @made */
    __asm__ volatile("" : "+r"(bytes));
    return bytes;
}

static void *native(void *size) {
    keep((size_t)size); /* @native */
    return size;
}

static void *with_python(void *function) {
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = call(function); /* @with_python */
    Py_XDECREF(result);
    PyGILState_Release(state);
    return function;
}

static PyObject *in_thread(void *(*body)(void *), void *argument) {
    pthread_t thread;
    Py_BEGIN_ALLOW_THREADS
    if (pthread_create(&thread, NULL, body, argument) == 0)
        pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* native_thread(size): a block of a thread that knows nothing of Python. */
static PyObject *native_thread(PyObject *module, PyObject *size) {
    (void)module;
    return in_thread(native, (void *)PyLong_AsSize_t(size));
}

/* calling_thread(function): calls it in a thread that C started. */
static PyObject *calling_thread(PyObject *module, PyObject *function) {
    (void)module;
    return in_thread(with_python, function);
}

static PyMethodDef methods[] = {
    {"take", take, METH_O, NULL},
    {"around", around, METH_VARARGS, NULL},
    {"made", made, METH_O, NULL},
    {"native_thread", native_thread, METH_O, NULL},
    {"calling_thread", calling_thread, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "boundary", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_boundary(void) { return PyModule_Create(&definition); }

/* An extension module that holds objects where no object does: in a static variable, in a table of malloc, on the stack; and one
 * that forgets to release an object. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

struct table {
    size_t used, room;
    PyObject **rows;
};

/* The compiler drops what nobody reads. */
static PyObject *volatile kept;
static PyObject *volatile several[3];
static struct table *table;

static PyObject *keep_static(PyObject *module, PyObject *object) {
    Py_INCREF(object);
    kept = object;
    Py_RETURN_NONE;
}

static PyObject *keep_in_array(PyObject *module, PyObject *object) {
    Py_INCREF(object);
    several[2] = object;
    Py_RETURN_NONE;
}

static PyObject *keep_in_function(PyObject *module, PyObject *object) {
    static PyObject *volatile hidden;
    Py_INCREF(object);
    hidden = object;
    return PyBool_FromLong(hidden != NULL);
}

__attribute__((noinline)) static void grow_table(void) {
    table->room = 100;
    table->rows = malloc(table->room * sizeof *table->rows); /* @grow */
    for (size_t row = 0; row < table->room; row++) table->rows[row] = NULL;
}

static PyObject *keep_in_table(PyObject *module, PyObject *object) {
    if (!table) {
        table = calloc(1, sizeof *table);
        grow_table();
    }
    Py_INCREF(object);
    table->rows[table->used++] = object;
    Py_RETURN_NONE;
}

static PyObject *forget(PyObject *module, PyObject *object) {
    Py_INCREF(object);
    Py_RETURN_NONE;
}

/* Calls the first argument, and then the second one while it has what the first one has returned. */
static PyObject *hold(PyObject *module, PyObject *arguments) {
    PyObject *make, *wait;
    if (!PyArg_ParseTuple(arguments, "OO", &make, &wait)) return NULL;
    PyObject *volatile made = PyObject_CallObject(make, NULL);
    PyObject *waited = PyObject_CallObject(wait, NULL);
    Py_XDECREF(made);
    return waited;
}

static PyMethodDef methods[] = {
    {"keep_static", keep_static, METH_O, NULL},   {"keep_in_array", keep_in_array, METH_O, NULL},
    {"keep_in_function", keep_in_function, METH_O, NULL}, {"keep_in_table", keep_in_table, METH_O, NULL},
    {"forget", forget, METH_O, NULL},             {"hold", hold, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "holding", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_holding(void) {
    return PyModule_Create(&definition);
}

//! Names of fields that no table of members names, since C code shows them, or nothing does.
//!
//! Invariant: a name that is not between angle brackets is what Python code writes to get there.

use crate::interpreter::layout::ObjectLayout;
use crate::interpreter::type_fields::{BASES, RESOLUTION_ORDER, SUBCLASSES};
use crate::object::greenlets;
use crate::object::types::{ObjectKind, ObjectType};
use crate::references::{FIRST_OF_CODE_KEPT, OF_SUBINTERPRETERS};

/// Fields of types that C code defines, which are where they are in all versions: type, offset, name.
const BY_OFFSET: [(&str, u64, &str); 39] = [
    ("_asyncio.Future", 16, "<loop>"),
    ("_asyncio.Future", 24, "<callback>"),
    ("_asyncio.Future", 40, "<callbacks>"),
    ("_asyncio.Future", 48, "<exception>"),
    ("_asyncio.Future", 32, "<callback's context>"),
    ("_asyncio.Task", 16, "<loop>"),
    ("_asyncio.Task", 24, "<callback>"),
    ("_asyncio.Task", 40, "<callbacks>"),
    ("_asyncio.Task", 48, "<exception>"),
    ("_asyncio.Task", 32, "<callback's context>"),
    ("_contextvars.Context", 16, "<previous>"),
    // The variables, which are called by their names.
    ("_contextvars.Context", 24, ""),
    ("_contextvars.ContextVar", 24, "<default>"),
    ("_contextvars.Token", 16, "<context>"),
    ("_contextvars.Token", 24, "var"),
    ("_contextvars.Token", 32, "old_value"),
    // Before 3.10.
    ("builtins.Context", 16, "<previous>"),
    ("builtins.Context", 24, ""),
    ("builtins.ContextVar", 24, "<default>"),
    ("builtins.Token", 16, "<context>"),
    ("builtins.Token", 24, "var"),
    ("builtins.Token", 32, "old_value"),
    ("builtins.filter", 16, "<function>"),
    ("builtins.filter", 24, "<iterated>"),
    ("builtins.map", 16, "<iterated>"),
    ("builtins.map", 24, "<function>"),
    // From 3.11 on.
    ("builtins.frame", 16, "f_back"),
    ("builtins.hamt", 16, ""),
    ("builtins.mappingproxy", 16, "<mapping>"),
    ("builtins.memoryview", 64, "obj"),
    ("builtins.reversed", 24, "<iterated>"),
    ("builtins.enumerate", 24, "<iterated>"),
    ("builtins.zip", 24, "<iterated>"),
    ("functools._lru_list_elem", 48, "<result>"),
    ("itertools._tee", 16, "<values>"),
    ("itertools._tee_dataobject", 16, "<iterated>"),
    ("itertools._tee_dataobject", 32, "<later values>"),
    // From 3.12 on, where C code defines it.
    ("typing.TypeVar", 24, "__bound__"),
    ("typing.TypeVar", 40, "__constraints__"),
];

/// Whether the field of a task or future is its result, up to 3.10.5: since then that is behind the traceback of its exception.
pub(crate) fn is_result(of: &ObjectType, offset: u64, held: &str) -> bool {
    let is_future = of.name == "_asyncio.Future" || of.name == "_asyncio.Task";
    is_future && offset == 56 && held != "builtins.traceback"
}

/// Of a future or a task, what is elsewhere in each version, or in some only.
fn of_future(minor: u8, of: &ObjectType, offset: u64) -> Option<&'static str> {
    let is_task = of.name == "_asyncio.Task";
    if !is_task && of.name != "_asyncio.Future" {
        return None;
    }
    // Since 3.10.6 the traceback of the exception is before the result.
    let has_traceback = minor > 10 || minor == 10 && of.dictionary_offset != 96;
    let creation = if has_traceback { 72 } else { 64 };
    // The first field that only tasks have, and where what it was cancelled with is.
    let (waited_for, cancellation) = match minor {
        ..=8 => (104, 0..0),
        9 => (144, 112..136),
        10 => (creation + 80, creation + 48..creation + 72),
        11 | 12 => (128, 120..128),
        13 => (112, 88..96),
        14.. => (u64::MAX, 88..96),
    };
    match offset {
        // What is no traceback there is called otherwise: see [`is_result`].
        56 => Some("<traceback>"),
        64 if has_traceback => Some("<result>"),
        _ if offset == creation => Some("_source_traceback"),
        _ if offset == creation + 8 && minor >= 9 => Some("_cancel_message"),
        _ if cancellation.contains(&offset) => Some("<cancellation>"),
        _ if !is_task => None,
        _ => {
            const OF_TASK: [&str; 4] = ["_fut_waiter", "_coro", "<name>", "<context>"];
            OF_TASK.get((offset.checked_sub(waited_for)? / 8) as usize).copied()
        }
    }
}

/// Fields that no table of members names, since code shows them.
pub(crate) fn of_field(layout: &ObjectLayout, of: &ObjectType, offset: u64) -> Option<&'static str> {
    /// Of a function, from `first` on.
    const BEFORE_3_10: [&str; 12] = [
        "__code__",
        "__globals__",
        "__defaults__",
        "__kwdefaults__",
        "__closure__",
        "__doc__",
        "__name__",
        "__dict__",
        "<weak references>",
        "__module__",
        "__annotations__",
        "__qualname__",
    ];
    const SINCE_3_10: [&str; 14] = [
        "__globals__",
        "__builtins__",
        "__name__",
        "__qualname__",
        "__code__",
        "__defaults__",
        "__kwdefaults__",
        "__closure__",
        "__doc__",
        "__dict__",
        "<weak references>",
        "__module__",
        "__annotations__",
        // From 3.12 on.
        "__type_params__",
    ];
    const EXCEPTION: [&str; 5] = ["__dict__", "args", "__traceback__", "__context__", "__cause__"];
    const SINCE_3_11: [&str; 6] = ["__dict__", "args", "__notes__", "__traceback__", "__context__", "__cause__"];
    const CODE_KEPT: [&str; 4] = ["co_code", "co_varnames", "co_cellvars", "co_freevars"];
    if of.kind == ObjectKind::Code && offset >= FIRST_OF_CODE_KEPT {
        return CODE_KEPT.get(((offset - FIRST_OF_CODE_KEPT) / 8) as usize).copied();
    }
    if of.kind == ObjectKind::Code && layout.has_light_frames() && offset == layout.code_locals {
        return Some("<co_localsplusnames>");
    }
    if of.kind == ObjectKind::Greenlet {
        return greenlets::name_of_field(layout, offset);
    }
    if let ObjectKind::Outer(holder) = of.kind
        && let Some(name) = holder.name_of_field(layout, of, offset)
    {
        return Some(name);
    }
    if of.kind == ObjectKind::Type {
        // Some versions show these by code, others by a table of members.
        return match offset {
            BASES => Some("__bases__"),
            RESOLUTION_ORDER => Some("__mro__"),
            SUBCLASSES => Some("<subclasses>"),
            OF_SUBINTERPRETERS.. if offset == OF_SUBINTERPRETERS + SUBCLASSES => {
                Some("<subclasses in a subinterpreter>")
            }
            OF_SUBINTERPRETERS.. => Some("<in a subinterpreter>"),
            // Of a class of the program.
            _ if offset + 16 == layout.qualname => Some("__name__"),
            _ if offset + 8 == layout.qualname => Some("__slots__"),
            _ if offset == layout.qualname => Some("__qualname__"),
            _ => None,
        };
    }
    if let Some(name) = of_future(layout.minor, of, offset) {
        return Some(name);
    }
    if of.name == "builtins.hamt_array_node" {
        return Some("");
    }
    if let Some((_, _, name)) = BY_OFFSET.iter().find(|(name, at, _)| *name == of.name && *at == offset) {
        return Some(name);
    }
    // All that iterators have of objects is what they go over.
    if of.name.starts_with("builtins.") && of.name.ends_with("iterator") && !of.is_heap_type {
        return Some("<iterated>");
    }
    let names: &[&str] = match &*of.name {
        "builtins.cell" => &["cell_contents"],
        "builtins.function" if layout.minor < 10 => &BEFORE_3_10,
        // From 3.14 on the function that makes the annotations comes first there.
        "builtins.function" if layout.minor > 13 && offset >= 120 => &[],
        "builtins.function" => &SINCE_3_10,
        "builtins.builtin_function_or_method" => &["<definition>", "__self__", "__module__"],
        "builtins.traceback" => &["tb_next", "tb_frame"],
        _ if of.kind == ObjectKind::NumpyArray => &["data", "ndim", "shape", "strides", "base", "dtype"],
        _ if of.is_exception && layout.minor < 11 => &EXCEPTION,
        _ if of.is_exception => &SINCE_3_11,
        _ => return None,
    };
    names.get((offset.checked_sub(16)? / 8) as usize).copied()
}

/// The dictionary that objects of this type have besides that of their attributes, wherever it is.
pub(crate) fn of_dictionary(type_name: &str) -> Option<&'static str> {
    match type_name {
        "functools._lru_cache_wrapper" => Some("<cache>"),
        "_thread._local" => Some("<threads>"),
        _ => None,
    }
}

#!/bin/sh
# Copies memtrack to a prefix, or takes it away again:
#
#     ./install.sh PREFIX                 # such as /usr/local, ~/.local, or an empty directory
#     ./install.sh --uninstall PREFIX
#
# Why a list of what was installed: a prefix is shared with other programs. Invariant: only files and directories that an
# installation made are removed, and directories only when they are empty. The list, PREFIX/share/memtrack/installed, has one
# path on each line, below PREFIX, directories with a slash at the end.
set -eu

fail() {
    echo "install.sh: $1" >&2
    exit "${2:-1}"
}

usage() {
    fail "usage: install.sh PREFIX | install.sh --uninstall PREFIX" 2
}

# Makes a directory below the prefix, and lists it and those above it that were not there.
make_directory() {
    case $1 in . | "") return ;; esac
    [ ! -d "$prefix/$1" ] || return 0
    make_directory "$(dirname "$1")"
    mkdir "$prefix/$1"
    echo "$1/" >>"$new_list"
}

# Replaces a file in one step, so that a memtrack that runs keeps its own.
copy_file() {
    make_directory "$(dirname "$1")"
    cp "$here/$1" "$prefix/$1.new"
    mv -f "$prefix/$1.new" "$prefix/$1"
    echo "$1" >>"$new_list"
}

install_files() {
    here=$(cd "$(dirname "$0")" && pwd)
    new_list=$(mktemp)
    if [ ! -d "$prefix" ]; then
        mkdir "$prefix"
        echo ./ >"$new_list"
    fi
    [ -w "$prefix" ] || fail "$prefix: cannot be written to"
    old_list=$(mktemp)
    [ ! -f "$prefix/$list" ] || cp "$prefix/$list" "$old_list"
    make_directory share/memtrack
    (cd "$here" && find bin include lib share -type f | LC_ALL=C sort) | while read -r file; do
        copy_file "$file"
    done
    # Of an earlier version: its directories are still to be removed with this one's, its other files at once.
    grep '/$' "$old_list" >>"$new_list" || true
    remove_files "$(grep -v -x -F -f "$new_list" "$old_list" || true)"
    mv -f "$new_list" "$prefix/$list"
    chmod 644 "$prefix/$list"
    rm -f "$old_list"
    echo "memtrack is installed: $prefix/bin/memtrack"
}

uninstall_files() {
    [ -f "$prefix/$list" ] || fail "$prefix/$list: not found; memtrack was not installed there by install.sh"
    installed=$(cat "$prefix/$list")
    rm -f "${prefix:?}/$list"
    remove_files "$(printf '%s\n' "$installed" | grep -v '/$')"
    # Deepest first; one that holds files of others stays.
    printf '%s\n' "$installed" | grep '/$' | LC_ALL=C sort -r | while read -r directory; do
        rmdir "$prefix/${directory#./}" 2>/dev/null || true
    done
    echo "memtrack is removed from $prefix"
}

# Removes files below the prefix, one on each line.
remove_files() {
    [ -z "$1" ] || printf '%s\n' "$1" | while read -r file; do
        rm -f "${prefix:?}/$file"
    done
}

umask 022
list=share/memtrack/installed
action=install_files
if [ "${1:-}" = --uninstall ]; then
    action=uninstall_files
    shift
fi
[ $# = 1 ] || usage
case $1 in -* | "") usage ;; esac
prefix=$1
$action

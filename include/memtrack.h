/* memtrack.h: for programs in C and C++ that say something about their own recording.
 *
 *   memtrack_mark("warm");                 names this moment: --from mark:warm in every report
 *   memtrack_start("phase.bin");           under 'memtrack run --dormant': begins a recording
 *   memtrack_stop();                       ends it
 *   memtrack_snapshot("now.bin");          a complete capture of everything up to now; the recording goes on
 *
 * There is no library to link with. Without memtrack each call is the test of one pointer and returns
 * MEMTRACK_NOT_RECORDED. Under 'memtrack run' they ask the recording over its control socket (see
 * docs/control-protocol.md); they allocate nothing, keep errno, raise no signal, and any thread may call them.
 *
 * A program that 'memtrack attach' found running is not reached by them: use 'memtrack mark PID' there.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef MEMTRACK_H
#define MEMTRACK_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the functions return. */
enum memtrack_result {
    MEMTRACK_OK = 0,
    MEMTRACK_NOT_RECORDED = -1, /* memtrack is not there, or records nothing now */
    MEMTRACK_REFUSED = -2,      /* the recording refused it: no such state, or a name that it does not take */
    MEMTRACK_FAILED = -3        /* the recording could not be reached, or a file not be written */
};

/* Exported by memtrack's library, if it is loaded with the program: whether it records now. */
extern int memtrack_is_recording(void) __attribute__((weak));

#define MEMTRACK_LINE_ 8192
/* SO_PEERCRED, which strict modes of C hide. */
#ifdef SO_PEERCRED
#define MEMTRACK_PEERCRED_ SO_PEERCRED
#else
#define MEMTRACK_PEERCRED_ 17
#endif

/* The socket of the recording of this process, or of its parent's; -1 if there is none. */
static inline int memtrack_connect_now_(void) {
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    long pids[2];
    int of_tmp, at;
    pids[0] = (long)getpid();
    pids[1] = (long)getppid();
    for (of_tmp = 0; of_tmp < 2; of_tmp++) {
        for (at = 0; at < 2; at++) {
            struct sockaddr_un address;
            struct timeval patience = {10, 0};
            int length, descriptor;
            memset(&address, 0, sizeof address);
            address.sun_family = AF_UNIX;
            if (of_tmp)
                length = snprintf(address.sun_path, sizeof address.sun_path, "/tmp/memtrack-%ld/%ld.sock",
                                  (long)geteuid(), pids[at]);
            else if (runtime && runtime[0] == '/')
                length = snprintf(address.sun_path, sizeof address.sun_path, "%s/memtrack/%ld.sock", runtime, pids[at]);
            else
                continue;
            if (length < 0 || (size_t)length >= sizeof address.sun_path)
                continue;
            descriptor = socket(AF_UNIX, SOCK_STREAM, 0);
            if (descriptor < 0)
                return -1;
            (void)fcntl(descriptor, F_SETFD, FD_CLOEXEC);
            (void)setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
            if (connect(descriptor, (struct sockaddr *)&address, sizeof address) == 0)
                return descriptor;
            close(descriptor);
        }
    }
    return -1;
}

/* The same, some time later if need be: the recorder gives the socket its name when it has started the program. */
static inline int memtrack_connect_(void) {
    int tries;
    for (tries = 0; tries < 50; tries++) {
        struct timeval pause = {0, 2000};
        int descriptor = memtrack_connect_now_();
        if (descriptor >= 0)
            return descriptor;
        (void)select(0, NULL, NULL, NULL, &pause);
    }
    return -1;
}

/* Reads a line into a buffer; the length without the line's end, or -1. */
static inline long memtrack_line_(int socket, char *line, size_t size) {
    size_t length = 0;
    while (length + 1 < size) {
        ssize_t got = recv(socket, line + length, 1, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        if (line[length] == '\n') {
            line[length] = 0;
            return (long)length;
        }
        length++;
    }
    return -1;
}

/* Appends a text to a request as a JSON string; 0 if it does not fit or has control characters. */
static inline int memtrack_quoted_(char *request, size_t size, const char *text) {
    size_t length = strlen(request);
    if (length + 2 >= size)
        return 0;
    request[length++] = '"';
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f || length + 4 >= size)
            return 0;
        if (*text == '"' || *text == '\\')
            request[length++] = '\\';
        request[length++] = *text;
    }
    request[length++] = '"';
    request[length] = 0;
    return 1;
}

/* Sends a request and reads its answer; the socket stays open. */
static inline int memtrack_ask_(int socket, const char *request, char *answer, size_t size) {
    size_t sent = 0, length = strlen(request);
    if (memtrack_line_(socket, answer, size) < 0) /* the greeting */
        return MEMTRACK_FAILED;
    while (sent < length) {
        ssize_t more = send(socket, request + sent, length - sent, MSG_NOSIGNAL);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            return MEMTRACK_FAILED;
        sent += (size_t)more;
    }
    if (memtrack_line_(socket, answer, size) < 0)
        return MEMTRACK_FAILED;
    return strstr(answer, "\"ok\":") ? MEMTRACK_OK : MEMTRACK_REFUSED;
}

/* A command with one text, if it has one. */
static inline int memtrack_command_(const char *command, const char *member, const char *text) {
    char request[MEMTRACK_LINE_], answer[MEMTRACK_LINE_];
    int before = errno, socket, result = MEMTRACK_REFUSED;
    size_t length;
    (void)snprintf(request, sizeof request, "{\"id\":1,\"command\":\"%s\"", command);
    if (text) {
        length = strlen(request);
        (void)snprintf(request + length, sizeof request - length, ",\"%s\":", member);
        if (!memtrack_quoted_(request, sizeof request - 4, text)) {
            errno = before;
            return MEMTRACK_REFUSED;
        }
    }
    strcat(request, "}\n");
    socket = memtrack_connect_();
    result = MEMTRACK_NOT_RECORDED;
    if (socket >= 0) {
        result = memtrack_ask_(socket, request, answer, sizeof answer);
        close(socket);
    }
    errno = before;
    return result;
}

/* Names this moment in the capture: 1 to 200 bytes without control characters. Everything that this thread allocated
 * before the call lies before the mark. */
static inline int memtrack_mark(const char *name) {
    if (!memtrack_is_recording || !memtrack_is_recording())
        return MEMTRACK_NOT_RECORDED;
    return memtrack_command_("mark", "name", name);
}

/* An absolute path, as the recorder has another working directory; 0 if it is too long. */
static inline int memtrack_absolute_(const char *path, char *absolute, size_t size) {
    size_t length = 0;
    if (path[0] != '/') {
        if (!getcwd(absolute, size - 1))
            return 0;
        length = strlen(absolute);
        absolute[length++] = '/';
    }
    if (strlen(path) + length >= size)
        return 0;
    strcpy(absolute + length, path);
    return 1;
}

/* Begins a recording of a program that 'memtrack run --dormant' started. path: the capture, which must not exist yet;
 * NULL: memtrack chooses a name. */
static inline int memtrack_start(const char *path) {
    char absolute[4096];
    int before = errno;
    if (!memtrack_is_recording)
        return MEMTRACK_NOT_RECORDED;
    if (path && !memtrack_absolute_(path, absolute, sizeof absolute)) {
        errno = before;
        return MEMTRACK_REFUSED;
    }
    return memtrack_command_("start", "output", path ? absolute : NULL);
}

/* Ends what memtrack_start began, and completes its capture. */
static inline int memtrack_stop(void) {
    if (!memtrack_is_recording || !memtrack_is_recording())
        return MEMTRACK_NOT_RECORDED;
    return memtrack_command_("stop", NULL, NULL);
}

/* The number behind a member of the answer; -1 if it is not there. */
static inline long long memtrack_number_(const char *answer, const char *member) {
    const char *found = strstr(answer, member);
    return found ? strtoll(found + strlen(member), NULL, 10) : -1;
}

/* Writes the bytes of a base64 text up to the quotation mark that ends it. */
static inline int memtrack_write_base64_(int file, const char *text) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned long bits = 0;
    int count = 0;
    for (; *text && *text != '"' && *text != '='; text++) {
        const char *digit = strchr(digits, *text);
        unsigned char byte;
        if (!digit)
            return 0;
        bits = bits << 6 | (unsigned long)(digit - digits);
        count += 6;
        if (count >= 8) {
            count -= 8;
            byte = (unsigned char)(bits >> count & 0xff);
            if (write(file, &byte, 1) != 1)
                return 0;
        }
    }
    return 1;
}

/* Copies so many bytes from the beginning of one file to another. */
static inline int memtrack_copy_(int from, int to, long long length) {
    char buffer[16384];
    while (length > 0) {
        size_t piece = length < (long long)sizeof buffer ? (size_t)length : sizeof buffer;
        ssize_t got = read(from, buffer, piece), put = 0;
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        while (put < got) {
            ssize_t more = write(to, buffer + put, (size_t)(got - put));
            if (more < 0 && errno == EINTR)
                continue;
            if (more <= 0)
                return 0;
            put += more;
        }
        length -= got;
    }
    return 1;
}

/* Writes a complete capture of everything up to now to a new file; the recording goes on. */
static inline int memtrack_snapshot(const char *path) {
    char answer[65536], source[64], request[64];
    int before = errno, socket, result, from = -1, to = -1;
    const char *tail;
    if (!memtrack_is_recording || !memtrack_is_recording())
        return MEMTRACK_NOT_RECORDED;
    socket = memtrack_connect_();
    if (socket < 0) {
        errno = before;
        return MEMTRACK_FAILED;
    }
    (void)snprintf(request, sizeof request, "{\"id\":1,\"command\":\"snapshot\",\"pid\":%ld}\n", (long)getpid());
    result = memtrack_ask_(socket, request, answer, sizeof answer);
    if (result == MEMTRACK_OK) {
        struct {
            pid_t pid;
            uid_t uid;
            gid_t gid;
        } peer = {0, 0, 0};
        socklen_t size = sizeof peer;
        long long descriptor = memtrack_number_(answer, "\"descriptor\":");
        long long length = memtrack_number_(answer, "\"length\":");
        result = MEMTRACK_FAILED;
        tail = strstr(answer, "\"tail\":\"");
        if (tail && getsockopt(socket, SOL_SOCKET, MEMTRACK_PEERCRED_, &peer, &size) == 0) {
            (void)snprintf(source, sizeof source, "/proc/%ld/fd/%lld", (long)peer.pid, descriptor);
            from = open(source, O_RDONLY);
            to = from < 0 ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
            if (to >= 0 && memtrack_copy_(from, to, length) && memtrack_write_base64_(to, tail + 8))
                result = MEMTRACK_OK;
        }
    }
    if (from >= 0)
        close(from);
    if (to >= 0 && close(to) != 0)
        result = MEMTRACK_FAILED;
    if (to >= 0 && result != MEMTRACK_OK)
        (void)unlink(path);
    close(socket);
    errno = before;
    return result;
}

#ifdef __cplusplus
}
#endif

#endif

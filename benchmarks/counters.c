/* Counts what the interpreter of this process does, in a file that other processes read while it runs.
 *
 * Loaded by benchmarks/counted_node.py through ctypes, so it needs no headers of Python: what it takes from the
 * interpreter is declared here, and is the same from 3.11 on.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { /* PyMemAllocatorEx */
    void *context;
    void *(*malloc)(void *context, size_t size);
    void *(*calloc)(void *context, size_t count, size_t size);
    void *(*realloc)(void *context, void *pointer, size_t size);
    void (*free)(void *context, void *pointer);
} allocator;

extern void PyEval_SetProfile(int (*function)(void *, void *, int, void *), void *object);
extern void *PyFrame_GetCode(void *frame);
extern void *PyObject_GetAttrString(void *object, const char *name);
extern const char *PyUnicode_AsUTF8(void *text);
extern ptrdiff_t PyBytes_Size(void *bytes);
extern void PyMem_GetAllocator(int domain, allocator *current);
extern void PyMem_SetAllocator(int domain, allocator *next);
extern void Py_DecRef(void *object);

enum { TRACE_CALL = 0, TRACE_C_CALL = 4, DOMAIN_MEM = 1, DOMAIN_OBJECT = 2 };
enum { SLOTS = 16384, FILE_LENGTH = 80, NAME_LENGTH = 96 };

/* The layout that benchmarks/call_counts.py reads. */
struct function {
    uint64_t code; /* its address; 0 is a free slot */
    uint64_t calls;
    uint64_t bytecode_bytes;
    char file[FILE_LENGTH]; /* the end of its path */
    char name[NAME_LENGTH];
};
struct counters {
    uint64_t python_calls;
    uint64_t c_calls;
    atomic_uint_fast64_t allocations;
    uint64_t functions_lost; /* for want of slots */
    struct function functions[SLOTS];
};

static struct counters *counters;
static allocator originals[2];

int counters_open(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return errno;
    if (ftruncate(file, sizeof *counters)) return errno;
    void *mapped = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) return errno;
    close(file);
    counters = mapped;
    return 0;
}

static void copy_attribute(char *to, size_t room, void *code, const char *attribute) {
    void *text = PyObject_GetAttrString(code, attribute);
    const char *utf8 = text ? PyUnicode_AsUTF8(text) : NULL;
    if (utf8) {
        size_t length = strlen(utf8);
        strncpy(to, length < room ? utf8 : utf8 + (length - room + 1), room - 1);
    }
    if (text) Py_DecRef(text);
}

static void describe(struct function *function, void *code) {
    void *bytecode = PyObject_GetAttrString(code, "co_code");
    if (bytecode) {
        function->bytecode_bytes = (uint64_t)PyBytes_Size(bytecode);
        Py_DecRef(bytecode);
    }
    copy_attribute(function->file, FILE_LENGTH, code, "co_filename");
    copy_attribute(function->name, NAME_LENGTH, code, "co_qualname");
    function->code = (uint64_t)(uintptr_t)code;
}

/* Runs under the interpreter's lock, as every profile function does. */
static int count_call(void *object, void *frame, int what, void *argument) {
    (void)object, (void)argument;
    if (what == TRACE_C_CALL) counters->c_calls++;
    if (what != TRACE_CALL) return 0;
    counters->python_calls++;
    void *code = PyFrame_GetCode(frame);
    uint64_t address = (uint64_t)(uintptr_t)code;
    size_t slot = (address >> 4) * 2654435761u % SLOTS;
    for (size_t probes = 0; probes < SLOTS; probes++, slot = (slot + 1) % SLOTS) {
        struct function *function = &counters->functions[slot];
        if (function->code == address) {
            function->calls++;
            Py_DecRef(code);
            return 0;
        }
        if (!function->code) { /* the reference is kept, or another code could come to have its address */
            describe(function, code);
            function->calls++;
            return 0;
        }
    }
    counters->functions_lost++;
    Py_DecRef(code);
    return 0;
}

/* Of the calling thread: Python 3.11 has a profile function for each. */
void counters_count_calls(void) { PyEval_SetProfile(count_call, NULL); }

static void count_allocation(void) {
    atomic_fetch_add_explicit(&counters->allocations, 1, memory_order_relaxed);
}

static void *counted_malloc(void *context, size_t size) {
    allocator *original = context;
    count_allocation();
    return original->malloc(original->context, size);
}

static void *counted_calloc(void *context, size_t count, size_t size) {
    allocator *original = context;
    count_allocation();
    return original->calloc(original->context, count, size);
}

static void *counted_realloc(void *context, void *pointer, size_t size) {
    allocator *original = context;
    count_allocation();
    return original->realloc(original->context, pointer, size);
}

static void counted_free(void *context, void *pointer) {
    allocator *original = context;
    original->free(original->context, pointer);
}

/* Of all threads. The raw domain is left out: what is large is asked of it by the other two. */
void counters_count_allocations(void) {
    for (int domain = DOMAIN_MEM; domain <= DOMAIN_OBJECT; domain++) {
        allocator *original = &originals[domain - DOMAIN_MEM];
        PyMem_GetAllocator(domain, original);
        allocator counted = {original, counted_malloc, counted_calloc, counted_realloc, counted_free};
        PyMem_SetAllocator(domain, &counted);
    }
}

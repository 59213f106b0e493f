/* The functions of MPI that jaxlib calls, on the MPICH that this process has loaded.

   jaxlib can exchange between processes on CPUs by any MPI: MPItrampoline, which is linked into it,
   loads the library that MPITRAMPOLINE_LIB names, and looks up the functions and constants of its
   own ABI (`MPIABI_*`) there. This file has those that jaxlib calls; the others, whose names are
   read from jaxlib when this file is compiled, are appended and fail. `xla_collectives.py` fills in
   `syrtos_mpich` before the first call. Handles of that ABI are `uintptr_t`, those of MPICH `int`. */

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uintptr_t Handle;

enum { SUCCESS = 0, FAILURE = 16, MIN = 3, MAX = 4 };
/* MPICH's MPI_IN_PLACE and MPI_STATUS_IGNORE. */
#define IN_PLACE ((void *)-1)
#define NO_STATUS ((void *)1)
/* Nanoseconds for which a wait asks again and again; then Python's watchdog waits, which sleeps. */
#define AWAKE 200000

/* What Python fills in. Types and operations are MPICH's handles, in the order of the constants
   below; communicators are MPICH's handles, too. */
struct {
  int rank, size;
  int types[14], sizes[14], is_complex[14], operations[5];
  /* Bytes from which Python reduces, through memory that the workers of a host share. */
  int64_t large;
  /* Nanoseconds that exchanges have taken so far. */
  int64_t exchange_nanoseconds;
  /* Set by an exchange that was given up: what comes next would meet the others' half of it. */
  int is_broken;
  int (*iallreduce)(const void *, void *, int, int, int, int, int *);
  int (*iallgather)(const void *, int, int, void *, int, int, int, int *);
  int (*ireduce_scatter)(const void *, void *, const int *, int, int, int, int *);
  int (*isend)(const void *, int, int, int, int, int, int *);
  int (*irecv)(void *, int, int, int, int, int, int *);
  int (*test)(int *, int *, void *);
  int (*comm_rank)(int, int *);
  int (*comm_size)(int, int *);
  /* Python's: returns MPICH's communicator of the workers that call with this color, in the order
     of their keys, or 0. */
  int (*split)(int color, int key);
  /* Python's: return 0, or 1 after an error, whose text is in `error`. */
  int (*wait)(int *request);
  int (*reduce)(const void *from, void *to, int64_t count, int type, int operation, int comm);
  int (*reduce_scatter)(const void *from, void *to, int64_t count, int type, int operation,
                        int comm);
  char error[1024];
} syrtos_mpich;

#define M syrtos_mpich

static int64_t now(void) {
  struct timespec read;
  clock_gettime(CLOCK_MONOTONIC, &read);
  return read.tv_sec * 1000000000LL + read.tv_nsec;
}

/* An exchange on its way. It has memory of its own: MPI may write there for as long as the process
   lives if the exchange is given up, and XLA's memory has another use then. */
typedef struct {
  int request;
  char *memory;
  /* Where the first `bytes` of the memory go at the end; NULL: nowhere. */
  void *to;
  size_t bytes;
} Exchange;

/* Returns an exchange with `size` bytes of memory; NULL if there is none, or one was given up. */
static Exchange *prepare(int64_t size, void *to, int64_t bytes) {
  Exchange *made = NULL;
  if (M.is_broken) return NULL;
  if (size < 0) {
    snprintf(M.error, sizeof M.error, "XLA exchanges more than 2 GB at once, which MPI can't");
    return NULL;
  }
  if ((made = calloc(1, sizeof *made)) && (made->memory = malloc(size ? size : 1))) {
    made->to = to;
    made->bytes = bytes;
    return made;
  }
  free(made);
  snprintf(M.error, sizeof M.error, "there is no memory for an exchange of %lld bytes",
           (long long)size);
  return NULL;
}

/* Waits for the end of an exchange of which `code` tells whether MPICH has begun it. */
static int finish(int code, Exchange *exchange) {
  int64_t began = now();
  int done = 0;
  if (code == SUCCESS) code = M.test(&exchange->request, &done, NO_STATUS);
  while (code == SUCCESS && !done && now() - began < AWAKE) {
    sched_yield();
    code = M.test(&exchange->request, &done, NO_STATUS);
  }
  if (code != SUCCESS)
    snprintf(M.error, sizeof M.error, "MPICH has failed with code %d", code);
  else if (!done)
    code = M.wait(&exchange->request) ? FAILURE : SUCCESS;
  __atomic_fetch_add(&M.exchange_nanoseconds, now() - began, __ATOMIC_RELAXED);
  if (code != SUCCESS) {
    /* The exchange's memory stays. */
    M.is_broken = 1;
    return FAILURE;
  }
  if (exchange->to) memcpy(exchange->to, exchange->memory, exchange->bytes);
  free(exchange->memory);
  free(exchange);
  return SUCCESS;
}

/* Reduces by one of Python's functions. */
static int reduce(int (*by)(const void *, void *, int64_t, int, int, int), const void *from,
                  void *to, int count, Handle type, Handle operation, Handle comm) {
  int64_t began = now();
  if (M.is_broken) return FAILURE;
  M.is_broken = by(from, to, count, (int)type, (int)operation, (int)comm) != 0;
  __atomic_fetch_add(&M.exchange_nanoseconds, now() - began, __ATOMIC_RELAXED);
  return M.is_broken ? FAILURE : SUCCESS;
}

const Handle MPIABI_COMM_WORLD = 1;
const Handle MPIABI_INT8_T = 1, MPIABI_UINT8_T = 2, MPIABI_INT16_T = 3, MPIABI_UINT16_T = 4,
             MPIABI_INT32_T = 5, MPIABI_UINT32_T = 6, MPIABI_INT64_T = 7, MPIABI_UINT64_T = 8,
             MPIABI_FLOAT = 9, MPIABI_DOUBLE = 10, MPIABI_C_COMPLEX = 11,
             MPIABI_C_DOUBLE_COMPLEX = 12, MPIABI_BYTE = 13;
const Handle MPIABI_SUM = 1, MPIABI_PROD = 2, MPIABI_MIN = MIN, MPIABI_MAX = MAX;

int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided) {
  *provided = required;
  return SUCCESS;
}

int MPIABI_Finalize(void) { return SUCCESS; }

/* XLA makes communicators on threads of its own, and this process's MPI serves all threads. */
int MPIABI_Is_thread_main(int *flag) {
  *flag = 1;
  return SUCCESS;
}

int MPIABI_Comm_rank(Handle comm, int *rank) {
  if (comm != MPIABI_COMM_WORLD) return M.comm_rank((int)comm, rank);
  *rank = M.rank;
  return SUCCESS;
}

int MPIABI_Comm_size(Handle comm, int *size) {
  if (comm != MPIABI_COMM_WORLD) return M.comm_size((int)comm, size);
  *size = M.size;
  return SUCCESS;
}

/* XLA ignores the result of this call, and the exchange with communicator 0 fails. */
int MPIABI_Comm_split(Handle comm, int color, int key, Handle *made) {
  *made = M.is_broken ? 0 : (Handle)(unsigned)M.split(color, key);
  return *made ? SUCCESS : FAILURE;
}

/* Python's communicators live as long as the process. */
int MPIABI_Comm_free(Handle *comm) {
  *comm = 0;
  return SUCCESS;
}

int MPIABI_Error_string(int code, char *text, int *length) {
  *length = snprintf(text, sizeof M.error, "%s", M.error);
  return SUCCESS;
}

int MPIABI_Allreduce(const void *from, void *to, int count, Handle type, Handle operation,
                     Handle comm) {
  int64_t bytes = (int64_t)count * M.sizes[type];
  int is_large = bytes >= M.large && !M.is_complex[type];
  Exchange *exchange;
  if (!comm) return FAILURE;
  /* MPI leaves open what becomes of NaN in the least and the greatest. */
  if (count >= 0 && (operation == MIN || operation == MAX || is_large))
    return reduce(M.reduce, from, to, count, type, operation, comm);
  if (!(exchange = prepare(bytes, to, bytes))) return FAILURE;
  memcpy(exchange->memory, from, bytes);
  return finish(M.iallreduce(IN_PLACE, exchange->memory, count, M.types[type],
                             M.operations[operation], (int)comm, &exchange->request),
                exchange);
}

int MPIABI_Allgather(const void *from, int count, Handle type, void *to, int to_count,
                     Handle to_type, Handle comm) {
  int64_t bytes = (int64_t)count * M.sizes[type];
  int rank, size;
  Exchange *exchange;
  if (!comm || M.comm_rank((int)comm, &rank) != SUCCESS || M.comm_size((int)comm, &size) != SUCCESS)
    return FAILURE;
  if (!(exchange = prepare(bytes * size, to, bytes * size))) return FAILURE;
  memcpy(exchange->memory + rank * bytes, from, bytes);
  return finish(M.iallgather(IN_PLACE, 0, M.types[type], exchange->memory, to_count,
                             M.types[to_type], (int)comm, &exchange->request),
                exchange);
}

int MPIABI_Reduce_scatter(const void *from, void *to, const int *counts, Handle type,
                          Handle operation, Handle comm) {
  /* XLA gives each worker as many. */
  int64_t bytes = (int64_t)counts[0] * M.sizes[type];
  int size;
  Exchange *exchange;
  if (!comm || M.comm_size((int)comm, &size) != SUCCESS) return FAILURE;
  if (operation == MIN || operation == MAX)
    return reduce(M.reduce_scatter, from, to, counts[0], type, operation, comm);
  if (!(exchange = prepare(bytes * size, to, bytes))) return FAILURE;
  memcpy(exchange->memory, from, bytes * size);
  return finish(M.ireduce_scatter(IN_PLACE, exchange->memory, counts, M.types[type],
                                  M.operations[operation], (int)comm, &exchange->request),
                exchange);
}

int MPIABI_Isend(const void *from, int count, Handle type, int rank, int tag, Handle comm,
                 Handle *made) {
  int64_t bytes = (int64_t)count * M.sizes[type];
  Exchange *exchange = comm ? prepare(bytes, NULL, 0) : NULL;
  if (!exchange) return FAILURE;
  memcpy(exchange->memory, from, bytes);
  *made = (Handle)exchange;
  return M.isend(exchange->memory, count, M.types[type], rank, tag, (int)comm, &exchange->request);
}

int MPIABI_Irecv(void *to, int count, Handle type, int rank, int tag, Handle comm, Handle *made) {
  int64_t bytes = (int64_t)count * M.sizes[type];
  Exchange *exchange = comm ? prepare(bytes, to, bytes) : NULL;
  if (!exchange) return FAILURE;
  *made = (Handle)exchange;
  return M.irecv(exchange->memory, count, M.types[type], rank, tag, (int)comm, &exchange->request);
}

int MPIABI_Wait(Handle *made, void *status) { return finish(SUCCESS, (Exchange *)*made); }

int MPIABI_Sendrecv(const void *from, int count, Handle type, int rank, int tag, void *to,
                    int to_count, Handle to_type, int from_rank, int to_tag, Handle comm,
                    void *status) {
  Handle received, sent;
  int code = MPIABI_Irecv(to, to_count, to_type, from_rank, to_tag, comm, &received);
  if (code == SUCCESS) code = MPIABI_Isend(from, count, type, rank, tag, comm, &sent);
  if (code == SUCCESS) code = MPIABI_Wait(&received, status);
  if (code == SUCCESS) return MPIABI_Wait(&sent, status);
  M.is_broken = 1;
  return code;
}

/* What MPItrampoline looks up beside the functions and constants of MPI. */
const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 11, mpiwrapper_version_patch = 0;
const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
void mpiwrapper_export_fortran_constants_(void) {}

static int is_missing(const char *name) {
  snprintf(M.error, sizeof M.error, "this jaxlib calls %s, which syrtos does not know", name);
  return FAILURE;
}

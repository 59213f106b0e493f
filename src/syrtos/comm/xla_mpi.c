/* The functions of MPI that jaxlib calls, on the MPICH that this process has loaded.

   jaxlib can exchange between processes on CPUs by any MPI: MPItrampoline, which is linked into it,
   loads the library that MPITRAMPOLINE_LIB names, and looks up the functions and constants of its
   own ABI (`MPIABI_*`) there. This file has those that jaxlib calls; the others, whose names are
   read from jaxlib when this file is compiled, are appended and fail. `xla_collectives.py` fills in
   `syrtos_mpich` before the first call. Handles of that ABI are `uintptr_t`, those of MPICH `int`. */

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
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
  int types[14], sizes[14], operations[5];
  /* Bytes from which Python reduces, through memory that the workers of a host share. */
  int64_t large;
  /* Nanoseconds spent in exchanges so far. */
  int64_t nanoseconds;
  int (*iallreduce)(const void *, void *, int, int, int, int, int *);
  int (*iallgather)(const void *, int, int, void *, int, int, int, int *);
  int (*ireduce_scatter)(const void *, void *, const int *, int, int, int, int *);
  int (*isend)(const void *, int, int, int, int, int, int *);
  int (*irecv)(void *, int, int, int, int, int, int *);
  int (*test)(int *, int *, void *);
  int (*comm_rank)(int, int *);
  int (*comm_size)(int, int *);
  /* Python's: returns MPICH's communicator of the workers that call with this color, or 0. */
  int (*split)(int color);
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

/* Waits for the end of a request of which `code` tells whether it was begun. */
static int finish(int code, int *request) {
  int64_t began = now(), elapsed = 0;
  int done = 0;
  while (code == SUCCESS && (code = M.test(request, &done, NO_STATUS)) == SUCCESS && !done) {
    elapsed = now() - began;
    if (elapsed > AWAKE) {
      code = M.wait(request) ? FAILURE : SUCCESS;
      break;
    }
    sched_yield();
  }
  __atomic_fetch_add(&M.nanoseconds, now() - began, __ATOMIC_RELAXED);
  return code == SUCCESS ? SUCCESS : FAILURE;
}

/* Reduces by one of Python's functions. */
static int reduce(int (*by)(const void *, void *, int64_t, int, int, int), const void *from,
                  void *to, int count, Handle type, Handle operation, Handle comm) {
  int64_t began = now();
  int failed = by(from, to, count, (int)type, (int)operation, (int)comm);
  __atomic_fetch_add(&M.nanoseconds, now() - began, __ATOMIC_RELAXED);
  return failed ? FAILURE : SUCCESS;
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
  *made = (Handle)(unsigned)M.split(color);
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
  int request = 0;
  if (!comm) return FAILURE;
  /* MPI leaves open what becomes of NaN in the least and the greatest. */
  if (operation == MIN || operation == MAX || (int64_t)count * M.sizes[type] >= M.large)
    return reduce(M.reduce, from, to, count, type, operation, comm);
  return finish(M.iallreduce(from == to ? IN_PLACE : from, to, count, M.types[type],
                             M.operations[operation], (int)comm, &request),
                &request);
}

int MPIABI_Allgather(const void *from, int count, Handle type, void *to, int to_count,
                     Handle to_type, Handle comm) {
  int request = 0;
  if (!comm) return FAILURE;
  return finish(M.iallgather(from, count, M.types[type], to, to_count, M.types[to_type],
                             (int)comm, &request),
                &request);
}

int MPIABI_Reduce_scatter(const void *from, void *to, const int *counts, Handle type,
                          Handle operation, Handle comm) {
  int request = 0;
  if (!comm) return FAILURE;
  if (operation == MIN || operation == MAX)
    return reduce(M.reduce_scatter, from, to, counts[0], type, operation, comm);
  return finish(M.ireduce_scatter(from, to, counts, M.types[type], M.operations[operation],
                                  (int)comm, &request),
                &request);
}

int MPIABI_Isend(const void *from, int count, Handle type, int rank, int tag, Handle comm,
                 Handle *made) {
  int request = 0, code = comm ? M.isend(from, count, M.types[type], rank, tag, (int)comm, &request)
                           : FAILURE;
  *made = (Handle)(unsigned)request;
  return code;
}

int MPIABI_Irecv(void *to, int count, Handle type, int rank, int tag, Handle comm, Handle *made) {
  int request = 0, code = comm ? M.irecv(to, count, M.types[type], rank, tag, (int)comm, &request)
                           : FAILURE;
  *made = (Handle)(unsigned)request;
  return code;
}

int MPIABI_Wait(Handle *made, void *status) {
  int request = (int)*made;
  return finish(SUCCESS, &request);
}

int MPIABI_Sendrecv(const void *from, int count, Handle type, int rank, int tag, void *to,
                    int to_count, Handle to_type, int from_rank, int to_tag, Handle comm,
                    void *status) {
  Handle received, sent;
  int code = MPIABI_Irecv(to, to_count, to_type, from_rank, to_tag, comm, &received);
  if (code == SUCCESS) code = MPIABI_Isend(from, count, type, rank, tag, comm, &sent);
  if (code == SUCCESS) code = MPIABI_Wait(&received, status);
  return code == SUCCESS ? MPIABI_Wait(&sent, status) : code;
}

/* What MPItrampoline looks up beside the functions and constants of MPI. */
const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 11, mpiwrapper_version_patch = 0;
const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
void mpiwrapper_export_fortran_constants_(void) {}

static int is_missing(const char *name) {
  snprintf(M.error, sizeof M.error, "this jaxlib calls %s, which syrtos does not know", name);
  return FAILURE;
}

"""Writes nsys.sqlite: the trace of tests.rs in the tables of Nsight Systems. `python3 nsys.py nsys.sqlite`.

Small pages and many strings, so that tables have trees of pages and one text has pages of its own."""
import sqlite3
import sys

PID = 4242 << 24
KERNELS = [  # start, end, device, correlation, name
    (1001, 1003, 0, 9, "warm_up"),
    (1020, 1050, 0, 1, "sm90_xmma_gemm_bf16"),
    (1050, 1060, 0, 2, "flash_fwd_kernel"),
    (1055, 1080, 0, 3, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    (1095, 1100, 0, 4, "my_own_kernel"),
    (1120, 1154, 0, 5, "sm90_xmma_gemm_bf16"),
    (1130, 1138, 1, 0, "elsewhere"),
]
CALLS = [(990, 995, 9), (1005, 1010, 1), (1012, 1017, 2), (1020, 1025, 3), (1088, 1092, 4), (1105, 1110, 5), (1112, 1114, 6)]

out = sqlite3.connect(sys.argv[1])
out.execute("PRAGMA page_size = 512")
out.executescript(
    """
    CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
        start INTEGER NOT NULL, -- Event start timestamp (ns).
        end INTEGER NOT NULL, -- Event end timestamp (ns).
        deviceId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
        demangledName INTEGER NOT NULL -- REFERENCES StringIds(id), as all names
    );
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
        nameId INTEGER NOT NULL);
    CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, textId INTEGER);
    CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT NOT NULL);
    """
)
names = [f"a string that no kernel has, number {n}" for n in range(200)] + ["x" * 2000] + sorted({k[4] for k in KERNELS})
out.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
of = {name: number for number, name in enumerate(names)}
for start, end, device, correlation, name in KERNELS:
    row = (start * 1000, end * 1000, device, 7, correlation, PID, of[name])
    out.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", row)
out.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1160000, 1168000, 0, 6, ?, 4096, 2)", (PID,))
for start, end, correlation in CALLS:
    out.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 0)", (start * 1000, end * 1000, PID | 77, correlation))
# Calls of another process have the same correlations, and many calls launch nothing.
for start, end, correlation in CALLS:
    out.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 0)", (start, end, (4243 << 24) | 78, correlation))
for n in range(300):
    out.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 0)", (n, n + 1, PID | 77, 1000 + n))
out.execute("INSERT INTO NVTX_EVENTS VALUES (1000000, 1100000, 59, 'ProfilerStep#7', NULL)")
out.execute("INSERT INTO StringIds VALUES (900, 'ProfilerStep#8')")
out.execute("INSERT INTO NVTX_EVENTS VALUES (1100000, 1200000, 59, NULL, 900)")
out.execute("INSERT INTO NVTX_EVENTS VALUES (1050000, NULL, 34, 'a mark', NULL)")
out.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'NVIDIA H100 80GB HBM3')")
out.commit()

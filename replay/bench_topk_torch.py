# SPDX-License-Identifier: Apache-2.0
"""Kernel time of PyTorch's top-k chain and of topk_per_row, both as CUPTI reports them.

usage: bench_topk_torch.py LIBSTEPTAPE_KERNELS.so
Prints one line a shape: rows, columns, k, torch us, torch kernels, ours us, ours kernels.  Exit 77
when PyTorch or a GPU is missing.
"""
import ctypes
import sys

try:
    import torch
    from torch.profiler import ProfilerActivity, profile
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available():
    sys.exit(77)


class Args(ctypes.Structure):
    """struct steptape_topk_per_row_args"""

    _fields_ = (
        [(n, ctypes.c_void_p) for n in ("logits", "out", "row_starts", "row_ends", "seq_lens", "scratch")]
        + [("scratch_bytes", ctypes.c_uint64)]
        + [(n, ctypes.c_int64) for n in ("logits_stride", "out_stride", "num_rows")]
        + [(n, ctypes.c_int32) for n in ("num_columns", "k", "next_n", "seq_lens_2d")]
        + [(n, ctypes.c_uint32) for n in ("flags", "variant")]
    )


def chain(logits, k):
    """The fallback: values and indices, cast, -inf to -1, copy into the buffer."""
    values, indices = torch.topk(logits, k, dim=-1)
    indices = indices.to(torch.int32)
    indices = torch.where(values == float("-inf"), torch.full_like(indices, -1), indices)
    out = torch.full((logits.shape[0], k), -1, dtype=torch.int32, device=logits.device)
    out[:, :k].copy_(indices)
    return out


def kernel_us(call, repeats=20):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    events = [e for e in prof.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(e.device_time for e in events) / repeats, len(events) / repeats


def main():
    lib = ctypes.CDLL(sys.argv[1])
    lib.steptape_topk_per_row_scratch_bytes.restype = ctypes.c_uint64
    for rows, columns in ((1, 4096), (64, 4096), (64, 8192), (64, 32768), (64, 131072), (256, 32768), (4096, 8192)):
        k = 2048
        logits = torch.randn(rows, columns, device="cuda")
        lens = torch.full((rows,), columns, dtype=torch.int32, device="cuda")
        out = torch.empty(rows, k, dtype=torch.int32, device="cuda")
        args = Args(logits=logits.data_ptr(), out=out.data_ptr(), seq_lens=lens.data_ptr(),
                    logits_stride=columns, out_stride=k, num_rows=rows, num_columns=columns, k=k, next_n=1)
        scratch = torch.empty(max(1, lib.steptape_topk_per_row_scratch_bytes(ctypes.byref(args))),
                              dtype=torch.uint8, device="cuda")
        args.scratch, args.scratch_bytes = scratch.data_ptr(), scratch.numel()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if lib.steptape_topk_per_row(ctypes.byref(args), stream) != 0:
            sys.exit("topk_per_row refused its arguments")
        torch.cuda.synchronize()
        want = torch.topk(logits, k, dim=-1).indices.to(torch.int32).sort(dim=-1).values
        if not torch.equal(out.sort(dim=-1).values, want):
            sys.exit(f"rows={rows} columns={columns}: another selection than PyTorch's")
        torch_us, torch_n = kernel_us(lambda: chain(logits, k))
        ours_us, ours_n = kernel_us(lambda: lib.steptape_topk_per_row(ctypes.byref(args), stream))
        print(rows, columns, k, f"{torch_us:.2f} {torch_n:.0f} {ours_us:.2f} {ours_n:.0f}", flush=True)


main()

{
  "name": "h200",
  "device": "NVIDIA H200 SXM 141 GB",
  "origin": "datasheet",
  "note": "sm_count, dram_bytes_per_s and the flops from the data sheet; the *_ns and *_ps entries are assumptions that a measured profile replaces. Error unknown.",
  "sm_count": 132,
  "dram_bytes_per_s": 4.8e12,
  "fp32_flops_per_s": 6.7e13,
  "bf16_flops_per_s": 9.89e14,
  "min_kernel_ns": 1000,
  "block_ps": 1200,
  "stream_gap_ns": 300,
  "host_issue_ns": 3000,
  "graph_launch_ns": 2500,
  "graph_node_ns": 300
}

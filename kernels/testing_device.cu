/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device buffers with guard bands for the operators' tests.
 */
#include "kernels/testing.h"

#include "steptape/kernels.h"

#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 4096, GUARD_BYTE = 0x5c };

int st_test_gpu_probe(const char **why) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count == 0)
        error = cudaErrorNoDevice;
    if (error == cudaSuccess)
        error = cudaFree(NULL);
    if (error != cudaSuccess) {
        *why = cudaGetErrorString(error);
        return -1;
    }
    return 0;
}

void *st_test_device(const void *data, size_t bytes) {
    unsigned char *base = NULL;
    if (cudaMalloc((void **)&base, bytes + 2 * GUARD_BYTES) != cudaSuccess)
        return NULL;
    cudaError_t error = cudaMemset(base, GUARD_BYTE, bytes + 2 * GUARD_BYTES);
    if (error == cudaSuccess && data != NULL)
        error = cudaMemcpy(base + GUARD_BYTES, data, bytes, cudaMemcpyHostToDevice);
    else if (error == cudaSuccess)
        error = cudaMemset(base + GUARD_BYTES, ST_TEST_POISON, bytes);
    if (error != cudaSuccess) {
        cudaFree(base);
        return NULL;
    }
    return base + GUARD_BYTES;
}

int st_test_device_read(void *data, const void *device, size_t bytes) {
    const unsigned char *base = (const unsigned char *)device - GUARD_BYTES;
    unsigned char *guards = (unsigned char *)malloc(2 * GUARD_BYTES);
    int rc = -1;
    if (guards == NULL)
        return -1;
    if (cudaDeviceSynchronize() != cudaSuccess ||
        cudaMemcpy(data, device, bytes, cudaMemcpyDeviceToHost) != cudaSuccess ||
        cudaMemcpy(guards, base, GUARD_BYTES, cudaMemcpyDeviceToHost) != cudaSuccess ||
        cudaMemcpy(guards + GUARD_BYTES, base + GUARD_BYTES + bytes, GUARD_BYTES,
                   cudaMemcpyDeviceToHost) != cudaSuccess)
        goto out;
    for (int i = 0; i < 2 * GUARD_BYTES; i++)
        if (guards[i] != GUARD_BYTE)
            goto out;
    rc = 0;
out:
    free(guards);
    return rc;
}

int st_test_device_write(void *device, const void *data, size_t bytes) {
    return cudaMemcpy(device, data, bytes, cudaMemcpyHostToDevice) == cudaSuccess ? 0 : -1;
}

int st_test_device_copy(void *data, const void *device, size_t bytes) {
    return cudaDeviceSynchronize() == cudaSuccess &&
                   cudaMemcpy(data, device, bytes, cudaMemcpyDeviceToHost) == cudaSuccess
               ? 0
               : -1;
}

void st_test_device_free(void *device) {
    if (device != NULL)
        cudaFree((unsigned char *)device - GUARD_BYTES);
}

int st_test_device_wait(void) {
    return (int)cudaDeviceSynchronize();
}

int st_test_device_launches(int (*launch)(const void *args, void *stream), const void *args) {
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    size_t nodes = 0;
    if (cudaStreamCreate(&stream) != cudaSuccess)
        return STEPTAPE_ERR_CUDA;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    int rc = error == cudaSuccess ? launch(args, stream) : STEPTAPE_ERR_CUDA - (int)error;
    error = cudaStreamEndCapture(stream, &graph);
    if (rc == STEPTAPE_OK && error == cudaSuccess)
        error = cudaGraphGetNodes(graph, NULL, &nodes);
    if (rc == STEPTAPE_OK)
        rc = error == cudaSuccess ? (int)nodes : STEPTAPE_ERR_CUDA - (int)error;
    if (graph != NULL)
        cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    return rc;
}

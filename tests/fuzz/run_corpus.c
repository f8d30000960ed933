/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives every file of the named folders (or the named files) to a fuzz target once: the corpus as a
 * test, for any compiler.  AFL++ runs the same program on one file.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run_file(const char *path) {
    FILE *file = fopen(path, "rb");
    struct stat st;
    if (!file || fstat(fileno(file), &st) != 0) {
        perror(path);
        return 1;
    }
    /* Not a byte more than the input, so that a sanitizer sees reads beyond it. */
    uint8_t *data = malloc(st.st_size ? (size_t)st.st_size : 1);
    size_t size = data ? fread(data, 1, (size_t)st.st_size, file) : 0;
    fclose(file);
    if (!data || size != (size_t)st.st_size) {
        fprintf(stderr, "%s: cannot be read\n", path);
        free(data);
        return 1;
    }
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 0;
}

int main(int argc, char **argv) {
    int files = 0;
    for (int i = 1; i < argc; i++) {
        struct dirent **entries;
        int count = scandir(argv[i], &entries, NULL, alphasort);
        if (count < 0) {
            if (run_file(argv[i]))
                return 1;
            files++;
            continue;
        }
        for (int k = 0; k < count; k++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], entries[k]->d_name);
            if (entries[k]->d_name[0] != '.') {
                if (run_file(path))
                    return 1;
                files++;
            }
            free(entries[k]);
        }
        free(entries);
    }
    printf("%d inputs\n", files);
    return files == 0;
}

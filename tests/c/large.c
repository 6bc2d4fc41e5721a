/* More elements than 31 bits count, as one of two processes that meet in a directory: large INDEX DIRECTORY. */
#include <uform.h>

#include <stdio.h>
#include <stdlib.h>

/* Odd, and three elements more than a signed number of 32 bits counts. */
#define COUNT (((size_t)1 << 31) + 3)

/* What a process has at a position; sums of two fit. */
static unsigned char element(size_t index, size_t position) {
    return (unsigned char)((position / 7 + position % 113) % 101 + index * 27);
}

static int failed(char const *what) {
    char error[1024] = "";
    uform_last_error(error, sizeof error);
    fprintf(stderr, "%s: %s\n", what, error);
    return 1;
}

int main(int argument_count, char **arguments) {
    uform_mesh_options_t options = UFORM_MESH_OPTIONS_INIT;
    uform_mesh_t *mesh = NULL;
    unsigned char *array = (unsigned char *)malloc(COUNT);
    size_t index, position;
    if (argument_count != 3 || array == NULL) return 2;
    index = (size_t)strtoul(arguments[1], NULL, 10);
    options.host_domain_index = index;
    options.host_domain_count = 2;
    options.directory = arguments[2];
    options.job = "large";
    if (uform_mesh_bootstrap(NULL, &options, &mesh) != uform_status_success_k) return failed("bootstrap");
    for (position = 0; position < COUNT; position++) array[position] = element(index, position);
    if (uform_mesh_all_reduce(mesh, array, array, COUNT, uform_dtype_u8_k, uform_reduce_op_sum_k, NULL) !=
        uform_status_success_k)
        return failed("all_reduce");
    for (position = 0; position < COUNT; position++) {
        if (array[position] != (unsigned char)(element(0, position) + element(1, position))) {
            fprintf(stderr, "element %lu is %d\n", (unsigned long)position, array[position]);
            return 1;
        }
    }
    if (uform_mesh_free(mesh) != uform_status_success_k) return failed("free");
    free(array);
    printf("%lu elements are right\n", (unsigned long)COUNT);
    return 0;
}

/* Calls every function of the header and checks what the header promises of it. */
#include <uform.h>

#include <stdio.h>
#include <string.h>

static int failures = 0;

static void expect(int holds, char const *what) {
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        failures++;
    }
}

int main(void) {
    char text[4096], cut[5], error[256];
    size_t length = 0, needed = 0;

    expect(uform_last_error(error, sizeof error) == 0 && error[0] == 0, "there is no error before the first verb");
    expect(strcmp(uform_status_name(uform_status_timed_out_k), "timed_out") == 0, "a status has its name");
    expect(uform_status_name((uform_status_t)99) == NULL, "another number has none");

    expect(uform_capabilities_compiled(NULL, 0, &needed) == uform_status_success_k && needed > 0, "the length is told");
    expect(uform_capabilities_compiled(text, sizeof text, &length) == uform_status_success_k, "compiled succeeds");
    expect(length == needed && strlen(text) == length && strstr(text, "serial") != NULL, "serial is always compiled");
    expect(uform_capabilities_compiled(cut, sizeof cut, NULL) == uform_status_success_k, "a short buffer is legal");
    expect(strlen(cut) == sizeof cut - 1 && strncmp(cut, text, sizeof cut - 1) == 0, "a short buffer gets the start");
    expect(uform_capabilities_available(text, sizeof text, NULL) == uform_status_success_k, "available succeeds");
    expect(strstr(text, "serial") != NULL, "serial is always available");

    expect(uform_capabilities_available(NULL, 1, NULL) == uform_status_invalid_k, "a null buffer is invalid");
    expect(uform_last_error(error, sizeof error) > 0 && strstr(error, "text = NULL") != NULL, "the error is kept");

    printf("uform %s: %s\n", uform_version(), text);
    return failures;
}

/* Trains a small network on points of a surface, in any number of processes.
 *
 *     cc train.c $(pkg-config --cflags --libs uform) -o train
 *     uform launch --processes 2 ./train [DIRECTORY]
 *
 * Every process generates its own part of the same points. Index 0 prints the loss of each epoch; the checkpoint goes to
 * DIRECTORY, `checkpoints/train` without it. Ctrl-C ends it between two steps, and in the middle of a wait. */
#include <uform.h>

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define HIDDEN 32
#define POINTS 1024
#define EPOCHS 40
#define STEPS_PER_EPOCH 8

static volatile sig_atomic_t stopped = 0;

static void stop(int number) {
    (void)number;
    stopped = 1;
}

static int is_stopped(void *user) {
    (void)user;
    return stopped;
}

/* Every error says what to do: printing it and leaving is enough, the other processes learn of it. */
static void require(uform_status_t status) {
    char text[1024];
    if (status == uform_status_success_k) return;
    uform_last_error(text, sizeof text);
    fprintf(stderr, "%s: %s\n", uform_status_name(status), text);
    exit(1);
}

/* A number from -1 to 1 that every process computes alike (Steele, Lea and Flood, OOPSLA 2014). */
static double drawn(uint64_t seed) {
    uint64_t bits = seed * UINT64_C(0x9E3779B97F4A7C15);
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94D049BB133111EB);
    bits ^= bits >> 31;
    return (double)(bits >> 11) / 4503599627370496.0 - 1.0;
}

/* One layer of HIDDEN rectified units over two inputs: HIDDEN rows of weights for x, for y and a bias; HIDDEN weights;
 * and one bias. The processes of a host share them. */
typedef struct {
    double const *in, *out, *offset;
} network_t;

/* The gradients of the same, each process's own. */
typedef struct {
    double *in, *out, *offset;
} gradient_t;

static double const *parameter(uform_trainer_t const *trainer, char const *name) {
    void const *pointer = NULL;
    size_t byte_count;
    require(uform_trainer_parameter(trainer, name, &pointer, &byte_count));
    return (double const *)pointer;
}

static double *gradient_of(uform_trainer_t const *trainer, char const *name) {
    void *pointer = NULL;
    size_t byte_count;
    require(uform_trainer_gradient(trainer, name, &pointer, &byte_count));
    return (double *)pointer;
}

/* Adds the gradient of one point's squared error, and returns that error. */
static double learn(network_t network, gradient_t gradient, double x, double y, double target, double share) {
    double hidden[HIDDEN], error = network.offset[0] - target;
    int unit;
    for (unit = 0; unit < HIDDEN; unit++) {
        double const *row = network.in + 3 * unit;
        double sum = row[0] * x + row[1] * y + row[2];
        hidden[unit] = sum > 0.0 ? sum : 0.0;
        error += network.out[unit] * hidden[unit];
    }
    gradient.offset[0] += 2.0 * error * share;
    for (unit = 0; unit < HIDDEN; unit++) {
        double const back = hidden[unit] > 0.0 ? 2.0 * error * share * network.out[unit] : 0.0;
        gradient.out[unit] += 2.0 * error * share * hidden[unit];
        gradient.in[3 * unit] += back * x;
        gradient.in[3 * unit + 1] += back * y;
        gradient.in[3 * unit + 2] += back;
    }
    return error * error;
}

static void clear(double *numbers, size_t count) {
    size_t position;
    for (position = 0; position < count; position++) numbers[position] = 0.0;
}

/* One step on this process's points of a batch; returns the sum of their squared errors, and in `points` how many they are. */
static double step(uform_trainer_t const *trainer, network_t network, gradient_t gradient, size_t index,
                   size_t count, size_t batch, double *points, uform_call_options_t const *options) {
    size_t const first = batch * (POINTS / STEPS_PER_EPOCH), last = first + POINTS / STEPS_PER_EPOCH;
    size_t point, own = 0;
    double loss = 0.0;
    clear(gradient.in, 3 * HIDDEN);
    clear(gradient.out, HIDDEN);
    clear(gradient.offset, 1);
    for (point = first; point < last; point++) own += point % count == index;
    for (point = first; point < last; point++) {
        double const x = drawn(2 * point), y = drawn(2 * point + 1);
        if (point % count != index) continue;
        loss += learn(network, gradient, x, y, x * y, 1.0 / (double)own);
    }
    /* The mean over all processes is weighted by how many points each saw. */
    require(uform_trainer_step(trainer, (double)own, options, NULL));
    *points = (double)own;
    return loss;
}

int main(int argc, char **argv) {
    static double in[3 * HIDDEN], out[HIDDEN];
    size_t const in_shape[] = {HIDDEN, 3}, out_shape[] = {HIDDEN};
    uform_parameter_t parameters[3] = {UFORM_PARAMETER_INIT, UFORM_PARAMETER_INIT, UFORM_PARAMETER_INIT};
    uform_adamw_t adamw = UFORM_ADAMW_INIT;
    uform_trainer_options_t trainer_options = UFORM_TRAINER_OPTIONS_INIT;
    uform_call_options_t options = UFORM_CALL_OPTIONS_INIT;
    uform_mesh_t *mesh = NULL;
    uform_trainer_t *trainer = NULL;
    network_t network;
    gradient_t gradient;
    size_t index, count, position, epoch, batch;

    signal(SIGINT, stop);
    options.interrupt = is_stopped;

    require(uform_mesh_bootstrap(NULL, NULL, &mesh));
    require(uform_mesh_index(mesh, &index));
    require(uform_mesh_count(mesh, &count));

    /* The initial values of index 0 count. */
    for (position = 0; position < 3 * HIDDEN; position++) in[position] = drawn(10000 + position);
    for (position = 0; position < HIDDEN; position++) out[position] = 0.2 * drawn(20000 + position);
    parameters[0].name = "in";
    parameters[0].shape = in_shape;
    parameters[0].dimension_count = 2;
    parameters[0].values = in;
    parameters[1].name = "out";
    parameters[1].shape = out_shape;
    parameters[1].dimension_count = 1;
    parameters[1].values = out;
    parameters[2].name = "offset";
    for (position = 0; position < 3; position++) parameters[position].dtype = uform_dtype_f64_k;
    adamw.learning_rate = 0.01;
    trainer_options.adamw = &adamw;
    trainer_options.clip_norm = 1.0;
    require(uform_trainer_open(mesh, parameters, 3, &trainer_options, &options, &trainer));
    network.in = parameter(trainer, "in");
    network.out = parameter(trainer, "out");
    network.offset = parameter(trainer, "offset");
    gradient.in = gradient_of(trainer, "in");
    gradient.out = gradient_of(trainer, "out");
    gradient.offset = gradient_of(trainer, "offset");

    for (epoch = 0; epoch < EPOCHS; epoch++) {
        double sums[2] = {0.0, 0.0}, points;
        for (batch = 0; batch < STEPS_PER_EPOCH; batch++) {
            sums[0] += step(trainer, network, gradient, index, count, batch, &points, &options);
            sums[1] += points;
        }
        require(uform_mesh_all_reduce(mesh, sums, sums, 2, uform_dtype_f64_k, uform_reduce_op_sum_k, &options));
        if (index == 0) printf("epoch %2d  loss %.6f\n", (int)epoch, sums[0] / sums[1]);
    }
    require(uform_trainer_save(trainer, argc > 1 ? argv[1] : "checkpoints/train", EPOCHS * STEPS_PER_EPOCH, &options));
    require(uform_trainer_free(trainer));
    require(uform_mesh_free(mesh));
    return 0;
}

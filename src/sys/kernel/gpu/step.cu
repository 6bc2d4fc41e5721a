/* The arithmetic of a trainer's step on GPUs, one text for NVRTC and HIPRTC. Tests compile it as C: whoever includes it there says
 * first what KERNEL, POSITION, STRIDE and ROW are.
 *
 * Everything is computed in binary64 and rounded once to the type that is stored, as `optimizer.rs` does on the host. No product
 * and sum may be fused into one rounding: the options of the compilers see to that. */
#ifndef KERNEL
#define KERNEL extern "C" __global__ void
#define POSITION (blockIdx.x * (count_t)blockDim.x + threadIdx.x)
#define STRIDE (gridDim.x * (count_t)blockDim.x)
#define ROW ((count_t)blockIdx.y)
#define ROOT(value) sqrt(value)
#endif

typedef unsigned long long count_t;

/* Adds up numbers that lie a stride apart, each thread in their order, into the first ones. */
KERNEL uform_fold(double *numbers, count_t count) {
    double sum = 0.0;
    for (count_t i = POSITION; i < count; i += STRIDE) sum += numbers[i];
    numbers[POSITION] = sum;
}

#define STEP(REAL, NAME)                                                                                              \
    /* Writes rows of so many elements that begin `apart` elements from each other in the source, times a share, one \
     * after the other. What counts for nothing is not read: it may be anything. */                                   \
    KERNEL uform_scale_##NAME(REAL *target, REAL const *source, double share, count_t count, count_t apart) {         \
        for (count_t i = POSITION; i < count; i += STRIDE)                                                            \
            target[ROW * count + i] =                                                                                 \
                share == 0.0 ? (REAL)0 : (REAL)(share * (double)source[ROW * apart + i]);                             \
    }                                                                                                                 \
                                                                                                                      \
    /* For each thread: the sum of its elements' squares, and how many of them are not finite. */                     \
    KERNEL uform_inspect_##NAME(REAL const *values, count_t count, double *squares, double *odd) {                    \
        double sum = 0.0, others = 0.0;                                                                               \
        for (count_t i = POSITION; i < count; i += STRIDE) {                                                          \
            double value = (double)values[i];                                                                         \
            sum += value * value;                                                                                     \
            if (!(value - value == 0.0)) others += 1.0;                                                               \
        }                                                                                                             \
        squares[POSITION] = sum;                                                                                      \
        odd[POSITION] = others;                                                                                       \
    }                                                                                                                 \
                                                                                                                      \
    KERNEL uform_sgd_##NAME(REAL *parameters, REAL const *gradients, REAL *state, count_t count, double scale,        \
        double learning_rate, double momentum, double weight_decay, int nesterov) {                                   \
        for (count_t i = POSITION; i < count; i += STRIDE) {                                                          \
            double value = (double)parameters[i];                                                                     \
            double direction = (double)(REAL)(scale * (double)gradients[i]) + weight_decay * value;                   \
            if (momentum != 0.0) {                                                                                    \
                double kept = momentum * (double)state[i] + direction;                                                \
                state[i] = (REAL)kept;                                                                                \
                direction = nesterov ? direction + momentum * kept : kept;                                            \
            }                                                                                                         \
            parameters[i] = (REAL)(value - learning_rate * direction);                                                \
        }                                                                                                             \
    }                                                                                                                 \
                                                                                                                      \
    KERNEL uform_adamw_##NAME(REAL *parameters, REAL const *gradients, REAL *first, REAL *second, count_t count,      \
        double scale, double beta1, double beta2, double epsilon, double step_size, double root, double keep) {       \
        for (count_t i = POSITION; i < count; i += STRIDE) {                                                          \
            double gradient = (double)(REAL)(scale * (double)gradients[i]);                                           \
            double value = (double)parameters[i] * keep;                                                              \
            double mean = (double)first[i];                                                                           \
            mean = mean + (1.0 - beta1) * (gradient - mean);                                                          \
            double square = (double)second[i] * beta2;                                                                \
            square = square + (1.0 - beta2) * gradient * gradient;                                                    \
            first[i] = (REAL)mean;                                                                                    \
            second[i] = (REAL)square;                                                                                 \
            double change = step_size * mean / (ROOT(square) / root + epsilon);                                       \
            parameters[i] = (REAL)(value - change);                                                                   \
        }                                                                                                             \
    }

STEP(float, f32)
STEP(double, f64)

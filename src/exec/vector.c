/* SPDX-License-Identifier: Apache-2.0 */
/* vector.c - vector code for this machine, chosen when the library is loaded. */

#include "exec/vector.h"

#include <string.h>

#include "error.h"

struct vector_set {
    const char *name;
    afd_vector_sum_fn sum;
};

afd_vector_sum_fn afd_vector_sum = afd_vector_sum_generic;
static const char *chosen = "generic";

static int machine_has(const char *name)
{
#ifdef AFD_VECTOR_X86
    __builtin_cpu_init();
    if (strcmp(name, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (strcmp(name, "avx2") == 0)
        return __builtin_cpu_supports("avx2") != 0;
#endif
    return strcmp(name, "generic") == 0;
}

/* Widest first. */
static const struct vector_set sets[] = {
#ifdef AFD_VECTOR_X86
    {"avx512", afd_vector_sum_avx512},
    {"avx2", afd_vector_sum_avx2},
#endif
    {"generic", afd_vector_sum_generic},
};

int afd_vector_choose(const char *name)
{
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        if (strcmp(sets[i].name, name) != 0 || !machine_has(name))
            continue;
        afd_vector_sum = sets[i].sum;
        chosen = sets[i].name;
        return 0;
    }
    return afd_error_set(AFD_EUNSUPPORTED, "vector code \"%s\" is not for this machine", name);
}

const char *afd_vector_name(void)
{
    return chosen;
}

__attribute__((constructor)) static void choose_widest(void)
{
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        if (machine_has(sets[i].name) && afd_vector_choose(sets[i].name) == 0)
            return;
}

/*
 * The marker by which a loader tells this project's libraries from a vendor's.
 *
 * usage: marker LIBRARY KIND VERSION
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct instance {
    char magic[8];
    int32_t version;
    uint32_t size;
    char kind[16];
};

int main(int argc, char **argv)
{
    void *library = argc == 4 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const struct instance *marker = library ? dlsym(library, "flagos_comm_instance") : NULL;
    if (marker == NULL) {
        fprintf(stderr, "no marker: %s\n", dlerror());
        return 1;
    }
    if (memcmp(marker->magic, "FLAGOSC1", 8) != 0 || marker->size < sizeof *marker
        || strcmp(marker->kind, argv[2]) != 0 || marker->version != atoi(argv[3])) {
        fprintf(stderr, "%s: kind %.16s, version %d, size %u\n", argv[1], marker->kind,
                marker->version, marker->size);
        return 1;
    }
    return 0;
}

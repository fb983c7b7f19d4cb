/* _dl_find_object (dlfcn.h of glibc), by which libgcc's unwinder finds the unwind tables of a program: musl has none. packaging/static links it beside libgcc_eh. */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <stdint.h>

/* As glibc has it on x86-64. */
struct dl_find_object {
    unsigned long long flags;
    void *map_start;
    void *map_end;
    struct link_map *link_map;
    void *eh_frame;
    unsigned long long reserved[7];
};

struct search {
    uintptr_t address;
    struct dl_find_object *found;
};

static int look(struct dl_phdr_info *module, size_t size, void *data)
{
    struct search *search = data;
    const ElfW(Phdr) *tables = NULL, *around = NULL;
    (void)size;
    for (int i = 0; i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &module->dlpi_phdr[i];
        if (header->p_type == PT_GNU_EH_FRAME)
            tables = header;
        else if (header->p_type == PT_LOAD && search->address - (module->dlpi_addr + header->p_vaddr) < header->p_memsz)
            around = header;
    }
    if (!tables || !around)
        return 0;
    search->found->map_start = (void *)(module->dlpi_addr + around->p_vaddr);
    search->found->map_end = (void *)(module->dlpi_addr + around->p_vaddr + around->p_memsz);
    search->found->eh_frame = (void *)(module->dlpi_addr + tables->p_vaddr);
    return 1;
}

int _dl_find_object(void *address, struct dl_find_object *found)
{
    struct search search = {(uintptr_t)address, found};
    return dl_iterate_phdr(look, &search) ? 0 : -1;
}

/* What libgcc_eh refers to weakly: it calls all of them if one is there, and musl has each in an object of its own. */
__attribute__((used)) static void *const beside_pthread_key_create[] = {
    pthread_once, pthread_mutex_lock, pthread_mutex_unlock, pthread_getspecific, pthread_setspecific, pthread_key_create,
};
